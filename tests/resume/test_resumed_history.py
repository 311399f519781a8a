"""Which messages of the log a resumed session has, and in which form an agent gets them."""

import json
from base64 import b64encode
from typing import Any

import pytest

from quire.model import Compaction, FilePart, ImagePart, Message, Restore, Span, TextPart, ThinkingPart, ToolCallPart
from quire.resume.history import INTERRUPTED_TEXT, AdaptedHistory, adapt_history, select_messages
from quire.resume.registry import find_writer
from quire.resume.session import TimedMessage
from quire.resume.tool_equivalents import translate_call
from quire.store import SqlStore
from quire.wire.media import build_data_url

CHECKPOINT_PROMPT = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary."
NOW = 1_794_900_000_000_000
PROGRAMS: tuple[str, ...] = ("claude", "codex", "opencode", "gemini")


def call(name: str, id_: str = "c1", **arguments: Any) -> ToolCallPart:
    return ToolCallPart(id=id_, name=name, arguments=json.dumps(arguments))


def adapt(program: str, *messages: Message, client: str | None = None, at: int = NOW) -> AdaptedHistory:
    timed = [TimedMessage(at, message) for message in messages]
    return adapt_history(timed, find_writer(program).traits, client=client, load_blob=None, now=NOW)


def test_calls_become_the_equivalent_tool_of_the_agent():
    reply = Message(role="assistant", parts=(call("Bash", command="ls", description="List"),))
    history = adapt("codex", Message.user("go"), reply, Message.tool("c1", "a.txt"), client="claude-code")
    _, written, answer = (each.message for each in history.messages)
    assert (written.tool_calls[0].name, written.tool_calls[0].arguments) == ("exec_command", '{"cmd":"ls"}')
    assert answer.tool_results[0].call_id == written.tool_calls[0].id != "c1"
    assert history.changes == {"calls of Bash written as exec_command": 1}


@pytest.mark.parametrize("program", PROGRAMS)
def test_calls_without_an_equivalent_become_text(program: str):
    reply = Message(role="assistant", parts=(TextPart(text="Look."), call("measure_tide", station="Hook")))
    history = adapt(program, Message.user("go"), reply, Message.tool("c1", "2 m"), client="quire")
    roles = [each.message.role for each in history.messages]
    assert roles == ["user", "assistant", "user"]
    assert '[Called the tool measure_tide with {"station": "Hook"}]' in history.messages[1].message.text
    assert "2 m" in history.messages[2].message.text
    assert history.changes == {"calls of measure_tide written as text": 1}


def test_an_argument_without_an_equivalent_makes_the_call_a_text():
    assert translate_call("Read", {"file_path": "a", "limit": 3}, program="gemini") is None
    assert translate_call("Read", {"file_path": "a"}, program="gemini") == ("read_file", {"file_path": "a"})
    assert translate_call("Read", {"file_path": "a"}, program="codex") is None


@pytest.mark.parametrize("target", PROGRAMS)
@pytest.mark.parametrize(
    ("source", "name", "arguments"),
    [
        ("claude", "Write", {"file_path": "a b", "content": "x\ny"}),
        ("codex", "exec_command", {"cmd": "ls"}),
        ("opencode", "edit", {"filePath": "a", "oldString": "b", "newString": ""}),
        ("gemini", "run_shell_command", {"command": "ls", "dir_path": "src"}),
        ("gemini", "glob", {"pattern": "*.py", "dir_path": "src"}),
    ],
)
def test_a_translated_call_can_be_translated_back(source: str, name: str, arguments: dict[str, Any], target: str):
    translated = translate_call(name, arguments, program=target)
    assert translated is None or translate_call(*translated, program=source) == (name, arguments)


def test_the_agents_own_calls_stay_as_they_are():
    reply = Message(role="assistant", parts=(call("mcp__harbour__tide", station="Hook"),))
    history = adapt("claude", Message.user("go"), reply, Message.tool("c1", "2 m"), client="claude-code")
    assert history.messages[1].message.tool_calls[0].name == "mcp__harbour__tide"
    assert not history.changes


