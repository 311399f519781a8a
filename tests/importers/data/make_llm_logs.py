"""Writes a log database with the code of simonw/llm, and dumps it: `python make_llm_logs.py llm_0_36.sql`.

Run it in an environment with the version of llm whose schema the dump should have.
"""

import base64
import sqlite3
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import sqlite_utils
from llm.migrations import migrate

import llm

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class ScriptedModel(llm.Model):
    """Answers from a list: a text, or a tool call as its name and arguments."""

    model_id = "scripted"
    supports_tools = True
    attachment_types = frozenset({"image/png"})

    def __init__(self, answers):
        self.answers = list(answers)

    def execute(self, prompt, stream, response, conversation):
        answer = self.answers.pop(0)
        response.set_usage(input=12, output=5, details={"cached_tokens": 3})
        response.set_resolved_model("scripted-2026-01-01")
        if isinstance(answer, tuple):
            response.add_tool_call(llm.ToolCall(name=answer[0], arguments=answer[1], tool_call_id="call_1"))
            return
        if hasattr(llm.models, "StreamEvent") or (Path(llm.__file__).parent / "parts.py").exists():
            from llm.parts import StreamEvent

            yield StreamEvent(type="reasoning", chunk="Think about it. ")
            yield StreamEvent(type="text", chunk=answer)
        else:
            yield answer


def read_weather(city: str) -> str:
    """Weather of a city."""
    if city == "Atlantis":
        raise ValueError("no such city")
    return f"Rain in {city}"


def write_log(db):
    conversation = llm.Conversation(model=ScriptedModel(["Bonjour", "Encore bonjour", "A red dot", "Summarised"]))
    for text, options in (
        ("Say hello in French", {"system": "You translate."}),
        ("Again", {}),
        ("What is this?", {"attachments": [llm.Attachment(type="image/png", content=PNG)]}),
        ("Summarise", {"fragments": ["A long text about foxes."]}),
    ):
        response = conversation.prompt(text, **options)
        response.text()
        response.log_to_db(db)
    calls = [("read_weather", {"city": city}) for city in ("Oslo", "Atlantis")]
    chain = llm.Conversation(model=ScriptedModel([*calls, "It rains in Oslo."])).chain(
        "Weather in Oslo?", tools=[read_weather]
    )
    chain.text()
    for response in chain._responses:
        response.log_to_db(db)
    alone = ScriptedModel(["Alone"]).prompt("One question, and no conversation")
    alone.text()
    alone.log_to_db(db)
    if db["threads"].exists():
        fork_thread(db)


def fork_thread(db):
    """A second thread from the middle of the first one, as `llm` forks a conversation."""
    from llm.logs import LogStore
    from llm.parts import assistant, user

    store = LogStore(db)
    origin = next(db.query("SELECT id FROM threads ORDER BY id LIMIT 1"))["id"]
    turn = next(db.query("SELECT tip_message_hash FROM turns WHERE thread_id = ? ORDER BY id LIMIT 1", [origin]))
    tip = store.ensure_chain([user("In Spanish"), assistant("Hola")], parent=turn["tip_message_hash"])
    store.create_thread(name="In Spanish", tip=tip, forked_from=origin)


def main(target):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "logs.db")
        db = sqlite_utils.Database(path)
        migrate(db)
        write_log(db)
        db.close()
        copy = sqlite3.connect(path)
        for kind, rule in (("trigger", "type = 'trigger'"), ("table", "sql LIKE 'CREATE VIRTUAL%'")):
            for (name,) in copy.execute(f"SELECT name FROM sqlite_master WHERE {rule}").fetchall():
                copy.execute(f'DROP {kind} "{name}"')
        copy.commit()
        lines = "\n".join(copy.iterdump())
    Path(target).write_text(
        f"-- Written by llm {version('llm')}, without its full-text index: make_llm_logs.py\n{lines}\n"
    )


if __name__ == "__main__":
    main(sys.argv[1])
