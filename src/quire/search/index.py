"""Recall index: merges the segments of a branch, so that all its archived messages can be ranked at once.

Features that depend on a message's neighbors are computed here, over all messages. Invariant: segment boundaries do not
change any result of an index.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.search.message_features import FRACTION_SCALE, MAX_FEATURE_COUNT
from quire.search.segments import (
    ROLES,
    FeatureColumns,
    IntArray,
    MergedPostings,
    MessageColumns,
    Segment,
    extend_postings,
    find_known_hashes,
    hash_term,
    merge_postings,
    select_messages,
)
from quire.search.vectors import FloatArray, truncate_vectors, unpack_vectors

SPARE_ROWS_DIVISOR = 8
"""A column that is copied gets room for this part of its rows more."""
RUN_LENGTH_FACTOR = 4
"""Postings of later passages are joined with a run that is less than this many times as long."""

BoolArray = NDArray[np.bool_]

SESSION_GAP_MICROS = 30 * 60 * 1_000_000
"""Microseconds without a message after which the next one opens a new session."""
MAX_NEIGHBOR_DISTANCE = 6
"""Maximum distance, in messages of one session, at which a message affects the signals of another."""
MESSAGE_HEADER_TOKENS = 8
"""Tokens of a recalled message's number and speaker, in addition to its text."""


class PostingRun(NamedTuple):
    """Inverted index over consecutive passages."""

    hashes: NDArray[np.uint32]
    """Sorted hashes of the terms."""
    offsets: IntArray
    """Start of each term's passages in `passages`, and the end."""
    passages: IntArray
    """The passages that contain each term, term by term, in order."""


class _Room:
    """Rows behind an index in the buffers of its columns, which the indexes that it was extended to share."""

    def __init__(self, used: int) -> None:
        self._used, self._lock = used, Lock()

    def claim(self, count: int, new_count: int) -> bool:
        """Whether nothing was written behind the first `count` rows; if so, the caller may, up to `new_count`."""
        with self._lock:
            is_free = self._used == count
            self._used = new_count if is_free else self._used
            return is_free