def test_every_call_has_one_result_after_it_even_if_ids_repeat_or_results_are_missing():
    first = Message(role="assistant", parts=(call("Bash", command="a"), call("Bash", "c2", command="b")))
    second = Message(role="assistant", parts=(call("Bash", command="c"),))
    messages = (
        Message.user("go"), first, Message.user("wait"), Message.tool("c2", "of b"), Message.tool("c1", "of a"),
        second, Message.tool("c9", "of nothing"),
    )  # fmt: skip
    history = adapt("claude", *messages, client="claude-code")
    replies = [each.message for each in history.messages]
    for index, message in enumerate(replies):
        if message.tool_calls:
            answers = replies[index + 1].tool_results
            assert [each.call_id for each in answers] == [each.id for each in message.tool_calls]
    texts = [[each.text for each in message.tool_results] for message in replies if message.role == "tool"]
    assert texts == [["of a", "of b"], [INTERRUPTED_TEXT]]
    assert "of nothing" in replies[-1].text
    ids = [each.id for message in replies for each in message.tool_calls]
    assert len(set(ids)) == 3
    assert history.changes["calls without a result, marked as interrupted"] == 1


def test_thinking_and_instructions_are_left_out_and_counted():
    thought = ThinkingPart(text="secret thought", signature="signed")
    reply = Message(role="assistant", parts=(thought, TextPart(text="Yes.")))
    only_thought = Message(role="assistant", parts=(thought,))
    history = adapt(
        "claude", Message.system("Be brief."), Message.user("go"), reply, only_thought, client="claude-code"
    )
    assert [each.message.text for each in history.messages] == ["go", "Yes."]
    assert history.changes == {"system messages left out": 1, "thinking blocks left out": 2}


def test_a_list_begins_with_the_user_and_its_times_ascend_in_the_past():
    history = adapt("gemini", Message.assistant("Welcome."), Message.user("go"), at=NOW + 5)
    assert [each.message.role for each in history.messages] == ["user", "assistant", "user"]
    times = [each.at // 1_000 for each in history.messages]
    assert times == sorted(set(times))
    assert times[-1] < NOW // 1_000


@pytest.mark.parametrize("program", PROGRAMS)
def test_media_go_along_where_the_agent_takes_them(program: str):
    def url(media_type: str, data: bytes) -> str:
        return build_data_url(media_type, b64encode(data).decode())

    parts = (
        ImagePart(url=url("image/png", b"png")),
        FilePart(url=url("application/pdf", b"pdf"), name="a.pdf"),
        FilePart(url=url("text/plain", "Grüße".encode()), name="a.txt"),
        FilePart(url=url("application/zip", b"zip"), name="a.zip"),
        ImagePart(url="https://example.com/a.png"),
        ImagePart(blob="0" * 64),
    )
    history = adapt(program, Message(role="user", parts=parts))
    picture, pdf, text, archive, remote, purged = history.messages[0].message.parts
    assert isinstance(picture, ImagePart)
    assert isinstance(pdf, TextPart if program == "codex" else FilePart)
    assert isinstance(text, TextPart)
    assert "Grüße" in text.text
    assert isinstance(archive, TextPart)
    assert "a.zip" in archive.text
    assert isinstance(remote, ImagePart if program in ("claude", "codex") else TextPart)
    assert isinstance(purged, TextPart)
    described = sum(isinstance(part, TextPart) for part in (pdf, archive, remote, purged))
    assert sum(history.changes.values()) == described


async def test_pinned_and_preserved_messages_stay_beside_the_summary(store: SqlStore):
    from quire.model import Compaction, Pin, Span

    await store.create_conversation("c")
    await store.append("c", *(Message.user(f"message {number}") for number in range(1, 7)))
    await store.append("c", Pin(message=2))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=5), preserved=(4,), summary="the sum"))
    texts = [each.message.text for each in select_messages(await store.read_range("c"))]
    assert "the sum" in texts[0]
    assert texts[1:] == ["message 2", "message 4", "message 6"]
    before = select_messages(await store.read_range("c", last=5))
    assert [each.message.text for each in before] == [f"message {number}" for number in range(1, 6)]


