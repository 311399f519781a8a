"""What `quire resume` writes for an agent is its original's continuation, and not a new conversation."""

import json
import os
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from importers.transcript_files import import_path, read_texts
from quire.cli.resume import read_history
from quire.log import ConversationOrigin
from quire.log.imports import ContinuedSession, make_conversation_id
from quire.model import Message, Pin
from quire.model.ids import now
from quire.model.messages import TextPart, ToolCallPart, ToolResultPart
from quire.resume.registry import find_writer
from quire.resume.session import NativeSession, SessionPlace, format_time, write_session
from quire.store import SqlStore

HISTORY = (
    Message.user("List the tides."),
    Message(role="assistant", parts=(ToolCallPart(id="t1", name="Bash", arguments='{"command":"ls"}'),)),
    Message(role="tool", parts=(ToolResultPart(call_id="t1", content=(TextPart(text="ebb, flood"),)),)),
    Message.assistant("Ebb and flood."),
)


async def write(store: SqlStore, program: str, folder: Path) -> NativeSession:
    """Writes a session as `quire resume` does."""
    [branch] = await store.list_branches("tides")
    record = await store.get_conversation("tides")
    history = await read_history(store, record, branch=0, last=branch.head_seq, program=program)
    environ = {"HOME": str(folder), "CLAUDE_CONFIG_DIR": str(folder), "CODEX_HOME": str(folder)}
    writer = find_writer(program)
    session = writer.build_session(history, SessionPlace(folder, environ, folder))
    write_session(session)
    continued = ContinuedSession("tides", 0, branch.head_seq, now())
    await store.imports.record_continued(make_conversation_id(writer.traits.source, session.id), continued)
    return session


def go_on(program: str, session: NativeSession, *, question: str = "When is ebb?", answer: str = "At six.") -> None:
    """Appends a turn as the agent does."""
    said_at, id_ = format_time(now() + 1_000_000), sha256(question.encode()).hexdigest()[:8]
    lines: list[dict[str, Any]] = [json.loads(line) for line in session.path.read_text().splitlines()]
    if program == "claude":
        shared = {"sessionId": session.id, "cwd": "/w", "isSidechain": False, "timestamp": said_at}
        reply = {
            "id": f"msg_{id_}", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5-20250929",
            "content": [{"type": "text", "text": answer}], "stop_reason": "end_turn",
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }  # fmt: skip
        prompt = {"role": "user", "content": question}
        lines += [
            {**shared, "type": "user", "uuid": f"{id_}-1", "parentUuid": lines[-1]["uuid"], "message": prompt},
            {**shared, "type": "assistant", "uuid": f"{id_}-2", "parentUuid": f"{id_}-1", "message": reply},
        ]
    elif program == "codex":
        for role, kind, text in (("user", "input_text", question), ("assistant", "output_text", answer)):
            item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
            lines.append({"timestamp": said_at, "ordinal": len(lines), "type": "response_item", "payload": item})
        usage = {"input_tokens": 10, "cached_input_tokens": 0, "output_tokens": 5, "total_tokens": 15}
        payload = {"type": "token_count", "info": {"last_token_usage": usage, "total_token_usage": usage}}
        lines.append({"timestamp": said_at, "ordinal": len(lines), "type": "event_msg", "payload": payload})
    else:
        lines.append({"id": "new-1", "timestamp": said_at, "type": "user", "content": [{"text": question}]})
        tokens = {"input": 10, "output": 5, "cached": 0, "thoughts": 0, "tool": 0, "total": 15}
        reply = {"id": "new-2", "timestamp": said_at, "type": "gemini", "content": answer, "thoughts": []}
        lines.append({**reply, "tokens": tokens, "model": "gemini-2.5-pro"})
    session.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    age(session)


def age(session: NativeSession) -> None:
    """The last reply of a file that was just written is held back."""
    at = time.time() - 3_600
    os.utime(session.path, (at, at))


@pytest.mark.every_database
@pytest.mark.parametrize("program", ["claude", "codex", "gemini"])
async def test_a_written_session_continues_its_original(program: str, store: SqlStore, tmp_path: Path):
    await store.create_conversation("tides", origin=ConversationOrigin(client="cursor"))
    await store.append("tides", *HISTORY)
    session = await write(store, program, tmp_path)
    source = find_writer(program).traits.source
    age(session)
    report = await import_path(store, source, session.path)
    assert (report.messages, report.known_messages) == (0, 4)
    go_on(program, session)
    report = await import_path(store, source, session.path)
    assert (report.messages, [each.id for each in await store.list_conversations()]) == (2, ["tides"])
    assert (await read_texts(store, "tides"))[-3:] == ["Ebb and flood.", "When is ebb?", "At six."]
    assert len(await store.list_branches("tides")) == 1
    assert await store.verify_conversation("tides") == []
    assert (await store.usage.read_conversation("tides")).input_tokens == 10
    assert (await import_path(store, source, session.path)).messages == 0


@pytest.mark.every_database
@pytest.mark.parametrize("program", ["claude", "codex"])
async def test_what_the_gateway_recorded_of_a_written_session_is_there_once(
    program: str, store: SqlStore, tmp_path: Path
):
    await store.create_conversation("tides", origin=ConversationOrigin(client="cursor", session="first"))
    # The newest entry has no words that the session's file has.
    await store.append("tides", *HISTORY, Pin(message=4))
    session = await write(store, program, tmp_path)
    source = find_writer(program).traits.source
    await store.append("tides", Message.user("When is ebb?"), Message.assistant("At six."))
    go_on(program, session)
    for _ in range(2):
        report = await import_path(store, source, session.path)
        assert (report.messages, report.known_messages, report.live_conversations) == (0, 6, 1)
    go_on(program, session, question="And flood?", answer="At noon.")
    assert [(await import_path(store, source, session.path)).messages for _ in range(2)] == [2, 0]
    assert (await read_texts(store, "tides"))[-4:] == ["When is ebb?", "At six.", "And flood?", "At noon."]
    assert [each.id for each in await store.list_conversations()] == ["tides"]
    assert len(await store.list_branches("tides")) == 1
    assert await store.verify_conversation("tides") == []


async def test_the_original_may_go_on_too(store: SqlStore, tmp_path: Path):
    await store.create_conversation("tides")
    await store.append("tides", *HISTORY)
    session = await write(store, "claude", tmp_path)
    await store.append("tides", Message.user("And neap?"), Message.assistant("On Sunday."))
    go_on("claude", session)
    await import_path(store, "claude-code", session.path)
    assert (await read_texts(store, "tides", branch=1))[-3:] == ["Ebb and flood.", "When is ebb?", "At six."]
    assert (await read_texts(store, "tides"))[-1] == "On Sunday."
