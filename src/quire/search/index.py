"""Recall index: merges the segments of a branch, so that all its archived messages can be ranked at once.

Features that depend on a message's neighbors are computed here, over all messages. Invariant: segment boundaries do not
change any result of an index.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from quire.search.message_features import FRACTION_SCALE, MAX_FEATURE_COUNT
from quire.search.segments import (
    ROLES,
    IntArray,
    MergedPostings,
    MessageColumns,
    MessageTerms,
    Segment,
    extend_postings,
    find_known_hashes,
    hash_term,
    merge_postings,
    select_messages,
)
from quire.search.vectors import FloatArray, truncate_vectors, unpack_vectors

BoolArray = NDArray[np.bool_]

SESSION_GAP_MICROS = 30 * 60 * 1_000_000
"""Microseconds without a message after which the next one opens a new session."""
MAX_NEIGHBOR_DISTANCE = 6
"""Maximum distance, in messages of one session, at which a message affects the signals of another."""
MESSAGE_HEADER_TOKENS = 8
"""Tokens of a recalled message's number and speaker, in addition to its text."""


@dataclass(frozen=True)
class RecallIndex:
    """One row per message, in log order."""

    term_hashes: NDArray[np.uint32]
    """Sorted hashes of all terms."""
    posting_offsets: IntArray
    """Start of each term's passages in `postings`, and the end."""
    postings: IntArray
    """The passages that contain each term, term by term, in order."""
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
    """Unit vectors after subtracting the mean vector, which all messages have in common; rows of zeros for messages
    that this embedder has not embedded. Centered once, not with every query."""
    has_vector: BoolArray
    mean_vector: FloatArray

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        columns = [getattr(self, field.name) for field in fields(self)]
        return sum(each.nbytes for each in (*columns, *self.same_session) if hasattr(each, "nbytes"))

    def find_passages(self, term: str) -> IntArray:
        """Passages that contain a term, in order."""
        term_hash = hash_term(term)
        position = int(np.searchsorted(self.term_hashes, np.uint32(term_hash)))
        if position == len(self.term_hashes) or self.term_hashes[position] != term_hash:
            return self.postings[:0]
        return self.postings[self.posting_offsets[position] : self.posting_offsets[position + 1]]

    def compute_similarities(self, vector: FloatArray) -> FloatArray:
        """Cosine of a vector of this index's embedder and each message's, after subtracting the mean from both."""
        if self.centered_vectors is None:
            return np.zeros(len(self), dtype=np.float32)
        query = truncate_vectors(vector[np.newaxis], self.centered_vectors.shape[1])[0] - self.mean_vector
        return self.centered_vectors @ (query / np.float32(max(float(np.linalg.norm(query)), 1e-6)))

    def select_rows(self, ranges: Iterable[tuple[int, int]], *, excluded: Collection[int] = ()) -> BoolArray:
        """Mask of the rows whose `seq` is in one of the ranges, ends included, and not excluded."""
        within = np.zeros(len(self), dtype=np.bool_)
        for first, last in ranges:
            within |= (self.seq >= first) & (self.seq <= last)
        return within & ~np.isin(self.seq, list(excluded))


