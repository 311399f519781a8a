"""The scanner that splits a large JSON document into its values."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.importers import readers
from quire.importers.readers import JsonLine, JsonValue, read_json_lines, read_json_values
from quire.sources.base import SourceError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=8), JSON, max_size=5), max_size=8)


class SmallReads(io.BytesIO):
    """Returns a few bytes for each read, so that every token is cut somewhere."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self.size = size

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self.size)


def read(data: bytes | str, *, size: int = 1 << 20) -> list[JsonValue | SourceError]:
    return list(read_json_values(SmallReads(data.encode() if isinstance(data, str) else data, size), name="f"))


def values(data: bytes | str, *, size: int = 1 << 20) -> list[Any]:
    return [item.value for item in read(data, size=size) if isinstance(item, JsonValue)]


@given(objects=OBJECTS, size=st.integers(1, 40), indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_items_of_an_array_are_those_of_the_whole_document(
    objects: list[Any], size: int, indent: int | None, ascii_only: bool
):
    text = json.dumps(objects, indent=indent, ensure_ascii=ascii_only)
    assert values(text, size=size) == json.loads(text)
    assert not [item for item in read(text, size=size) if isinstance(item, SourceError)]


@given(objects=OBJECTS, size=st.integers(1, 40))
def test_values_one_after_another(objects: list[Any], size: int):
    assert values("\n".join(map(json.dumps, objects)), size=size) == objects


@given(data=st.binary(max_size=300) | st.text('[]{}",:\\ a1\n', max_size=300).map(str.encode), size=st.integers(1, 20))
def test_any_bytes_are_read_or_refused(data: bytes, size: int):
    for item in read(data, size=size):
        assert isinstance(item, SourceError) or isinstance(item.value, dict)


@pytest.mark.parametrize("item", ["null", "1", '"text"', "[1]", "true, false"])
def test_items_that_are_no_objects_are_errors(item: str):
    assert values(f'[{{"a":1}},{item},{{"b":2}}]') == [{"a": 1}, {"b": 2}]
    assert [error.reason for error in read(f'[{{"a":1}},{item},{{"b":2}}]') if isinstance(error, SourceError)] == [
        "The item is no object."
    ]


def test_a_truncated_document_gives_its_whole_items_and_an_error():
    *first, last = read('[{"a":1},{"b":"tex')
    assert [item.value for item in first if isinstance(item, JsonValue)] == [{"a": 1}]
    assert last == ("f:2", "The file ends in the middle of a value; it may not be complete.")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-be"])
def test_other_encodings_are_refused(encoding: str):
    assert read('[{"a":1}]'.encode(encoding)) == [("f:1", "The file is not UTF-8; convert it first.")]


def test_a_byte_order_mark_is_skipped():
    assert values('[{"a":"é"}]'.encode("utf-8-sig")) == [{"a": "é"}]


def test_invalid_bytes_are_an_error_of_their_item():
    assert values(b'[{"a":"\xff"},{"b":2}]') == [{"b": 2}]


def test_lone_surrogates_are_replaced():
    assert values('[{"a":"\\ud83d","b":"\\ud83d\\ude00"}]') == [{"a": "\ufffd", "b": "😀"}]


def test_not_a_number_is_read():
    (value,) = values('[{"create_time":NaN,"x":-Infinity}]')
    assert value["create_time"] != value["create_time"]


@pytest.mark.parametrize(
    ("limit", "item", "reason"),
    [
        ("MAX_VALUE_BYTES", '{"a":"' + "x" * 2_000 + '"}', "1,000 bytes"),
        ("MAX_VALUE_TOKENS", '{"a":[' + "[],[]," * 600 + "1]}", "1,000 strings"),
        ("MAX_VALUE_TOKENS", '{"a":[' + '"",' * 2_000 + "1]}", "1,000 strings"),
        ("MAX_VALUE_DEPTH", '{"a":' + "[" * 1_500 + "]" * 1_500 + "}", "1000 levels"),
    ],
)
@pytest.mark.parametrize("size", [7, 1 << 20])
def test_an_item_past_a_limit_is_skipped_and_the_next_one_is_read(
    monkeypatch: pytest.MonkeyPatch, limit: str, item: str, reason: str, size: int
):
    for name in ("MAX_VALUE_BYTES", "MAX_VALUE_TOKENS", "MAX_VALUE_DEPTH"):
        monkeypatch.setattr(readers, name, 1_000 if name == limit else 10**9)
    first, second = read(f'[{item},{{"b":2}}]', size=size)
    assert isinstance(first, SourceError)
    assert reason in first.reason
    assert isinstance(second, JsonValue)
    assert second.value == {"b": 2}


@pytest.mark.parametrize("item", ["{},", "1,", '"",', '"k":', "["])
def test_a_line_of_too_many_values_is_not_parsed(item: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readers, "MAX_PARSED_SEPARATORS", 1_000)
    many = '{"messages":[' + item * 2_000 + "{}]}"
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join([json.dumps({"text": item * 2_000}), many, '{"a":1}', ""]))
    monkeypatch.setattr(readers, "from_json", parse_short := PickyParser())
    first, second, third = read_json_lines(path)
    assert isinstance(first, JsonLine)
    assert isinstance(second, SourceError)
    assert second.item == "lines.jsonl:2"
    assert "1,000 values and keys" in second.reason
    assert isinstance(third, JsonLine)
    assert (third.number, third.value) == (3, {"a": 1})
    assert parse_short.texts == 2


class PickyParser:
    """Counts what is parsed."""

    texts = 0

    def __call__(self, data: bytes) -> Any:
        self.texts += 1
        return json.loads(data)
