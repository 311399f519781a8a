"""Property tests of the pure parsers of MCP lines, tool lists and results."""

import asyncio
import json
from collections import deque
from itertools import pairwise
from typing import Any

import anyio
import pytest
from anyio.abc import ByteReceiveStream
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CallToolResult, JSONRPCResponse

from quire.agent.mcp.payloads import convert_mcp_result, filter_valid_tools
from quire.agent.mcp.transports import InvalidLine, parse_line, read_lines
from quire.agent.tool_results import ToolResult, make_tool_error, make_tool_result
from quire.model import FilePart, ImagePart, Message, TextPart, ToolResultPart
from quire.model.base import replace_lone_surrogates


class ByteChunks(ByteReceiveStream):
    """The output of a process, chunk by chunk."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = deque(chunk for chunk in chunks if chunk)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self.chunks:
            raise anyio.EndOfStream
        return self.chunks.popleft()

    async def aclose(self) -> None: ...


def read_all_lines(*chunks: bytes, max_line_bytes: int) -> list[bytes | InvalidLine]:
    async def collect() -> list[bytes | InvalidLine]:
        return [line async for line in read_lines(ByteChunks(*chunks), max_line_bytes=max_line_bytes)]

    return asyncio.run(collect())


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_lines_are_the_same_however_the_bytes_arrive(data: bytes, cuts: list[int]):
    offsets = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    read = read_all_lines(*(data[start:end] for start, end in pairwise(offsets)), max_line_bytes=1_000)
    assert read == data.split(b"\n")[:-1]


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 20))
def test_lines_beyond_the_limit_are_dropped_once_and_the_others_returned(sizes: list[int], chunk: int):
    data = b"".join(b"x" * size + b"\n" for size in sizes)
    read = read_all_lines(*(data[start : start + chunk] for start in range(0, len(data), chunk)), max_line_bytes=20)
    assert [len(line) if isinstance(line, bytes) else None for line in read] == [
        size if size <= 20 else None for size in sizes
    ]


async def test_a_line_without_end_is_reported_at_once_with_the_request_that_it_answers():
    head = b'{"jsonrpc": "2.0", "id" : 17, "result": "' + b"x" * 100
    stream = ByteChunks(head, *[b"x" * 1_000] * 1_000, b'"}\n{}\n')
    lines = read_lines(stream, max_line_bytes=100)
    first = await anext(lines)
    assert isinstance(first, InvalidLine)
    assert first.request_id == 17
    assert len(stream.chunks) == 1_001  # nothing more was read before the report
    assert [line async for line in lines] == [b"{}"]


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_line_breaks_the_reading_of_it(line: bytes):
    parse_line(line)


@given(st.text(st.characters(), max_size=20))
def test_what_json_escapes_is_read_with_half_characters_replaced(text: str):
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"text": text}}).encode()
    message = parse_line(line)
    assert isinstance(message, JSONRPCResponse)
    assert message.result["text"] == replace_lone_surrogates(text)
    message.model_dump_json()


@given(st.lists(json_values, max_size=4))
def test_no_tool_list_breaks_its_filter(listed: list[Any]):
    valid, problems = filter_valid_tools(listed)
    assert len(valid) + len(problems) == len(listed)


@given(st.text(st.characters(exclude_categories=[])))
def test_storable_text_can_be_stored_and_changes_only_halves(text: str):
    stored = Message.parse(Message.user(replace_lone_surrogates(text)).canonical_json())
    assert stored.text == replace_lone_surrogates(text)
    if stored.text != text:
        with pytest.raises(UnicodeEncodeError):
            text.encode()


def test_two_halves_that_belong_together_are_one_character():
    assert replace_lone_surrogates("\ud83e\udd8a \ud83e") == "🦊 \ufffd"


result_parts = st.lists(
    st.builds(TextPart, text=st.text(max_size=40))
    | st.builds(ImagePart, url=st.just("data:image/png;base64," + "A" * 30))
    | st.builds(FilePart, url=st.just("data:application/pdf;base64," + "A" * 30)),
    max_size=5,
)


@given(result_parts, st.integers(1, 100))
def test_a_result_is_bounded_and_what_fits_is_untruncated(parts: list[Any], max_chars: int):
    content = make_tool_result(parts, max_chars=max_chars).content
    sizes = [len(part.text if isinstance(part, TextPart) else part.url) for part in parts]
    assert len(content) == len(parts)
    if sum(sizes) <= max_chars:
        assert content == tuple(parts)
    included = sum(size for size, before, after in zip(sizes, parts, content, strict=True) if after == before)
    assert included <= max_chars
    for size, before, after in zip(sizes, parts, content, strict=True):
        if after != before:
            assert isinstance(after, TextPart)
            assert f"{size:,} characters" in after.text
            assert len(after.text) <= max_chars + 120


def test_an_omitted_image_takes_no_space_from_what_follows():
    picture, text = ImagePart(url="data:image/png;base64," + "A" * 100), TextPart(text="short")
    assert make_tool_result([picture, text], max_chars=10).content[1] == text


def test_a_failure_is_an_error_in_the_log():
    assert make_tool_error("no").to_part("7") == ToolResultPart(
        call_id="7", content=(TextPart(text="no"),), is_error=True
    )


async def convert_result(**result: Any) -> ToolResult:
    call_result = CallToolResult.model_validate({"content": [], **result})
    return await convert_mcp_result(call_result, max_chars=1_000)


def make_text_blocks(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize(
    ("content", "structured", "expected"),
    [
        ([], {"a": 1}, ['{"a":1}']),
        ([], {"result": []}, ['{"result":[]}']),
        (make_text_blocks('{ "a": 1 }'), {"a": 1}, ['{ "a": 1 }']),
        (make_text_blocks("3 rows"), {"a": 1}, ["3 rows", '{"a":1}']),
        (make_text_blocks("x"), {"result": "x"}, ["x"]),
        (make_text_blocks("x", "2"), {"result": ["x", 2]}, ["x", "2"]),
        (make_text_blocks("x"), {"result": ["x", "y"]}, ["x", '{"result":["x","y"]}']),
        (make_text_blocks("x", "z"), {"result": ["x", "y"]}, ["x", "z", '{"result":["x","y"]}']),
        (make_text_blocks("4"), {"result": 4}, ["4"]),
        (make_text_blocks("x"), None, ["x"]),
    ],
)
async def test_structured_content_is_included_once(content: list[Any], structured: Any, expected: list[str]):
    converted = await convert_result(content=content, structuredContent=structured)
    assert [part.text for part in converted.content if isinstance(part, TextPart)] == expected


async def test_an_error_of_the_tool_stays_one():
    assert (await convert_result(content=make_text_blocks("no"), isError=True)).is_error


async def test_data_that_is_no_base64_is_a_note():
    converted = await convert_result(content=[{"type": "image", "data": "%%%", "mimeType": "image/png"}])
    assert converted.content == (TextPart(text="[omitted: image/png with invalid base64]"),)


async def test_without_a_blob_store_the_part_contains_the_data():
    converted = await convert_result(content=[{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}])
    assert converted.content == (FilePart(url="data:audio/wav;base64,AAAA", media_type="audio/wav"),)


async def test_data_beyond_the_limit_is_not_stored_as_a_blob():
    async def put_blob(data: bytes, *, media_type: str) -> str:
        raise AssertionError("stored")

    image = {"type": "image", "data": "A" * 2_000, "mimeType": "image/png"}
    call_result = CallToolResult.model_validate({"content": [image]})
    converted = await convert_mcp_result(call_result, max_chars=1_000, put_blob=put_blob)
    assert "omitted: image of 2,0" in converted.text