def merge_segments(
    segments: Iterable[Segment], *, embedder: str | None = None, earlier: RecallIndex | None = None
) -> RecallIndex:
    """Merges segments, oldest first. `embedder` names the embedder whose vectors are compared.

    `earlier` is an index of segments that may have grown since. If it has the first messages of these, its postings
    are extended instead of merged again.
    """
    parts = tuple(segment for segment in segments if len(segment))
    columns, terms = [part.columns for part in parts], [part.terms for part in parts]
    names = tuple(sorted({name for each in columns for name in each.speaker_names}))
    seq = _concatenate([each.seq for each in columns])
    if earlier is not None and not np.array_equal(earlier.seq, seq[: len(earlier)]):
        earlier = None
    at = _concatenate([each.at for each in columns])
    tokens = _concatenate([each.tokens for each in columns])
    speakers = _concatenate(
        [np.array([-1, *map(names.index, each.speaker_names)], dtype=np.int64)[each.speaker_ids] for each in columns]
    )
    rows = np.arange(len(at), dtype=np.int32)
    session_ids = number_sessions(at)
    passage_counts = _concatenate([each.passage_counts for each in terms])
    passage_rows = np.repeat(rows, passage_counts)
    postings, novelty = _merge_terms(parts, passage_rows, earlier)
    offsets = np.concatenate([[0], np.cumsum(postings.counts)])
    mean, centered, has_vector = _merge_vectors(columns, embedder)
    roles = _concatenate([each.roles for each in columns])
    is_user = (roles == ROLES.index("user")) & (speakers < 0)
    features = {name: [each.features[name] for each in terms] for name in (terms[0].features if terms else ())}
    return RecallIndex(
        term_hashes=postings.hashes,
        posting_offsets=offsets,
        postings=postings.passages,
        seq=seq,
        at=at,
        tokens=tokens,
        speaker_names=names,
        speaker_ids=speakers,
        is_user=is_user.astype(np.float32),
        is_tool_result=(roles == ROLES.index("tool")).astype(np.float32),
        first_person=_to_fraction(features.get("first_person", []), FRACTION_SCALE),
        own_opening=_to_fraction(features.get("own_opening", []), 1),
        time_words=_to_fraction(features.get("time_words", []), MAX_FEATURE_COUNT),
        digits=_to_fraction(features.get("digits", []), MAX_FEATURE_COUNT),
        directives=_concatenate(features.get("directive", [])),
        session_ids=session_ids,
        session_opening=(1 / (1 + rows - np.searchsorted(session_ids, session_ids))).astype(np.float32),
        novelty=novelty,
        passage_offsets=np.cumsum(passage_counts) - passage_counts,
        passage_rows=passage_rows,
        same_session=tuple(
            (session_ids[distance:] == session_ids[:-distance]).astype(np.float32)
            for distance in range(1, MAX_NEIGHBOR_DISTANCE + 1)
        ),
        log_tokens=np.log(tokens + MESSAGE_HEADER_TOKENS).astype(np.float32),
        embedder=None if centered is None else embedder,
        centered_vectors=centered,
        has_vector=has_vector,
        mean_vector=mean,
    )


def number_sessions(at: IntArray) -> IntArray:
    """The session of each message, from 0, by the time between messages."""
    return np.cumsum((np.diff(at, prepend=at[:1]) > SESSION_GAP_MICROS).astype(np.int64))


def _concatenate(columns: Sequence[IntArray]) -> IntArray:
    return np.concatenate(columns, dtype=np.int64) if columns else np.zeros(0, dtype=np.int64)


def _to_fraction(columns: Sequence[IntArray], scale: int) -> FloatArray:
    return (_concatenate(columns) / scale).astype(np.float32)


def _merge_terms(
    parts: Sequence[Segment], passage_rows: IntArray, earlier: RecallIndex | None
) -> tuple[MergedPostings, FloatArray]:
    """The postings of all parts, and the novelty of each message."""
    known_count = len(earlier) if earlier is not None else 0
    added: list[MessageTerms] = []
    start = 0
    for part in parts:
        if start + len(part) > known_count:
            added.append(select_messages(part, max(0, known_count - start), len(part)).terms)
        start += len(part)
    postings, count = merge_postings(added), start - known_count
    if earlier is None or not known_count:
        is_new = np.ones(len(postings.hashes), dtype=np.bool_)
        return postings, _novelty_scores(postings, passage_rows, count, is_new)
    known = MergedPostings(earlier.term_hashes, np.diff(earlier.posting_offsets), earlier.postings)
    known_passages = len(earlier.passage_rows)
    is_new = ~find_known_hashes(known.hashes, postings.hashes)
    novelty = _novelty_scores(postings, passage_rows[known_passages:] - known_count, count, is_new)
    postings = postings._replace(passages=postings.passages + np.int32(known_passages))
    return extend_postings(known, postings), np.concatenate([earlier.novelty, novelty])


def _novelty_scores(postings: MergedPostings, passage_rows: IntArray, count: int, is_new: BoolArray) -> FloatArray:
    """Share of each message's terms that are new and that no message before it has."""
    if not count:
        return np.zeros(0, dtype=np.float32)
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
