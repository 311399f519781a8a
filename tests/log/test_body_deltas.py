"""Delta compression of request bodies: every body is given back, whatever its base; a repeated history costs little."""

import json
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.log.body_deltas import MAX_MATCHED_BYTES, decode_delta, encode_delta

PIECES = st.lists(
    st.sampled_from([b'{"role":"user","content":"' + bytes([97 + n]) * 40 + b'"},' for n in range(6)])
    | st.binary(max_size=80),
    max_size=12,
).map(b"".join)


@given(base=PIECES, body=PIECES)
def test_gives_every_body_back(base: bytes, body: bytes) -> None:
    assert decode_delta(base, encode_delta(base, body)) == body


@pytest.mark.parametrize("base", [b"", b"x"])
def test_gives_an_empty_body_back(base: bytes) -> None:
    assert decode_delta(base, encode_delta(base, b"")) == b""


def make_body(steps: int, *, turn: str, marked: int) -> bytes:
    """A body whose list grows, with a marker that moves, fields that change, and tools behind the list."""
    words = random.Random(1)
    items = [
        {"role": "user", "content": [{"type": "text", "text": " ".join(str(words.random()) for _ in range(40))}]}
        for _ in range(steps)
    ]
    items[marked]["cache_control"] = {"type": "ephemeral"}  # type: ignore[assignment]
    tools = [{"name": f"tool {n}", "description": str(words.random()) * 20} for n in range(30)]
    return json.dumps({"turn": turn, "messages": items, "tools": tools, "id": turn}).encode()


def test_repeats_of_the_history_take_little_space() -> None:
    base, body = make_body(200, turn="one", marked=199), make_body(201, turn="other", marked=200)
    delta = encode_delta(base, body)
    assert decode_delta(base, delta) == body
    assert len(delta) < len(body) / 100


@pytest.mark.parametrize("pattern", [b'{"', b'{"' + b"a" * 30, b"\x00"])
def test_time_follows_the_size_whatever_repeats(pattern: bytes) -> None:
    def measure(size: int) -> float:
        base = b"A" + pattern * (size // len(pattern)) + b"B"
        body = b"C" + pattern * (size // len(pattern)) + b"D"
        start = time.process_time()
        assert decode_delta(base, encode_delta(base, body)) == body
        return time.process_time() - start

    small = max(min(measure(MAX_MATCHED_BYTES // 16) for _ in range(3)), 0.001)
    assert measure(MAX_MATCHED_BYTES - 2) < 100 * small


@pytest.mark.parametrize("damage", [b"", b"\x00" * 3, b"\x00" * 40, b"\xff" * 40])
def test_other_bytes_are_refused(damage: bytes) -> None:
    with pytest.raises(ValueError, match="not a delta"):
        decode_delta(b"base", damage)
