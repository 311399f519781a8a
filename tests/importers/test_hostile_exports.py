"""Exports that are damaged or made to do harm: everything is refused, or read with an error for each item.

What is read is always a tree that can be written: ids are unique, and a message comes after its parent.
"""

import json
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.export_samples import (
    DATA,
    ReadItems,
    make_chatgpt_conversation,
    make_chatgpt_message,
    read_source,
    write_json,
)
from infra.sizes import IS_FULL_SIZE
from quire.importers.readers import MAX_LINE_BYTES
from quire.importers.source_fields import MAX_ID_CHARS, MAX_TITLE_CHARS
from quire.sources.registry import SOURCES

DEPTH = 1_000_000 if IS_FULL_SIZE else 100_000
CHATGPT_MESSAGE = make_chatgpt_message(
    "assistant",
    content={
        "content_type": "multimodal_text",
        "parts": ["a", {"content_type": "image_asset_pointer", "asset_pointer": "x"}],
    },
    metadata={"model_slug": "m", "attachments": [{"id": "f", "name": "n"}], "citations": [{"start_ix": 1}]},
    recipient="python",
)
CLAUDE_BLOCKS = [
    {"type": "thinking", "thinking": "t", "signature": "s"},
    {"type": "tool_use", "id": "c", "name": "n", "input": {"a": 1}},
    {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}], "is_error": False},
    {"type": "text", "text": "x"},
]
SAMPLES: dict[str, Any] = {
    "chatgpt": [
        make_chatgpt_conversation(
            "c",
            {
                "a": (None, None),
                "b": ("a", make_chatgpt_message("user", "Hi")),
                "c": ("b", CHATGPT_MESSAGE),
                "d": ("c", make_chatgpt_message("tool", content={"content_type": "execution_output", "text": "1"})),
                "e": (
                    "d",
                    make_chatgpt_message(
                        "assistant", content={"content_type": "thoughts", "thoughts": [{"summary": "s"}]}
                    ),
                ),
            },
        )
    ],
    "claude": [
        {
            "uuid": "c",
            "name": "n",
            "created_at": "2026-01-01T00:00:00Z",
            "chat_messages": [
                {
                    "uuid": "q",
                    "sender": "human",
                    "text": "Hi",
                    "content": [],
                    "attachments": [{"file_name": "f", "extracted_content": "e"}],
                    "files": [{"file_name": "g", "file_uuid": "u"}],
                },
                {
                    "uuid": "a",
                    "sender": "assistant",
                    "content": CLAUDE_BLOCKS,
                    "parent_message_uuid": "q",
                    "created_at": "2026-01-01T00:00:01Z",
                },
            ],
        }
    ],
    "librechat": {
        "conversationId": "c",
        "title": "t",
        "messages": [
            {
                "messageId": "q",
                "text": "Hi",
                "isCreatedByUser": True,
                "createdAt": "2026-01-01T00:00:00Z",
                "files": [{"filename": "f"}],
                "children": [
                    {
                        "messageId": "a",
                        "model": "m",
                        "tokenCount": 3,
                        "content": [
                            {"type": "text", "text": {"value": "v"}},
                            {"type": "tool_call", "tool_call": {"id": "i", "name": "n", "args": "{}", "output": "o"}},
                        ],
                    }
                ],
            },
        ],
    },
    "open-webui": [
        {
            "id": "c",
            "chat": {
                "history": {
                    "currentId": "a",
                    "messages": {
                        "q": {
                            "id": "q",
                            "parentId": None,
                            "role": "user",
                            "content": "Hi",
                            "files": [{"type": "image", "url": "data:image/png;base64,AA=="}],
                        },
                        "a": {
                            "id": "a",
                            "parentId": "q",
                            "role": "assistant",
                            "content": '<details type="tool_calls" id="i" name="n" result="r">x</details>',
                            "usage": {"prompt_tokens": 1},
                            "output": [{"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}],
                        },
                    },
                }
            },
        }
    ],
    "cursor": {"role": "assistant", "timestamp": 1, "message": {"content": CLAUDE_BLOCKS}},
    "openai-jsonl": {
        "custom_id": "x",
        "body": {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                {
                    "role": "assistant",
                    "content": "a",
                    "tool_calls": [{"id": "c", "function": {"name": "n", "arguments": "{}"}}],
                },
            ]
        },
    },
}
JSON_SOURCES = sorted(SAMPLES)
JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    10**30,
    -1.5,
    1e308,
    "",
    "x" * 5_000,
    "\x00",
    "\ud800",
    "2026-13-45T99:99:99Z",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00+14:00",
    [],
    {},
    [None],
    {"": None},
    [[[]]],
    "a",
    "q",
    "c",
    {"id": "q"},
]


