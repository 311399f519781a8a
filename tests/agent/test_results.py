"""Lines, listings and results of servers, without a server: what is pure is tested with everything there is."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CallToolResult, JSONRPCResponse

from quire.agent.lines import Garbage, Lines, parsed
from quire.agent.offers import sifted
from quire.agent.outcomes import Outcome, failure, outcome, storable
from quire.agent.results import outcome_of
from quire.model import FilePart, ImagePart, Message, TextPart, ToolResultPart


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_lines_are_the_same_however_the_bytes_arrive(data: bytes, cuts: list[int]):
    lines = Lines(largest=1_000)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    read = [line for start, end in pairwise(places) for line in lines.feed(data[start:end])]
    assert read == data.split(b"\n")[:-1]


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 20))
def test_lines_beyond_the_limit_are_dropped_once_and_the_others_kept(sizes: list[int], chunk: int):
    data = b"".join(b"x" * size + b"\n" for size in sizes)
    lines = Lines(largest=20)
    read = [line for start in range(0, len(data), chunk) for line in lines.feed(data[start : start + chunk])]
    assert [len(line) if isinstance(line, bytes) else None for line in read] == [
        size if size <= 20 else None for size in sizes
    ]


def test_a_line_without_end_is_said_at_once_with_the_request_that_it_answers():
    lines = Lines(largest=100)
    first = list(lines.feed(b'{"jsonrpc": "2.0", "id" : 17, "result": "' + b"x" * 100))
    assert [line.answers for line in first if isinstance(line, Garbage)] == [17]
    assert list(lines.feed(b"x" * 1_000_000)) == []
    assert list(lines.feed(b'"}\n{}\n')) == [b"{}"]


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_line_breaks_the_reading_of_it(line: bytes):
    parsed(line)


@given(st.text(st.characters(), max_size=20))
def test_what_json_escapes_is_read_with_half_characters_replaced(text: str):
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"text": text}}).encode()
    message = parsed(line)
    assert isinstance(message, JSONRPCResponse)
    assert message.result["text"] == storable(text)
    message.model_dump_json()


@given(st.lists(json_values, max_size=4))
def test_no_listing_breaks_the_sifting_of_it(listed: list[Any]):
    kept, problems = sifted(listed)
    assert len(kept) + len(problems) == len(listed)


@given(st.text(st.characters(exclude_categories=[])))
def test_storable_text_can_be_stored_and_changes_only_halves(text: str):
    stored = Message.parse(Message.user(storable(text)).canonical())
    assert stored.text == storable(text)
    if stored.text != text:
        with pytest.raises(UnicodeEncodeError):
            text.encode()


def test_two_halves_that_belong_together_are_one_character():
    assert storable("\ud83e\udd8a \ud83e") == "🦊 \ufffd"


parts = st.lists(
    st.builds(TextPart, text=st.text(max_size=40))
    | st.builds(ImagePart, url=st.just("data:image/png;base64," + "A" * 30))
    | st.builds(FilePart, url=st.just("data:application/pdf;base64," + "A" * 30)),
    max_size=5,
)


@given(parts, st.integers(1, 100))
def test_what_is_kept_of_a_result_is_bounded_and_what_fits_is_whole(given: list[Any], largest: int):
    kept = outcome(given, largest=largest).content
    sizes = [len(part.text if isinstance(part, TextPart) else part.url) for part in given]
    assert len(kept) == len(given)
    if sum(sizes) <= largest:
        assert kept == tuple(given)
    whole = sum(size for size, before, after in zip(sizes, given, kept, strict=True) if after == before)
    assert whole <= largest
    for size, before, after in zip(sizes, given, kept, strict=True):
        if after != before:
            assert isinstance(after, TextPart)
            assert f"{size:,} characters" in after.text
            assert len(after.text) <= largest + 120


def test_a_picture_that_is_left_out_takes_no_room_from_what_follows():
    picture, text = ImagePart(url="data:image/png;base64," + "A" * 100), TextPart(text="short")
    assert outcome([picture, text], largest=10).content[1] == text


def test_a_failure_is_an_error_in_the_log():
    assert failure("no").part("7") == ToolResultPart(call_id="7", content=(TextPart(text="no"),), is_error=True)


async def read(**result: Any) -> Outcome:
    given = CallToolResult.model_validate({"content": [], **result})
    return await outcome_of(given, largest=1_000)


def texts(*given: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in given]


@pytest.mark.parametrize(
    ("content", "structured", "said"),
    [
        ([], {"a": 1}, ['{"a":1}']),
        ([], {"result": []}, ['{"result":[]}']),
        (texts('{ "a": 1 }'), {"a": 1}, ['{ "a": 1 }']),
        (texts("3 rows"), {"a": 1}, ["3 rows", '{"a":1}']),
        (texts("x"), {"result": "x"}, ["x"]),
        (texts("x", "2"), {"result": ["x", 2]}, ["x", "2"]),
        (texts("x"), {"result": ["x", "y"]}, ["x", '{"result":["x","y"]}']),
        (texts("x", "z"), {"result": ["x", "y"]}, ["x", "z", '{"result":["x","y"]}']),
        (texts("4"), {"result": 4}, ["4"]),
        (texts("x"), None, ["x"]),
    ],
)
async def test_structured_content_is_said_once(content: list[Any], structured: Any, said: list[str]):
    got = await read(content=content, structuredContent=structured)
    assert [part.text for part in got.content if isinstance(part, TextPart)] == said


async def test_an_error_of_the_tool_stays_one():
    assert (await read(content=texts("no"), isError=True)).is_error


async def test_data_that_is_no_base64_is_a_note():
    got = await read(content=[{"type": "image", "data": "%%%", "mimeType": "image/png"}])
    assert got.content == (TextPart(text="[left out: image/png that is no base64]"),)


async def test_without_a_keeper_data_stands_in_the_part():
    got = await read(content=[{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}])
    assert got.content == (FilePart(url="data:audio/wav;base64,AAAA", media_type="audio/wav"),)


async def test_data_beyond_the_limit_is_not_handed_to_the_keeper():
    async def keep(data: bytes, *, media_type: str) -> str:
        raise AssertionError("kept")

    image = {"type": "image", "data": "A" * 2_000, "mimeType": "image/png"}
    given = CallToolResult.model_validate({"content": [image]})
    got = await outcome_of(given, largest=1_000, keep=keep)
    assert "left out: a image of 2,0" in got.text
