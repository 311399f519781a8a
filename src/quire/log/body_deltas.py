"""Delta compression of request bodies: a body is stored as what differs from an earlier one of its conversation.

Agents send the whole history with every step, so two consecutive bodies differ by a few hundred bytes near the end. A
delta copies ranges of the base and has the other bytes as literals. These are deflated with the text of the base around
the first difference as dictionary, because a new message resembles the ones before it.
"""

import re
import struct
import zlib
from collections.abc import Callable
from typing import AnyStr

MIN_COPY_BYTES = 32
"""Shorter ranges are literals: a copy takes about as much space."""
MAX_MATCHED_BYTES = 4 * 1024 * 1024
"""Longer changed ranges are literals as a whole, so that the time to find copies in them has a bound."""
DICTIONARY_BYTES = 4 * 1024
"""Bytes of the base before and after the first difference. More takes longer and saves little."""

_NUMBER = struct.Struct("<I")
_STEP = struct.Struct("<III")
"""Length of the literal, then position and length of the copy that follows it."""
_CHUNK_START = re.compile(rb'\{"[\x00-\xff]{30}')
"""Where objects of JSON begin. A match has `MIN_COPY_BYTES`, which also bounds the number of chunks."""


def encode_delta(base: bytes, body: bytes) -> bytes:
    """Encodes a body for `decode_delta` with the same base; an empty base gives a compressed copy."""
    prefix, body_end = find_change(base, body)
    suffix = len(body) - body_end
    base_end = len(base) - suffix
    steps: list[bytes] = []
    literals: list[bytes] = []
    position = prefix
    for start, source, length in _find_copies(base, body, prefix, base_end, body_end):
        steps.append(_STEP.pack(start - position, source, length))
        literals.append(body[position:start])
        position = start + length
    steps.append(_STEP.pack(body_end - position, base_end, suffix))
    literals.append(body[position:body_end])
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS, zdict=_select_dictionary(base, prefix))
    packed = deflater.compress(b"".join((_NUMBER.pack(len(steps)), *steps, *literals)))
    return b"".join((_NUMBER.pack(prefix), packed, deflater.flush()))


def decode_delta(base: bytes, delta: bytes) -> bytes:
    """Decodes a body. Raises `ValueError` if the bytes are no delta."""
    try:
        (prefix,) = _NUMBER.unpack_from(delta)
        if prefix > len(base):
            raise ValueError("not a delta: its base is longer")
        inflater = zlib.decompressobj(wbits=-zlib.MAX_WBITS, zdict=_select_dictionary(base, prefix))
        unpacked = inflater.decompress(delta[_NUMBER.size :])
        (count,) = _NUMBER.unpack_from(unpacked)
        position = _NUMBER.size + count * _STEP.size
        parts = [base[:prefix]]
        for literal, source, length in _STEP.iter_unpack(unpacked[_NUMBER.size : position]):
            parts += (unpacked[position : position + literal], base[source : source + length])
            position += literal
    except (struct.error, zlib.error) as error:
        raise ValueError(f"not a delta: {error}") from error
    return b"".join(parts)


def find_change(base: AnyStr, body: AnyStr) -> tuple[int, int]:
    """The range of the body between the start and the end that it has in common with the base."""
    shorter = min(len(base), len(body))
    prefix = _count_equal(shorter, lambda low, high: base[low:high] == body[low:high])
    suffix = _count_equal(
        shorter - prefix,
        lambda low, high: base[len(base) - high : len(base) - low] == body[len(body) - high : len(body) - low],
    )
    return prefix, len(body) - suffix


def _select_dictionary(base: bytes, prefix: int) -> bytes:
    return base[max(0, prefix - DICTIONARY_BYTES) : prefix + DICTIONARY_BYTES]


def _find_copies(base: bytes, body: bytes, prefix: int, base_end: int, body_end: int) -> list[tuple[int, int, int]]:
    """Ranges of the changed part of the body that are in the changed part of the base: position, source, length."""
    if min(base_end, body_end) - prefix < MIN_COPY_BYTES or max(base_end, body_end) - prefix > MAX_MATCHED_BYTES:
        return []
    sources: dict[bytes, int] = {}
    for match in _CHUNK_START.finditer(base, prefix, base_end):
        sources.setdefault(match[0], match.start())
    copies: list[tuple[int, int, int]] = []
    end = prefix
    for match in _CHUNK_START.finditer(body, prefix, body_end):
        source = sources.get(match[0])
        if source is not None and match.start() >= end:
            start = match.start()

            def is_equal(low: int, high: int, source: int = source, start: int = start) -> bool:
                return base[source + low : source + high] == body[start + low : start + high]

            length = _count_equal(min(base_end - source, body_end - start), is_equal)
            copies.append((start, source, length))
            end = start + length
    return copies


def _count_equal(limit: int, is_equal: Callable[[int, int], bool]) -> int:
    """Length of the longest equal range from 0 on, at most `limit`. The ranges compared grow, so that the time follows
    the result."""
    low, size = 0, 256
    while low < limit and is_equal(low, min(low + size, limit)):
        low, size = min(low + size, limit), size * 2
    high = min(low + size, limit)
    while low < high:
        middle = (low + high + 1) // 2
        if is_equal(low, middle):
            low = middle
        else:
            high = middle - 1
    return low