@dataclass(frozen=True)
class RecallIndex:
    """One row per message, in log order."""

    seq: IntArray
    at: IntArray
    tokens: IntArray
    speaker_names: tuple[str, ...]
    speaker_ids: IntArray
    """Indices into `speaker_names`; -1 without a name."""
    is_user: FloatArray
    """1 for user messages in a chat without speaker names."""
    is_tool_result: FloatArray
    first_person: FloatArray
    own_opening: FloatArray
    """1 for messages that begin with a word such as "I" or "my"."""
    time_words: FloatArray
    digits: FloatArray
    directives: IntArray
    session_ids: IntArray
    """Numbered from 0."""
    session_opening: FloatArray
    """1 for the first message of a session, 1/2 for the second, and so on."""
    novelty: FloatArray
    """Share of its terms that no earlier message has."""
    passage_offsets: IntArray
    passage_rows: IntArray
    """Row of the message that each passage belongs to."""
    same_session: tuple[FloatArray, ...]
    """Per distance, up to `MAX_NEIGHBOR_DISTANCE`: 1 where a message and the one that far before share a session."""
    log_tokens: FloatArray
    """Logarithm of a message's token cost in a request."""
    embedder: str | None
    centered_vectors: FloatArray | None
    """Unit vectors after subtracting the mean vector, which all messages have in common. Rows of zeros for messages
    that this embedder has not embedded. Centered once, not with every query."""
    has_vector: BoolArray
    mean_vector: FloatArray
    posting_runs: tuple[PostingRun, ...] = field(compare=False)
    """Of one part of the passages after the other, each several times as long as the next, so that an extended index
    copies few of them."""
    room: _Room = field(compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        columns = [getattr(self, column.name) for column in fields(self)]
        runs = (array for run in self.posting_runs for array in run)
        return sum(each.nbytes for each in (*columns, *self.same_session, *runs) if hasattr(each, "nbytes"))

    def find_passages(self, term: str) -> IntArray:
        """Passages that contain a term, in order."""
        term_hash, found = np.uint32(hash_term(term)), list[IntArray]()
        for run in self.posting_runs:
            position = int(np.searchsorted(run.hashes, term_hash))
            if position < len(run.hashes) and run.hashes[position] == term_hash:
                found.append(run.passages[run.offsets[position] : run.offsets[position + 1]])
        return found[0] if len(found) == 1 else np.concatenate([np.zeros(0, dtype=np.int32), *found])

    def read_features(self, rows: IntArray) -> FeatureColumns:
        return FeatureColumns(self.at[rows], self.session_opening[rows], self.first_person[rows])

    def find_context(self, rows: IntArray) -> tuple[int, int]:
        return 0, len(self)

    def compute_similarities(self, vector: FloatArray, rows: IntArray) -> FloatArray:
        """Cosine of a vector of this index's embedder and each message's, after subtracting the mean from both.

        Messages without a vector get the mean similarity of the others.
        """
        if self.centered_vectors is None:
            return np.zeros(len(rows), dtype=np.float32)
        query = truncate_vectors(vector[np.newaxis], self.centered_vectors.shape[1])[0] - self.mean_vector
        similarities: FloatArray = self.centered_vectors @ (query / np.float32(max(float(np.linalg.norm(query)), 1e-6)))
        if self.has_vector.any() and not self.has_vector.all():
            similarities = np.where(self.has_vector, similarities, similarities[self.has_vector].mean())
        return similarities[rows]

    def select_rows(self, ranges: Iterable[tuple[int, int]], *, excluded: Collection[int] = ()) -> BoolArray:
        """Mask of the rows whose `seq` is in one of the ranges, ends included, and not excluded."""
        within = np.zeros(len(self), dtype=np.bool_)
        for first, last in ranges:
            within |= (self.seq >= first) & (self.seq <= last)
        return within & ~np.isin(self.seq, list(excluded))


_NO_INTS, _NO_FLOATS = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
_EMPTY_INDEX = RecallIndex(
    seq=_NO_INTS,
    at=_NO_INTS,
    tokens=_NO_INTS,
    speaker_names=(),
    speaker_ids=_NO_INTS,
    is_user=_NO_FLOATS,
    is_tool_result=_NO_FLOATS,
    first_person=_NO_FLOATS,
    own_opening=_NO_FLOATS,
    time_words=_NO_FLOATS,
    digits=_NO_FLOATS,
    directives=_NO_INTS,
    session_ids=_NO_INTS,
    session_opening=_NO_FLOATS,
    novelty=_NO_FLOATS,
    passage_offsets=_NO_INTS,
    passage_rows=np.zeros(0, dtype=np.int32),
    same_session=(_NO_FLOATS,) * MAX_NEIGHBOR_DISTANCE,
    log_tokens=_NO_FLOATS,
    embedder=None,
    centered_vectors=None,
    has_vector=np.zeros(0, dtype=np.bool_),
    mean_vector=_NO_FLOATS,
    posting_runs=(),
    room=_Room(-1),  # Never claimed: its columns have no buffers.
)


def merge_segments(
    segments: Iterable[Segment], *, embedder: str | None = None, earlier: RecallIndex | None = None
) -> RecallIndex:
    """Merges segments, oldest first. `embedder` names the embedder whose vectors are compared.

    `earlier` is an index of segments that may have grown since. If it has the first messages of these, only the later
    ones are merged, behind it. Vectors are merged again, since every message changes their mean.
    """
    parts = tuple(segment for segment in segments if len(segment))
    before = earlier if earlier is not None and _has_first_messages(earlier, parts) else _EMPTY_INDEX
    known, count = len(before), 0
    added: list[Segment] = []
    for part in parts:
        if count + len(part) > known:
            added.append(select_messages(part, max(0, known - count), len(part)))
        count += len(part)
    mean, centered, has_vector = _merge_vectors([part.columns for part in parts], embedder)
    before = replace(
        before,
        embedder=None if centered is None else embedder,
        centered_vectors=centered,
        has_vector=has_vector,
        mean_vector=mean,
    )
    if not added:
        return before
    columns, terms = [part.columns for part in added], [part.terms for part in added]
    is_room_free = before.room.claim(known, count)

    def extend(column: NDArray[Any], new_rows: NDArray[Any]) -> NDArray[Any]:
        return _extend_column(column, new_rows, in_place=is_room_free)

    names = tuple(sorted({name for each in (before, *columns) for name in each.speaker_names}))
    known_speakers = before.speaker_ids
    if names != before.speaker_names:
        known_speakers = np.array([*map(names.index, before.speaker_names), -1], dtype=np.int64)[known_speakers]
    speakers = _concatenate(
        [np.array([-1, *map(names.index, each.speaker_names)], dtype=np.int64)[each.speaker_ids] for each in columns]
    )
    at, tokens = _concatenate([each.at for each in columns]), _concatenate([each.tokens for each in columns])
    roles = _concatenate([each.roles for each in columns])
    recent_sessions = number_sessions(np.concatenate([before.at[-1:], at]))[-len(at) :]
    session_ids = extend(before.session_ids, recent_sessions + (before.session_ids[-1] if known else 0))
    rows = np.arange(known, count, dtype=np.int32)
    passage_counts, known_passages = _concatenate([each.passage_counts for each in terms]), len(before.passage_rows)
    passage_rows = np.repeat(rows, passage_counts)
    postings = merge_postings(terms)
    is_new = np.ones(len(postings.hashes), dtype=np.bool_)
    for run in before.posting_runs:
        is_new &= ~find_known_hashes(run.hashes, postings.hashes)
    new_rows = {
        "seq": _concatenate([each.seq for each in columns]),
        "at": at,
        "tokens": tokens,
        "is_user": ((roles == ROLES.index("user")) & (speakers < 0)).astype(np.float32),
        "is_tool_result": (roles == ROLES.index("tool")).astype(np.float32),
        "first_person": _to_fraction([each.first_person for each in columns], FRACTION_SCALE),
        "own_opening": _to_fraction([each.own_opening for each in columns], 1),
        "time_words": _to_fraction([each.time_words for each in columns], MAX_FEATURE_COUNT),
        "digits": _to_fraction([each.digits for each in columns], MAX_FEATURE_COUNT),
        "directives": _concatenate([each.directive for each in columns]),
        "session_opening": (1 / (1 + rows - np.searchsorted(session_ids, session_ids[known:]))).astype(np.float32),
        "novelty": _novelty_scores(postings, passage_rows - known, count - known, is_new),
        "passage_offsets": known_passages + np.cumsum(passage_counts) - passage_counts,
        "passage_rows": passage_rows,
        "log_tokens": np.log(tokens + MESSAGE_HEADER_TOKENS).astype(np.float32),
    }
    return replace(
        before,
        **{name: extend(getattr(before, name), column) for name, column in new_rows.items()},
        posting_runs=_append_run(before.posting_runs, postings, first_passage=known_passages),
        speaker_names=names,
        speaker_ids=extend(known_speakers, speakers),
        session_ids=session_ids,
        same_session=tuple(
            extend(column, (session_ids[len(column) + distance :] == session_ids[len(column) : -distance]))
            for distance, column in enumerate(before.same_session, start=1)
        ),
        room=before.room if is_room_free else _Room(count),
    )


def _has_first_messages(earlier: RecallIndex, parts: Iterable[Segment]) -> bool:
    """Whether all messages of the index are the first ones of these segments."""
    start = 0
    for part in parts:
        known = earlier.seq[start : start + len(part)]
        if not np.array_equal(known, part.columns.seq[: len(known)]):
            return False
        start += len(known)
    return start == len(earlier)


def _extend_column(before: NDArray[Any], added: NDArray[Any], *, in_place: bool) -> NDArray[Any]:
    """A column with more rows: in the buffer that `before` is a view of, or in a larger one with room for others."""
    count, buffer = len(before) + len(added), before.base
    if not in_place or buffer is None or len(buffer) < count:
        buffer = np.empty(count + count // SPARE_ROWS_DIVISOR, dtype=before.dtype)
        buffer[: len(before)] = before
    buffer[len(before) : count] = added
    return buffer[:count]


def _append_run(runs: Sequence[PostingRun], added: MergedPostings, *, first_passage: int) -> tuple[PostingRun, ...]:
    """Adds the postings of later passages as a run, and joins runs that are not much longer than those after them."""
    runs, last = list(runs), added._replace(passages=added.passages + np.int32(first_passage))
    while runs and len(runs[-1].passages) < RUN_LENGTH_FACTOR * len(last.passages):
        run = runs.pop()
        last = extend_postings(MergedPostings(run.hashes, np.diff(run.offsets), run.passages), last)
    return (*runs, PostingRun(last.hashes, np.concatenate([[0], np.cumsum(last.counts)]), last.passages))


def number_sessions(at: IntArray) -> IntArray:
    """The session of each message, from 0, by the time between messages."""
    return np.cumsum(starts_session(at).astype(np.int64))


def starts_session(at: IntArray) -> BoolArray:
    """Whether so much time has passed since the message before that this one opens a session."""
    return np.diff(at, prepend=at[:1]) > SESSION_GAP_MICROS


def _concatenate(columns: Sequence[IntArray]) -> IntArray:
    return np.concatenate(columns, dtype=np.int64) if columns else np.zeros(0, dtype=np.int64)


def _to_fraction(columns: Sequence[IntArray], scale: int) -> FloatArray:
    return (_concatenate(columns) / scale).astype(np.float32)


def _novelty_scores(postings: MergedPostings, passage_rows: IntArray, count: int, is_new: BoolArray) -> FloatArray:
    """Share of each message's terms that are new and that no message before it has."""
    starts = np.cumsum(postings.counts) - postings.counts
    rows = passage_rows[postings.passages]
    # A term's passages are sorted, so each message is counted at the first of its run.
    is_first = np.ones(len(rows), dtype=np.bool_)
    is_first[1:] = rows[1:] != rows[:-1]
    is_first[starts] = True
    term_counts = np.bincount(rows[is_first], minlength=count)
    new_counts = np.bincount(rows[starts[is_new]], minlength=count)
    return (new_counts / (1 + term_counts)).astype(np.float32)


def _merge_vectors(
    columns: Sequence[MessageColumns], embedder: str | None
) -> tuple[FloatArray, FloatArray | None, BoolArray]:
    """The mean vector of this embedder, unit vectors after subtracting it, and which messages have one."""
    count = sum(len(each) for each in columns)
    widths = {each.dimensions for each in columns if each.packed_vectors is not None and each.embedder == embedder}
    if embedder is None or len(widths) != 1:
        return np.zeros(0, dtype=np.float32), None, np.zeros(count, dtype=np.bool_)
    [width] = widths
    vectors = np.zeros((count, width), dtype=np.float32)
    start = 0
    for each in columns:
        if each.packed_vectors is not None and each.embedder == embedder:
            vectors[start : start + len(each)] = unpack_vectors(each.packed_vectors, width)
        start += len(each)
    has_vector = np.abs(vectors).max(axis=1) > 0
    mean = vectors.mean(axis=0)
    # In place: these are the largest arrays of an index.
    np.subtract(vectors, mean, out=vectors)
    np.divide(vectors, np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6), out=vectors)
    vectors[~has_vector] = 0
    return mean, vectors, has_vector
