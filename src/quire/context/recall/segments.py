"""Segments of the recall index: an inverted index and feature columns of a run of messages, and their codec.

Integers take the fewest bytes that hold the largest of their column, then all columns are deflated. Of a vector the
leading dimensions are stored, in four bits each: embedding models that are trained to be truncated put most of the
information there.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from struct import Struct
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quire.context.recall.message_features import extract_features
from quire.context.recall.passages import split_passages
from quire.context.recall.tokenizer import tokenize
from quire.errors import UnreadableSegment
from quire.model.lazy import lazy_property

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]

SEGMENT_FORMAT_VERSION = 2
"""Raise it with every change of the stored columns, the features or the tokenizer; older segments are then rebuilt."""
ROLES = ("user", "assistant", "tool", "system")
MAX_EMBEDDED_WORDS = 80
"""Words of a message that are embedded: the mean over more of them carries less information."""
MAX_EMBEDDED_CHARS = 1_000
"""Characters of a message that are embedded."""
MAX_VECTOR_DIMENSIONS = 128
"""Leading dimensions of a vector that are stored."""

_MESSAGE_COLUMNS = (
    "seq", "at", "tokens", "roles", "speaker_ids", "first_person", "time_words", "digits", "directives",
    "passage_counts",
)  # fmt: skip
_MAGIC = b"quire-recall"
_HEADER = Struct(f"<{len(_MAGIC)}sHII")
_INT_TYPES = ("<u1", "<u2", "<u4", "<i8")
_NIBBLE_SCALE = 7


class SegmentEmbedder(Protocol):
    @property
    def name(self) -> str: ...

    def embed(self, texts: Sequence[str]) -> FloatArray: ...


class IndexedMessage(NamedTuple):
    """A message as the recall index takes it: `at` in microseconds since 1970, `name` of the speaker, if any."""

    seq: int
    role: str
    name: str | None
    at: int
    text: str
    tokens: int


@dataclass(frozen=True)
class RecallSegment:
    """Messages in order of `seq`, and an inverted index from each term to the passages that contain it, in order."""

    seq: IntArray
    at: IntArray
    tokens: IntArray
    roles: IntArray
    speaker_ids: IntArray
    """Positions in `speaker_names`, from 1; 0 for a message without a name."""
    first_person: IntArray
    time_words: IntArray
    digits: IntArray
    directives: IntArray
    passage_counts: IntArray
    """Number of passages of each message."""
    speaker_names: tuple[str, ...]
    vocabulary: tuple[str, ...]
    posting_counts: IntArray
    """Number of passages with each term of the vocabulary."""
    postings: IntArray
    """Those passages, term by term."""
    embedder: str | None
    vectors: FloatArray | None

    @lazy_property
    def posting_offsets(self) -> IntArray:
        """Start of each term's passages in `postings`, and the end."""
        return np.concatenate([[0], np.cumsum(self.posting_counts)])

    @lazy_property
    def term_ids(self) -> dict[str, int]:
        """Position of each term in the vocabulary."""
        return {term: term_id for term_id, term in enumerate(self.vocabulary)}

    @lazy_property
    def passage_rows(self) -> IntArray:
        """Row of the message that each passage belongs to."""
        return np.repeat(np.arange(len(self.seq)), self.passage_counts)

    def find_postings(self, term: str) -> IntArray | None:
        """Passages that contain a term; None for an unknown term."""
        term_id = self.term_ids.get(term)
        if term_id is None:
            return None
        return self.postings[self.posting_offsets[term_id] : self.posting_offsets[term_id + 1]]


def build_segment(messages: Iterable[IndexedMessage], *, embedder: SegmentEmbedder | None = None) -> bytes:
    """Encodes messages, which must come in order of `seq`, as a segment."""
    rows = list(messages)
    names = sorted({each.name for each in rows if each.name})
    passages = [split_passages(each.text) for each in rows]
    vocabulary, counts, postings = _build_postings(chain.from_iterable(passages))
    columns = _build_columns(rows, speaker_names=names) | {
        "passage_counts": _to_ints(map(len, passages)),
        "posting_counts": counts,
        "postings": delta_encode(postings, counts),
    }
    vectors = embedder.embed([_embedding_text(each.text) for each in rows]) if embedder and rows else None
    metadata = {
        "speaker_names": names,
        "vocabulary": vocabulary,
        "embedder": embedder.name if embedder and rows else None,
    }
    return pack_columns(SEGMENT_FORMAT_VERSION, metadata, columns, vectors)


