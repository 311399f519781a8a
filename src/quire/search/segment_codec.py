"""Codec of the message index: a segment's columns and its terms, each as one blob.

Integers take the fewest bytes that hold the largest of their column, then all columns are deflated. Vectors and hashes
follow uncompressed: nothing would be saved.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from quire.errors import UnreadableSegment
from quire.search.postings import FORMAT_VERSION
from quire.search.segments import COLUMN_NAMES, IntArray, MessageColumns, MessageTerms, Segment
from quire.search.vectors import packed_width

_MAGIC = b"QSEG"
_HEADER = struct.Struct(f"<{len(_MAGIC)}sHII")
_INT_TYPES = ("<u1", "<u2", "<u4", "<i8")
_COMPRESSION_LEVEL = 1
"""The fastest: a higher level saves a tenth of the bytes for several times the time."""


def encode_columns(columns: MessageColumns) -> bytes:
    arrays = {name: getattr(columns, name) for name in COLUMN_NAMES}
    arrays |= {name: np.diff(arrays[name].astype(np.int64), prepend=0) for name in ("seq", "at")}
    metadata = {
        "speaker_names": columns.speaker_names,
        "embedder": columns.embedder,
        "dimensions": columns.dimensions,
    }
    vectors = b"" if columns.packed_vectors is None else columns.packed_vectors.tobytes()
    return _encode(metadata, arrays) + vectors


def decode_columns(data: bytes) -> MessageColumns:
    """Raises `UnreadableSegment` for another version or truncated bytes."""
    metadata, arrays, rest = _decode(data, "seq")
    count, dimensions = len(arrays["seq"]), metadata["dimensions"]
    packed = None
    if dimensions:
        if len(rest) != count * packed_width(dimensions):
            raise _damaged()
        packed = np.frombuffer(rest, dtype=np.uint8).reshape(count, packed_width(dimensions))
    arrays |= {name: np.cumsum(arrays[name], dtype=np.int64) for name in ("seq", "at")}
    return MessageColumns(
        **arrays,
        speaker_names=tuple(metadata["speaker_names"]),
        embedder=metadata["embedder"],
        dimensions=dimensions,
        packed_vectors=packed,
    )


def encode_terms(terms: MessageTerms) -> bytes:
    # The postings of each term are sorted: its first passage, then the differences.
    steps = np.diff(terms.postings.astype(np.int64), prepend=0)
    first = np.cumsum(terms.posting_counts, dtype=np.int64) - terms.posting_counts
    steps[first] = terms.postings[first]
    arrays = {"passage_counts": terms.passage_counts, "posting_counts": terms.posting_counts, "postings": steps}
    hashes = terms.term_hashes.astype("<u4").tobytes()
    return _encode({}, arrays) + hashes


def decode_terms(data: bytes) -> MessageTerms:
    """Raises `UnreadableSegment` for another version or truncated bytes."""
    _, arrays, rest = _decode(data, "postings")
    counts = arrays["posting_counts"]
    if len(rest) != 4 * len(counts):
        raise _damaged()
    deltas = arrays["postings"]
    total = np.cumsum(deltas, dtype=np.int64)
    first = np.cumsum(counts, dtype=np.int64) - counts
    postings = total - np.repeat(total[first] - deltas[first], counts)
    return MessageTerms(
        passage_counts=arrays["passage_counts"],
        term_hashes=np.frombuffer(rest, dtype="<u4"),
        posting_counts=counts,
        postings=postings.astype(_narrowest_type(postings)),
    )


def encode_segment(segment: Segment) -> tuple[bytes, bytes]:
    """The blobs of a segment: columns, and terms."""
    return encode_columns(segment.columns), encode_terms(segment.terms)


def decode_segment(columns: bytes, terms: bytes) -> Segment:
    """Raises `UnreadableSegment` for another version or truncated bytes."""
    return Segment(decode_columns(columns), decode_terms(terms))


def _encode(metadata: Mapping[str, Any], columns: Mapping[str, IntArray]) -> bytes:
    arrays = {name: column.astype(_narrowest_type(column)) for name, column in columns.items()}
    layout = [[name, array.dtype.str, len(array)] for name, array in arrays.items()]
    head = json.dumps({"metadata": metadata, "layout": layout}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    body = zlib.compress(head + b"".join(array.tobytes() for array in arrays.values()), _COMPRESSION_LEVEL)
    return _HEADER.pack(_MAGIC, FORMAT_VERSION, len(head), len(body)) + body


def _decode(data: bytes, column: str) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Metadata, columns, and the bytes after them; `column` is one that only this blob of a segment has."""
    try:
        magic, version, head_size, body_size = _HEADER.unpack_from(data)
    except struct.error as exc:
        raise _damaged() from exc
    if magic != _MAGIC:
        raise UnreadableSegment("These bytes are not a segment of the message index; rebuild it from the log.")
    if version != FORMAT_VERSION:
        raise UnreadableSegment(
            f"The segment has format {version}, but this version of Quire reads {FORMAT_VERSION}; "
            "rebuild it from the log."
        )
    end = _HEADER.size + body_size
    try:
        body = zlib.decompress(data[_HEADER.size : end])
        head = json.loads(body[:head_size])
        arrays: dict[str, IntArray] = {}
        start = head_size
        for name, kind, count in head["layout"]:
            arrays[name] = np.frombuffer(body, dtype=np.dtype(kind), count=count, offset=start)
            start += arrays[name].nbytes
        if column not in arrays:
            raise KeyError(column)
    except (zlib.error, ValueError, KeyError, TypeError) as exc:
        raise _damaged() from exc
    return head["metadata"], arrays, data[end:]


def _damaged() -> UnreadableSegment:
    return UnreadableSegment("The segment's bytes are damaged; rebuild it from the log.")


def _narrowest_type(column: IntArray) -> str:
    """Narrowest integer type that holds every number of a column."""
    if len(column) == 0:
        return _INT_TYPES[0]
    lowest, highest = int(column.min()), int(column.max())
    return next(kind for kind in _INT_TYPES if np.iinfo(kind).min <= lowest and highest <= np.iinfo(kind).max)