def write_sample(name: str, value: Any, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    is_lines = name in ("cursor", "openai-jsonl")
    path = folder / ("s.jsonl" if is_lines else "conversations.json")
    path.write_text(json.dumps(value) + ("\n" if is_lines else ""))
    return path


def check(read: ReadItems) -> None:
    """What a writer relies on."""
    for conversation, messages in read.conversations:
        assert 0 < len(conversation.id) <= MAX_ID_CHARS
        assert len(conversation.title) <= MAX_TITLE_CHARS
        seen: set[str] = set()
        for each in messages:
            assert each.id not in seen
            assert each.parent is None or each.parent in seen
            assert each.at is None or 0 <= each.at < 253_402_300_800_000_000
            assert each.message.parts
            each.message.canonical_json().encode()
            seen.add(each.id)


def find_places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in find_places(item, (*path, key)))]


def replace(value: Any, place: tuple[Any, ...], junk: Any) -> Any:
    if not place:
        return junk
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = replace(copy[place[0]], place[1:], junk)
    return copy


@pytest.mark.parametrize("name", JSON_SOURCES)
def test_every_sample_is_read(name: str, tmp_path: Path):
    read = read_source(SOURCES[name], write_sample(name, SAMPLES[name], tmp_path / "s"))
    check(read)
    assert read.only.messages
    assert read.errors == []


@pytest.mark.parametrize("name", JSON_SOURCES)
def test_any_value_in_any_place_is_read_or_refused(name: str, tmp_path: Path):
    for place in find_places(SAMPLES[name]):
        variants = [replace(SAMPLES[name], place, junk) for junk in JUNK]
        path = write_sample(name, SAMPLES[name], tmp_path / "s")
        path.write_text(
            "\n".join(json.dumps(item) for each in variants for item in (each if isinstance(each, list) else [each]))
        )
        check(read_source(SOURCES[name], path))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(JUNK) | st.text(max_size=30)), max_size=6),
    cut=st.none() | st.integers(0, 2_000),
    name=st.sampled_from(JSON_SOURCES),
)
def test_several_changes_and_a_cut(name: str, changes: list[tuple[int, Any]], cut: int | None, tmp_path: Path):
    value = SAMPLES[name]
    for choice, junk in changes:
        places = find_places(value)
        value = replace(value, places[choice % len(places)], junk)
    path = write_sample(name, value, tmp_path / "s")
    if cut is not None:
        path.write_bytes(path.read_bytes()[:cut])
    check(read_source(SOURCES[name], path))


def make_nodes(parents: dict[str, str | None], *, empty: str = "") -> dict[str, tuple[str | None, Any]]:
    return {
        id_: (parent, None if id_ in empty else make_chatgpt_message("user", id_)) for id_, parent in parents.items()
    }


@pytest.mark.parametrize(
    ("nodes", "expected", "errors"),
    [
        (make_nodes({"a": "a"}), [], ["a"]),
        (make_nodes({"a": "b", "b": "a", "c": None}), ["c"], ["a", "b"]),
        (make_nodes({"a": None, "b": "gone"}), ["a", "b"], ["b"]),
        (make_nodes({"a": "b", "b": "a", "c": "a"}, empty="ab"), ["c"], []),
        (make_nodes({"a": None, "b": "a", "c": "b", "d": "c"}, empty="bc"), ["a", "d"], []),
        (make_nodes({"b": "a", "a": None}), ["a", "b"], []),
        ({}, [], []),
    ],
    ids=["self-parent", "cycle", "missing parent", "cycle of empty nodes", "null messages", "child first", "empty"],
)
def test_trees(tmp_path: Path, nodes: dict[str, Any], expected: list[str], errors: list[str]):
    read = read_source(SOURCES["chatgpt"], write_json(tmp_path / "c.json", [make_chatgpt_conversation("c", nodes)]))
    check(read)
    assert sorted(each.message.text for each in read.only.messages) == expected
    assert sorted(error.item for error in read.errors) == errors


def test_the_same_id_twice_is_an_error(tmp_path: Path):
    messages = [{"uuid": "q", "sender": "human", "text": text} for text in ("first", "second")]
    read = read_source(SOURCES["claude"], write_json(tmp_path / "c.json", [{"uuid": "c", "chat_messages": messages}]))
    check(read)
    assert [each.message.text for each in read.only.messages] == ["first"]
    assert [error.item for error in read.errors] == ["q"]


def test_a_long_chain_is_read_without_recursion(tmp_path: Path):
    nodes = make_nodes({str(n): str(n - 1) if n else None for n in range(3_000)}, empty="")
    read = read_source(SOURCES["chatgpt"], write_json(tmp_path / "c.json", [make_chatgpt_conversation("c", nodes)]))
    check(read)
    assert len(read.only.messages) == 3_000