async def test_dropped_messages_are_stubs_and_a_restored_one_is_whole(store: SqlStore):
    from quire.model import Drop, Undrop

    await store.create_conversation("c")
    reply = Message(role="assistant", parts=(call("Bash", command="cat log"), call("Bash", "c2", command="ls")))
    results = (Message.tool("c1", "long log " * 500), Message.tool("c2", "a.txt"))
    await store.append("c", Message.user("Read this: secret plan."), reply, *results, Message.assistant("Read."))
    await store.append("c", Drop(message=1), Drop(message=3), Drop(message=4), Undrop(message=4))
    messages = [each.message for each in select_messages(await store.read_range("c"))]
    assert messages[0].text == "[dropped by the user: a message, 23 characters; read #1]"
    assert messages[1] == reply
    [stub] = messages[2].tool_results
    assert (stub.call_id, stub.text) == (
        "c1", '[dropped by the user: Bash {"command": "cat log"}, 4,500 characters; read #3]'
    )  # fmt: skip
    assert messages[3:] == [results[1], Message.assistant("Read.")]
    before = [each.message for each in select_messages(await store.read_range("c", last=5))]
    assert before[2] == results[0]


async def test_an_edited_summary_replaces_the_one_of_the_model(store: SqlStore):
    from quire.model import Compaction, Restore, Span

    await store.create_conversation("c")
    await store.append("c", *(Message.user(f"message {number}") for number in range(1, 4)))
    covers = Span(first=1, last=2)
    await store.append("c", Compaction(number=1, covers=covers, summary="by the model"))
    await store.append("c", Compaction(number=2, covers=covers, summary="by the user", trigger="edit", supersedes=4))
    texts = [each.message.text for each in select_messages(await store.read_range("c"))]
    assert "by the user" in texts[0]
    assert texts[1:] == ["message 3"]
    await store.append("c", Restore(compaction=5))
    assert "by the model" in select_messages(await store.read_range("c"))[0].message.text


@pytest.mark.parametrize("prompt", [CHECKPOINT_PROMPT, None], ids=["Codex", "OpenAI"])
async def test_a_compaction_that_was_undone_leaves_neither_its_request_nor_its_summary(
    store: SqlStore, prompt: str | None
):
    """Codex asks for the summary at the end of its own list; OpenAI adds a sealed item to a reply."""
    record = await store.create_conversation()
    said = [Message.user("The port is 7421."), Message.assistant("Noted.")]
    await store.append(record.id, *said)
    if prompt is not None:
        summary = "They spoke of a port, and of nothing else that matters."
        await store.append(record.id, Message.user(prompt), Message.assistant(summary))
        compaction = Compaction(number=1, covers=Span(first=1, last=4), summary=summary, trigger="client")
    else:
        fields: dict[str, Any] = {"responses": {"type": "compaction", "encrypted_content": "sealed"}}
        part = TextPart(text="[compaction]", provider_fields=fields)
        await store.append(record.id, Message(role="assistant", parts=(part,)))
        compaction = Compaction(number=1, covers=Span(first=1, last=2), trigger="provider")
    [made] = await store.append(record.id, compaction)
    await store.append(record.id, Message.user("And now?"), Message.assistant("Done."))
    await store.append(record.id, Restore(compaction=made.seq))
    entries = await store.read_range(record.id)
    texts = [each.message.text for each in select_messages(entries)]
    assert texts == ["The port is 7421.", "Noted.", "And now?", "Done."]
