"""A demo conversation, sessions of agents, and a server for them: python web/demo.py [--port 8300] [--folder FOLDER]

The model follows a script, so no request leaves this machine. The page tests and docs/picture/page.py use it too.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from demo_content import AGENT, SUMMARY, TITLE, TOOLS, TURNS, VAULT_NOTES, make_tool_call
from quire.agent.function_tools import FunctionToolRunner
from quire.engine import Conversation
from quire.llm import ModelChunk, Prompt
from quire.model import Message
from quire.server.addresses import bind_socket, generate_token, server_url
from quire.server.app import create_app
from quire.server.lifecycle import run_server
from quire.server.state import ServerState, open_server_state
from quire.server.turn_registry import BranchKey
from quire.settings import Settings
from quire.store import DEFAULT_TENANT
from quire.testing.scripted_model import ScriptedModel, ScriptStep


class DemoModel(ScriptedModel):
    """Answers the demo's questions by script, and any other with a canned reply; streams word by word with a delay."""

    def __init__(self, *, delay_seconds: float = 0.0) -> None:
        super().__init__(_script_reply, name="demo-1", repeat=True)
        self.delay_seconds = delay_seconds

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        async for chunk in super().stream(prompt):
            await asyncio.sleep(self.delay_seconds)
            yield chunk


def _script_reply(prompt: Prompt) -> ScriptStep:
    newest = max(index for index, message in enumerate(prompt.messages) if message.role == "user")
    question = prompt.messages[newest].text
    steps = next((steps for scripted, steps in TURNS if scripted in question), None)
    step = sum(message.role == "assistant" for message in prompt.messages[newest + 1 :])
    return steps[step] if steps is not None and step < len(steps) else _improvise_reply(prompt, question)


def _improvise_reply(prompt: Prompt, question: str) -> Message | str:
    """Replies to an unscripted question; the word "order" makes it call a tool."""
    last = prompt.messages[-1]
    if last.role == "tool":
        return f"The tool says: {last.tool_results[-1].text[:200]}"
    if "order" in question.lower():
        return make_tool_call(f"o{len(prompt.messages)}", "order_timber", '{"wood": "elm", "length": 9}')
    return (
        f"You asked: *{question.strip().splitlines()[-1][:200] if question.strip() else 'nothing'}*\n\n"
        "This model follows a script, so it has little to say of its own, but it says it **word by word**, as others "
        "do:\n\n- the gate first,\n- then the silt,\n- then the wheel.\n\n"
        "Look at the *context* of this reply to see what it was sent."
    )


def write_vault(folder: Path) -> Path:
    vault = folder / "vault"
    for name, text in VAULT_NOTES.items():
        (vault / name).parent.mkdir(parents=True, exist_ok=True)
        (vault / name).write_text(text, encoding="utf-8")
    return vault


def make_settings(folder: Path, **changes: Any) -> Settings:
    values = {
        "model": "gpt-4o",
        "context_limit": 4_000,
        "reserved_response_tokens": 500,
        "context_background_threshold": None,
        "recent_messages_to_keep": 4,
        "context_tools": True,
        "vault": str(write_vault(folder)),
        **changes,
    }
    return Settings.model_validate(values)


@asynccontextmanager
async def open_demo(
    folder: Path, *, url: str | None = None, model: DemoModel | None = None, **options: Any
) -> AsyncGenerator[ServerState]:
    """Opens a server state with the demo's agent, vault and model, without conversations."""
    scripted = model or DemoModel()
    arguments: dict[str, Any] = {
        "agent": AGENT.with_tools(*(each.offered_tool for each in TOOLS)),
        "model_factory": lambda _: scripted,
        "summarizer": ScriptedModel(SUMMARY, repeat=True, name="demo-1"),
        "embedder": _create_embedder(),
        "is_local": True,
        **options,
    }
    settings = arguments.pop("settings", None) or make_settings(folder)
    async with open_server_state(url or f"sqlite:///{folder}/quire.db", settings, **arguments) as state:
        state.turns.runners = (FunctionToolRunner(TOOLS),)
        yield state


def _create_embedder() -> Any:
    from quire.llm.embeddings import load_local_embedder

    return load_local_embedder()


async def create_demo_conversation(state: ServerState) -> str:
    """Runs the scripted conversation and returns its id."""
    engine = state.engine_for(DEFAULT_TENANT)
    for title in ("Leaflet for visitors", "Tide tables of next year", "Letter to the trust"):
        other = await engine.conversation((await engine.store.create_conversation(title=title)).id)
        await other.append("What should it say?", Message.assistant("Little, and that in large type."))
    record = await engine.store.create_conversation(title=TITLE)
    conversation = await engine.conversation(record.id)
    if not await engine.store.memories.list("keeper"):
        await engine.store.memories.add(
            "keeper", "Rosa has the keys of the lodge and opens up on Saturdays.", source="user"
        )
    for number, (question, _) in enumerate(TURNS):
        await run_turn(state, conversation, question)
        if number == 1:
            await conversation.add_item("units")
        if number == 4:
            await conversation.pin(await _find_first_question(conversation))
            await conversation.compact()
    await conversation.compact(instructions="Keep the work days.")
    return record.id


async def _find_first_question(conversation: Conversation) -> int:
    return next(entry.seq for entry in await conversation.messages() if entry.role == "user")


async def run_turn(state: ServerState, conversation: Conversation, question: str) -> None:
    branch_key = BranchKey(DEFAULT_TENANT, conversation.id, conversation.branch)
    running = await state.turns.start(branch_key, conversation, question, model=state.model_for())
    async for _ in running.stream():
        pass
    # The last event is emitted shortly before the turn is removed from the registry.
    while state.turns.get(branch_key) is not None:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def main(port: int, folder: Path, token: str) -> None:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from infra.agent_sessions import create_agent_sessions

    model = DemoModel()
    async with open_demo(folder, model=model) as state:
        await create_agent_sessions(state.store)
        conversation_id = await create_demo_conversation(state)
        model.delay_seconds = 0.03
        with bind_socket("127.0.0.1", port) as listener:
            address = server_url("127.0.0.1", listener.getsockname()[1], token)
            print(f"{address}#/c/{conversation_id}", flush=True)  # noqa: T201
            await run_server(create_app(state, token=token), listener, grace_seconds=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8300)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--token", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(options.port, options.folder or Path(scratch), options.token or generate_token()))
