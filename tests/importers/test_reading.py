"""Lines, times and trees of unknown origin."""

import json
import sqlite3
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from importers.transcript_files import write_lines
from quire.importers import readers
from quire.importers.llm_logs import LlmSource
from quire.importers.message_trees import order_tree
from quire.importers.readers import JsonLine, parse_json, parse_json_lines, read_json_lines
from quire.importers.source_fields import parse_time
from quire.model import Message
from quire.sources.base import MAX_ERROR_ITEM_CHARS, MAX_ERROR_REASON_CHARS, FileWatcher, SourceError, SourceMessage


def parse(data: bytes) -> list[JsonLine | SourceError]:
    """The lines without their places in the file, each of which holds its line."""
    lines: list[JsonLine | SourceError] = []
    for line in parse_json_lines(BytesIO(data), name="f"):
        if isinstance(line, JsonLine):
            assert parse_json(data[line.start : line.end]) == line.value
            line = line._replace(start=0, end=0)
        lines.append(line)
    return lines


def test_each_line_that_fails_is_an_error_and_the_others_are_read():
    read = parse(b'{"a":1}\n\nno\n[]\n{"b":"\xff"}\n{"c":3}\n')
    assert [each.item for each in read if isinstance(each, SourceError)] == ["f:3", "f:4", "f:5"]
    assert [each.value for each in read if isinstance(each, JsonLine)] == [{"a": 1}, {"c": 3}]


def test_a_line_that_is_being_written_is_skipped():
    assert parse(b'{"a":1}\n{"b":') == [JsonLine(1, {"a": 1})]
    assert parse(b'{"a":1}\n{"b":2}') == [JsonLine(1, {"a": 1}), JsonLine(2, {"b": 2})]


def test_a_longer_line_is_skipped_without_being_loaded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 20)
    error, line = parse(b'{"a":"' + b"x" * 3_000_000 + b'"}\n{"b":1}\n')
    assert isinstance(error, SourceError)
    assert "more than 20 bytes" in error.reason
    assert line == JsonLine(2, {"b": 1})


def test_objects_that_were_written_on_one_line_are_read():
    line = '{"a":"é}{"}{"b":{"c":[]}}\n'.encode()
    assert parse(line + b'{"e":2}{"f":') == [JsonLine(1, {"a": "é}{"}), JsonLine(1, {"b": {"c": []}})]
    [error] = parse(b'{"a":1}{"b":nothing}\n')
    assert isinstance(error, SourceError)


def test_deep_nesting_is_an_error():
    [error] = parse(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")
    assert isinstance(error, SourceError)
    [error] = parse(b'{"a":"\\ud800","b":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")
    assert isinstance(error, SourceError)


def test_lone_surrogates_are_replaced_and_pairs_are_joined():
    assert parse(b'{"a":"x\\ud83d","b":"\\ud83d\\ude00"}\n') == [JsonLine(1, {"a": "x\ufffd", "b": "😀"})]


@given(st.binary(max_size=200))
def test_any_bytes_are_read(data: bytes):
    for each in parse(data):
        assert isinstance(each, JsonLine | SourceError)


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(), max_size=3), max_size=5))
def test_what_was_written_is_read(values: list[dict[str, object]]):
    data = "".join(json.dumps(value) + "\n" for value in values).encode()
    assert parse(data) == [JsonLine(number, value) for number, value in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("value", "micros"),
    [
        ("2026-01-02T03:04:05.678Z", 1_767_323_045_678_000),
        ("2026-01-02T03:04:05", 1_767_323_045_000_000),
        ("2026-01-02T05:04:05+02:00", 1_767_323_045_000_000),
        (1_767_323_045, 1_767_323_045_000_000),
        (1_767_323_045.5, 1_767_323_045_500_000),
        (1_767_323_045_678, 1_767_323_045_678_000),
        (0, 0), (None, None), (True, None), ("soon", None), (-1, None), (10**400, None), (float("nan"), None),
        ("0001-01-01T00:00:00Z", None), ([], None),
    ],
)  # fmt: skip
def test_times_of_every_form(value: object, micros: int | None):
    assert parse_time(value) == micros


def say(id_: str, parent: str | None) -> SourceMessage:
    return SourceMessage(id_, parent, Message.user(id_))


def test_a_tree_is_ordered_with_the_path_to_the_leaf_first():
    messages = [say("a", None), say("b", "a"), say("c", "a"), say("d", "c"), say("e", "missing")]
    ordered = list(order_tree(messages, leaf="d"))
    assert [(each.id, each.parent) for each in ordered if isinstance(each, SourceMessage)] == [
        ("a", None), ("c", "a"), ("d", "c"), ("b", "a"), ("e", None),
    ]  # fmt: skip


def test_cycles_and_repeated_ids_are_errors():
    messages = [say("a", None), say("x", "y"), say("y", "x"), say("a", "a")]
    ordered = list(order_tree(messages, leaf="x"))
    assert [each.id for each in ordered if isinstance(each, SourceMessage)] == ["a"]
    assert {each.item for each in ordered if isinstance(each, SourceError)} == {"a", "x", "y"}


@given(st.lists(st.tuples(st.integers(0, 8), st.none() | st.integers(0, 8)), max_size=12), st.integers(0, 8))
def test_any_graph_is_ordered_with_parents_first(edges: list[tuple[int, int | None]], leaf: int):
    messages = [say(str(id_), None if parent is None else str(parent)) for id_, parent in edges]
    seen: set[str] = set()
    for each in order_tree(messages, leaf=str(leaf)):
        if isinstance(each, SourceMessage):
            assert each.parent is None or each.parent in seen
            assert each.id not in seen
            seen.add(each.id)


def test_the_texts_of_an_error_are_bounded():
    error = SourceError.of("x" * 10_000, "y" * 10_000)
    assert (len(error.item), len(error.reason)) == (MAX_ERROR_ITEM_CHARS, MAX_ERROR_REASON_CHARS)


def test_a_watcher_finds_new_changed_and_settled_files(tmp_path: Path):
    from quire.importers.codex import CodexSource

    watcher = FileWatcher(CodexSource(), [tmp_path])
    assert watcher.find_changed() == []
    path = write_lines(tmp_path / "rollout-1.jsonl", [{"a": 1}], age_seconds=0)
    assert watcher.find_changed() == [path]
    assert watcher.find_changed() == []
    write_lines(path, [{"a": 1}])
    assert watcher.find_changed() == [path]
    write_lines(path, [{"a": 1}, {"b": 2}])
    assert watcher.find_changed() == [path]
    assert [each.number for each in read_json_lines(path) if isinstance(each, JsonLine)] == [1, 2]


def test_a_watcher_sees_what_is_in_the_write_ahead_log_of_a_database(tmp_path: Path):
    path = tmp_path / "logs.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE entries (id)")
    watcher = FileWatcher(LlmSource(), [path])
    assert watcher.find_changed() == [path]
    with connection:
        connection.execute("INSERT INTO entries VALUES (1)")
    assert watcher.find_changed() == [path]
    assert watcher.find_changed() == []
    connection.close()
