"""Reading sessions that the OpenAI Agents SDK stored itself."""

import sqlite3
from pathlib import Path
from typing import Any, cast

from agents import SQLiteSession

from infra.export_samples import read_source
from quire.importers.openai_agents import OpenAiAgentsSource

SOURCE = OpenAiAgentsSource()
TURN: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Oslo?"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Call it"}]},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Oslo"}'},
    {"type": "function_call", "call_id": "c2", "name": "time", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    {"type": "function_call_output", "call_id": "c2", "output": "noon"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Rain at noon."}]},
]


async def write_session(path: Path, items: list[dict[str, Any]], session: str = "user-1") -> Path:
    store = SQLiteSession(session, path)
    await store.add_items(cast(Any, items))
    store.close()
    return path


async def test_a_session_is_a_conversation(tmp_path: Path):
    path = await write_session(tmp_path / "sessions.db", TURN)
    read = read_source(SOURCE, path)
    assert read.errors == []
    assert read.only.outline() == [
        ("row:1", None, "user", "Weather in Oslo?"),
        ("row:2", "row:1", "assistant", '<Call it> | weather({"city":"Oslo"}) | time({})'),
        ("row:5", "row:2", "tool", "-> rain"),
        ("row:6", "row:5", "tool", "-> noon"),
        ("row:7", "row:6", "assistant", "Rain at noon."),
    ]
    conversation = read.only.conversation
    assert (conversation.id, conversation.title, conversation.origin.client) == ("user-1", "user-1", "openai-agents")
    assert conversation.created_at is not None
    assert all(each.at is not None for each in read.only.messages)


async def test_a_session_that_has_grown_has_the_same_messages_first(tmp_path: Path):
    path = await write_session(tmp_path / "sessions.db", TURN)
    before = read_source(SOURCE, path).only.messages
    await write_session(path, [{"role": "user", "content": "Thanks"}])
    after = read_source(SOURCE, path).only.messages
    assert after[:-1] == before
    assert after[-1].message.text == "Thanks"


async def test_sessions_are_separate_and_damaged_rows_are_errors(tmp_path: Path):
    path = await write_session(tmp_path / "sessions.db", TURN[:1])
    await write_session(path, [{"role": "user", "content": "Other"}], session="user-2")
    with sqlite3.connect(path) as connection:
        connection.executemany(
            "INSERT INTO agent_messages (session_id, message_data) VALUES ('user-1', ?)",
            [("{broken",), ('{"no": "type"}',), (b"\xff\xfe",), ('{"role": "user", "content": "After"}',)],
        )
    connection.close()
    read = read_source(SOURCE, path)
    assert [text for each in read.conversations for *_, text in each.outline()] == [
        "Weather in Oslo?",
        "After",
        "Other",
    ]
    assert [error.item for error in read.errors] == ["row:3", "row:4", "row:5"]


async def test_a_database_in_use_is_read(tmp_path: Path):
    path = tmp_path / "sessions.db"
    store = SQLiteSession("live", path)
    await store.add_items(cast(Any, TURN))
    assert len(read_source(SOURCE, path).only.messages) == 5
    store.close()


def test_a_view_is_not_read(tmp_path: Path):
    """A view with the table's name could run a query without end."""
    path = tmp_path / "evil.db"
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, i AS session_id FROM n"
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE VIEW agent_sessions AS {endless}")
        connection.execute(f"CREATE VIEW agent_messages AS {endless}")
    connection.close()
    assert read_source(SOURCE, path).errors == [("evil.db", "The database has no sessions of the OpenAI Agents SDK.")]
