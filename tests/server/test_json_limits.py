"""The number of JSON values in a body is limited before it is parsed."""

import json
import time
from unittest.mock import patch

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.wire import json_limits
from quire.wire.json_limits import MAX_JSON_SEPARATORS, JsonLimit, JsonSeparatorCounter, exceeds_json_limit

values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\{[,:é'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='k"\\,'), inner),
)


def count_separators(value: object) -> int:
    """As JSON has them: an opening bracket, and commas and colons between items."""
    if isinstance(value, dict):
        fields = value.values()
        return 1 + max(0, 2 * len(value) - 1) + sum(map(count_separators, fields))
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(count_separators, value))
    return 0


@given(values, st.integers(1, 9), st.booleans())
def test_separators_outside_of_strings_are_counted_in_any_chunks(value: object, chunk_bytes: int, ascii: bool):
    data = json.dumps(value, ensure_ascii=ascii).encode()
    counter = JsonSeparatorCounter()
    for start in range(0, len(data), chunk_bytes):
        counter.feed(data[start : start + chunk_bytes])
        counter.feed(b"")
    assert counter.count == count_separators(value)


@given(values, st.integers(1, 9), st.integers(0, 20))
def test_the_limit_counts_as_exactly_in_any_chunks(value: object, chunk_bytes: int, max_separators: int):
    data, limit = json.dumps(value).encode(), JsonLimit()
    with patch.object(json_limits, "MAX_JSON_SEPARATORS", max_separators):
        exceeded = [limit.feed(data[start : start + chunk_bytes]) for start in range(0, len(data), chunk_bytes)]
    assert exceeded[-1] == (count_separators(value) > max_separators)


def test_a_text_at_the_limit_is_accepted():
    assert not exceeds_json_limit(b"[" * MAX_JSON_SEPARATORS)
    assert exceeds_json_limit(b"[" * (MAX_JSON_SEPARATORS + 1))
    assert not exceeds_json_limit(json.dumps("{[,:" * MAX_JSON_SEPARATORS).encode())


@pytest.mark.parametrize("unit", [b'"",', b'\\"', b"\\\\", b"{},", b" "], ids=repr)
@pytest.mark.parametrize("start", [b"", b'"'], ids=["values", "string"])
def test_twice_the_text_takes_about_twice_the_time(unit: bytes, start: bytes):
    def measure_seconds(size: int) -> float:
        data = start + unit * (size // len(unit))
        started_at = time.thread_time()
        JsonSeparatorCounter().feed(data)
        return time.thread_time() - started_at

    short, long = (min(measure_seconds(size) for _ in range(5)) + 0.001 for size in (500_000, 1_000_000))
    assert long / short < 3


@pytest.mark.parametrize(
    ("path", "name"), [("/api/conversations", "title"), ("/v1/chat/completions", "x")], ids=["api", "gateway"]
)
async def test_a_body_with_too_many_values_is_refused(client: httpx2.AsyncClient, path: str, name: str):
    refused = await client.post(path, json={name: [0] * (MAX_JSON_SEPARATORS + 1)})
    assert (refused.status_code, refused.json()["code"]) == (413, "request_too_large")
    assert "200,000 JSON values" in refused.json()["detail"]
    text = await client.post(path, json={name: "," * (MAX_JSON_SEPARATORS + 1)})
    assert text.status_code != 413


async def test_a_file_may_have_any_number_of_separators(client: httpx2.AsyncClient):
    stored = await client.post("/api/blobs", content=b"[" * (MAX_JSON_SEPARATORS + 1))
    assert stored.status_code == 201
