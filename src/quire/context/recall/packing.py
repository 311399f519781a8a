"""Packing: the columns of a segment as bytes, and back.

Numbers take the fewest bytes that hold the largest of a column, then all of it is deflated. Of a vector the first
dimensions are kept, in four bits each: models that are made to be shortened put most of the meaning there.
"""

import json
import zlib
from collections.abc import Mapping
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import UnreadableSegment

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

DIMENSIONS = 128
"""How many dimensions of a vector are kept, at most."""

_MAGIC = b"quire-recall"
_START = Struct(f"<{len(_MAGIC)}sHII")
_KINDS = ("<u1", "<u2", "<u4", "<i8")
_STEPS = 7


def pack(format: int, about: Mapping[str, Any], columns: Mapping[str, Ints], rows: Floats | None) -> bytes:
    vectors = None if rows is None else shortened(rows)
    arrays = {name: column.astype(_kind(column)) for name, column in columns.items()}
    layout = [[name, array.dtype.str, len(array)] for name, array in arrays.items()]
    width = 0 if vectors is None else vectors.shape[1]
    head = json.dumps({"about": about, "layout": layout, "width": width}, ensure_ascii=False).encode()
    body = zlib.compress(head + b"".join(array.tobytes() for array in arrays.values()), 9)
    return _START.pack(_MAGIC, format, len(head), len(body)) + body + (b"" if vectors is None else _halves(vectors))


def unpack(format: int, data: bytes) -> tuple[dict[str, Any], dict[str, Ints], Floats | None]:
    """What was packed; `UnreadableSegment` if it was in another format, or the bytes are not whole."""
    if len(data) < _START.size or not data.startswith(_MAGIC):
        raise UnreadableSegment("These bytes are not a segment of the recall index; build it anew from the log.")
    _, found, head_size, body_size = _START.unpack_from(data)
    if found != format:
        raise UnreadableSegment(
            f"The segment has format {found}, and this version of Quire reads {format}; build it anew from the log."
        )
    rest = data[_START.size + body_size :]
    try:
        body = zlib.decompress(data[_START.size : _START.size + body_size])
        head = json.loads(body[:head_size])
        columns = _columns(body[head_size:], head["layout"])
        rows = _from_halves(rest, len(columns["seq"]), head["width"]) if head["width"] else None
    except (zlib.error, ValueError, KeyError) as exc:
        raise UnreadableSegment("The segment's bytes are damaged; build it anew from the log.") from exc
    return head["about"], columns, rows


def gaps(places: Ints, counts: Ints) -> Ints:
    """Rising runs, so many numbers each, as their first number and the steps after it."""
    steps = np.diff(places, prepend=0)
    first = np.cumsum(counts) - counts
    steps[first] = places[first]
    return steps


def without_gaps(steps: Ints, counts: Ints) -> Ints:
    total = np.cumsum(steps)
    first = np.cumsum(counts) - counts
    return total - np.repeat(total[first] - steps[first], counts)


def shortened(rows: Floats) -> Floats:
    """The leading dimensions of vectors, made of unit length again; a row of zeros stays one."""
    kept = np.asarray(rows, dtype=np.float32)[:, :DIMENSIONS]
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    return np.divide(kept, lengths, out=np.zeros_like(kept), where=lengths > 0)


def _kind(column: Ints) -> str:
    """The narrowest type that holds every number of a column."""
    if len(column) == 0:
        return _KINDS[0]
    least, most = int(column.min()), int(column.max())
    return next(kind for kind in _KINDS if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max)


def _columns(body: bytes, layout: list[tuple[str, str, int]]) -> dict[str, Ints]:
    columns: dict[str, Ints] = {}
    start = 0
    for name, kind, count in layout:
        array = np.frombuffer(body, dtype=np.dtype(kind), count=count, offset=start)
        columns[name] = array.astype(np.int64)
        start += array.nbytes
    return columns


def _halves(vectors: Floats) -> bytes:
    """Half a byte a dimension, in steps of a seventh of the row's largest."""
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    scaled = np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    steps = (np.rint(scaled * _STEPS) + _STEPS).astype(np.uint8)
    if steps.shape[1] % 2:
        steps = np.pad(steps, ((0, 0), (0, 1)), constant_values=_STEPS)
    return (steps[:, ::2] | (steps[:, 1::2] << 4)).tobytes()


def _from_halves(data: bytes, count: int, width: int) -> Floats:
    pairs = np.frombuffer(data, dtype=np.uint8).reshape(count, (width + 1) // 2)
    steps = np.empty((count, 2 * pairs.shape[1]), dtype=np.float32)
    steps[:, ::2], steps[:, 1::2] = pairs & 15, pairs >> 4
    return shortened(steps[:, :width] - _STEPS)