@pytest.mark.parametrize(
    ("value", "at"),
    [
        (1_700_000_000, 1_700_000_000_000_000),
        (1_700_000_000_000, 1_700_000_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000_000_000),
        (None, None),
        (-5, None),
        (1e300, None),
        ("yesterday", None),
        (True, None),
    ],
)
def test_times(tmp_path: Path, value: Any, at: int | None):
    message = {"uuid": "q", "sender": "human", "text": "x", "created_at": value}
    read = read_source(SOURCES["claude"], write_json(tmp_path / "c.json", [{"uuid": "c", "chat_messages": [message]}]))
    assert [each.at for each in read.only.messages] == [at]


@pytest.mark.parametrize("name", [*JSON_SOURCES, "llm", "openai-agents", "claude-code", "codex"])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 1_000,
        b"\xff\xfe[\x00]\x00",
        b"PK\x03\x04garbage",
        b"[" * DEPTH,
        b'{"a":' * (DEPTH // 5),
        b'"' + b"\\" * 999,
        b"SQLite format 3\x00junk",
    ],
    ids=["empty", "zeros", "utf-16", "broken zip", "deep array", "deep object", "open string", "broken database"],
)
def test_files_of_other_content(name: str, data: bytes, tmp_path: Path):
    path = tmp_path / "conversations.json"
    path.write_bytes(data)
    read = read_source(SOURCES[name], path)
    check(read)
    if name in JSON_SOURCES and len(data) > 1:
        assert not any(each.messages for each in read.conversations)


LLM_LOGS = ("llm_0_30.sql", "llm_0_36.sql")
LOG_JUNK = (None, "", b"\xff\x00", "x" * 5_000, 10**18, -1, "{", "[]", '{"text_ref": [null, {"fragment": "x"}]}')


@pytest.mark.parametrize("dump", LLM_LOGS)
@pytest.mark.parametrize("junk", LOG_JUNK if IS_FULL_SIZE else LOG_JUNK[::2])
def test_any_value_in_any_column_of_a_log_is_read_or_refused(dump: str, junk: Any, tmp_path: Path):
    path = tmp_path / "logs.db"
    connection = sqlite3.connect(path)
    connection.executescript((DATA / dump).read_text())
    connection.commit()
    tables = [
        name
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\'"
        )
    ]
    for table in tables:
        for column in [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]:
            try:
                connection.execute(
                    f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = (SELECT max(rowid) FROM "{table}")', (junk,)
                )
            except sqlite3.Error:
                connection.rollback()
                continue
            connection.commit()
            check(read_source(SOURCES["llm"], path))
    connection.close()


@pytest.mark.parametrize("dump", LLM_LOGS)
def test_a_log_with_a_cycle_ends(dump: str, tmp_path: Path):
    path = tmp_path / "logs.db"
    with sqlite3.connect(path) as connection:
        connection.executescript((DATA / dump).read_text())
        if "36" in dump:
            connection.execute("UPDATE messages SET parent_hash = hash")
    connection.close()
    check(read_source(SOURCES["llm"], path))


def measure_peak(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def count_items(name: str, path: Path) -> int:
    return sum(1 for item in SOURCES[name].read(path) for _ in (item.messages if hasattr(item, "messages") else ()))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path):
    """Ten times as many conversations take the same memory."""
    peaks: list[int] = []
    for count in (100, 1_000) if IS_FULL_SIZE else (30, 300):
        path = tmp_path / f"{count}.json"
        with path.open("w") as stream:
            stream.write("[")
            for number in range(count):
                nodes = make_nodes({str(n): str(n - 1) if n else None for n in range(10)})
                stream.write(("," if number else "") + json.dumps(make_chatgpt_conversation(f"c{number}", nodes)))
            stream.write("]")
        peaks.append(measure_peak(lambda path=path: count_items("chatgpt", path)))
    assert peaks[1] < peaks[0] * 1.5 + 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chatgpt", "openai-jsonl", "cursor"])
def test_a_line_of_200_megabytes_is_skipped(name: str, tmp_path: Path):
    good = json.dumps(SAMPLES[name][0] if name == "chatgpt" else SAMPLES[name]).encode()
    path = tmp_path / "conversations.jsonl"
    with path.open("wb") as stream:
        stream.write(good + b'\n{"a":"')
        for _ in range(200):
            stream.write(b"x" * 1_000_000)
        stream.write(b'"}\n' + good.replace(b'_id": "c"', b'_id": "d"') + b"\n")
    read: list[ReadItems] = []
    peak = measure_peak(lambda: read.append(read_source(SOURCES[name], path)))
    check(read[0])
    assert peak < 3 * MAX_LINE_BYTES
    assert [error.item.rpartition(":")[2] for error in read[0].errors] == ["2"]
    messages = sum(len(each.messages) for each in read[0].conversations)
    assert messages == 2 * sum(
        len(each.messages)
        for each in read_source(SOURCES[name], write_sample(name, SAMPLES[name], tmp_path / "s")).conversations
    )