def decode_segment(data: bytes) -> RecallSegment:
    """Decodes a segment; raises `UnreadableSegment` if another format version wrote it or the bytes are damaged."""
    metadata, columns, vectors = unpack_columns(SEGMENT_FORMAT_VERSION, data)
    columns["seq"], columns["at"] = np.cumsum(columns["seq"]), np.cumsum(columns["at"])
    columns["postings"] = delta_decode(columns["postings"], columns["posting_counts"])
    return RecallSegment(
        **columns,
        speaker_names=tuple(metadata["speaker_names"]),
        vocabulary=tuple(metadata["vocabulary"]),
        embedder=metadata["embedder"],
        vectors=vectors,
    )


def truncate_segment(segment: RecallSegment, *, last_seq: int) -> RecallSegment:
    """Drops the messages after `last_seq`, for a branch that forks in the middle of the segment."""
    length = int(np.searchsorted(segment.seq, last_seq, side="right"))
    if length == len(segment.seq):
        return segment
    within = segment.postings < int(segment.passage_counts[:length].sum())
    counts = np.diff(np.concatenate([[0], np.cumsum(within)])[segment.posting_offsets])
    return replace(
        segment,
        **{name: getattr(segment, name)[:length] for name in _MESSAGE_COLUMNS},
        vocabulary=tuple(term for term, count in zip(segment.vocabulary, counts, strict=True) if count),
        posting_counts=counts[counts > 0],
        postings=segment.postings[within],
        vectors=None if segment.vectors is None else segment.vectors[:length],
    )


def pack_columns(
    version: int, metadata: Mapping[str, Any], columns: Mapping[str, IntArray], rows: FloatArray | None
) -> bytes:
    vectors = None if rows is None else truncate_vectors(rows)
    arrays = {name: column.astype(_narrowest_type(column)) for name, column in columns.items()}
    layout = [[name, array.dtype.str, len(array)] for name, array in arrays.items()]
    width = 0 if vectors is None else vectors.shape[1]
    head = json.dumps({"metadata": metadata, "layout": layout, "width": width}, ensure_ascii=False).encode()
    body = zlib.compress(head + b"".join(array.tobytes() for array in arrays.values()), 9)
    return (
        _HEADER.pack(_MAGIC, version, len(head), len(body))
        + body
        + (b"" if vectors is None else _pack_nibbles(vectors))
    )


def unpack_columns(version: int, data: bytes) -> tuple[dict[str, Any], dict[str, IntArray], FloatArray | None]:
    """Metadata, columns and vectors; raises `UnreadableSegment` for another version or truncated bytes."""
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise UnreadableSegment("These bytes are not a segment of the recall index; rebuild it from the log.")
    _, found, head_size, body_size = _HEADER.unpack_from(data)
    if found != version:
        raise UnreadableSegment(
            f"The segment has format {found}, but this version of Quire reads {version}; rebuild it from the log."
        )
    rest = data[_HEADER.size + body_size :]
    try:
        body = zlib.decompress(data[_HEADER.size : _HEADER.size + body_size])
        head = json.loads(body[:head_size])
        columns = _decode_columns(body[head_size:], head["layout"])
        rows = _unpack_nibbles(rest, len(columns["seq"]), head["width"]) if head["width"] else None
    except (zlib.error, ValueError, KeyError) as exc:
        raise UnreadableSegment("The segment's bytes are damaged; rebuild it from the log.") from exc
    return head["metadata"], columns, rows


def delta_encode(values: IntArray, counts: IntArray) -> IntArray:
    """Delta-encodes sorted runs of these lengths: the first number of each run, then the differences."""
    steps = np.diff(values, prepend=0)
    first = np.cumsum(counts) - counts
    steps[first] = values[first]
    return steps


def delta_decode(deltas: IntArray, counts: IntArray) -> IntArray:
    total = np.cumsum(deltas)
    first = np.cumsum(counts) - counts
    return total - np.repeat(total[first] - deltas[first], counts)


def truncate_vectors(rows: FloatArray) -> FloatArray:
    """Truncates vectors to their leading dimensions and normalizes them again; a row of zeros stays zero."""
    leading = np.asarray(rows, dtype=np.float32)[:, :MAX_VECTOR_DIMENSIONS]
    lengths = np.linalg.norm(leading, axis=1, keepdims=True)
    return np.divide(leading, lengths, out=np.zeros_like(leading), where=lengths > 0)


def _narrowest_type(column: IntArray) -> str:
    """Narrowest integer type that holds every number of a column."""
    if len(column) == 0:
        return _INT_TYPES[0]
    lowest, highest = int(column.min()), int(column.max())
    return next(kind for kind in _INT_TYPES if np.iinfo(kind).min <= lowest and highest <= np.iinfo(kind).max)


def _decode_columns(body: bytes, layout: list[tuple[str, str, int]]) -> dict[str, IntArray]:
    columns: dict[str, IntArray] = {}
    start = 0
    for name, kind, count in layout:
        array = np.frombuffer(body, dtype=np.dtype(kind), count=count, offset=start)
        columns[name] = array.astype(np.int64)
        start += array.nbytes
    return columns


def _pack_nibbles(vectors: FloatArray) -> bytes:
    """Quantizes to half a byte per dimension, in steps of a seventh of the row's largest value."""
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    scaled = np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    steps = (np.rint(scaled * _NIBBLE_SCALE) + _NIBBLE_SCALE).astype(np.uint8)
    if steps.shape[1] % 2:
        steps = np.pad(steps, ((0, 0), (0, 1)), constant_values=_NIBBLE_SCALE)
    return (steps[:, ::2] | (steps[:, 1::2] << 4)).tobytes()


def _unpack_nibbles(data: bytes, count: int, width: int) -> FloatArray:
    pairs = np.frombuffer(data, dtype=np.uint8).reshape(count, (width + 1) // 2)
    steps = np.empty((count, 2 * pairs.shape[1]), dtype=np.float32)
    steps[:, ::2], steps[:, 1::2] = pairs & 15, pairs >> 4
    return truncate_vectors(steps[:, :width] - _NIBBLE_SCALE)


def _build_columns(messages: Sequence[IndexedMessage], *, speaker_names: Sequence[str]) -> dict[str, IntArray]:
    speaker_ids = {name: speaker_id for speaker_id, name in enumerate(speaker_names, start=1)}
    features = [extract_features(each.text) for each in messages]
    return {
        "seq": np.diff(_to_ints(each.seq for each in messages), prepend=0),
        "at": np.diff(_to_ints(each.at for each in messages), prepend=0),
        "tokens": _to_ints(each.tokens for each in messages),
        "roles": _to_ints(ROLES.index(each.role) for each in messages),
        "speaker_ids": _to_ints(speaker_ids.get(each.name or "", 0) for each in messages),
        "first_person": _to_ints(each.first_person for each in features),
        "time_words": _to_ints(each.time_words for each in features),
        "digits": _to_ints(each.digits for each in features),
        "directives": _to_ints(each.directive for each in features),
    }


def _build_postings(passages: Iterable[str]) -> tuple[list[str], IntArray, IntArray]:
    """Inverted index: the sorted vocabulary, the number of passages with each term, and those passages."""
    postings: dict[str, list[int]] = {}
    for number, passage in enumerate(passages):
        for term in set(tokenize(passage)):
            postings.setdefault(term, []).append(number)
    vocabulary = sorted(postings)
    counts = _to_ints(len(postings[term]) for term in vocabulary)
    return vocabulary, counts, _to_ints(number for term in vocabulary for number in postings[term])


def _embedding_text(text: str) -> str:
    return " ".join(text[:MAX_EMBEDDED_CHARS].split()[:MAX_EMBEDDED_WORDS])


def _to_ints(numbers: Iterable[int]) -> IntArray:
    return np.fromiter(numbers, dtype=np.int64)
