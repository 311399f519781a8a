"""Recall index: merges the segments of a branch, so that all its archived messages can be ranked at once.

Features that depend on a message's neighbors are computed here, over all messages. Invariant: segment boundaries do not
change any result of an index.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.context.recall.message_features import FRACTION_SCALE, MAX_FEATURE_COUNT
from quire.context.recall.segments import ROLES, FloatArray, IntArray, RecallSegment

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

    segments: tuple[RecallSegment, ...]
    segment_offsets: tuple[int, ...]
    """Number of each segment's first passage, over all segments."""
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
    vectors: FloatArray | None
    """Unit vectors; rows of zeros for messages that this embedder has not embedded."""
    has_vector: BoolArray
    mean_vector: FloatArray
    """Mean of all rows, which similarity to the top messages subtracts."""

    def __len__(self) -> int:
        return len(self.seq)

    def find_passages(self, term: str) -> IntArray:
        """Passages that contain a term, in order."""
        postings = [
            local + offset
            for segment, offset in zip(self.segments, self.segment_offsets, strict=True)
            if (local := segment.find_postings(term)) is not None
        ]
        return np.concatenate(postings) if postings else np.zeros(0, dtype=np.int64)

    def select_rows(self, ranges: Iterable[tuple[int, int]], *, excluded: Collection[int] = ()) -> BoolArray:
        """Mask of the rows whose `seq` is in one of the ranges, ends included, and not excluded."""
        within = np.zeros(len(self), dtype=np.bool_)
        for first, last in ranges:
            within |= (self.seq >= first) & (self.seq <= last)
        return within & ~np.isin(self.seq, list(excluded))


def merge_segments(segments: Iterable[RecallSegment], *, embedder: str | None = None) -> RecallIndex:
    """Merges segments, oldest first. `embedder` names the embedder whose vectors are compared."""
    parts = tuple(segment for segment in segments if len(segment.seq))
    names = tuple(sorted({name for segment in parts for name in segment.speaker_names}))
    at = _concatenate([segment.at for segment in parts])
    tokens = _concatenate([segment.tokens for segment in parts])
    speakers = _concatenate([_map_speakers(segment, names) for segment in parts])
    session_ids = np.cumsum((np.diff(at, prepend=at[:1]) > SESSION_GAP_MICROS).astype(np.int64))
    passage_offsets, segment_offsets = _compute_offsets(parts)
    vectors = _merge_vectors(parts, embedder)
    roles = _concatenate([segment.roles for segment in parts])
    is_user = (roles == ROLES.index("user")) & (speakers < 0)
    return RecallIndex(
        segments=parts,
        segment_offsets=segment_offsets,
        seq=_concatenate([segment.seq for segment in parts]),
        at=at,
        tokens=tokens,
        speaker_names=names,
        speaker_ids=speakers,
        is_user=is_user.astype(np.float32),
        is_tool_result=(roles == ROLES.index("tool")).astype(np.float32),
        first_person=_to_fraction([segment.first_person for segment in parts], FRACTION_SCALE),
        time_words=_to_fraction([segment.time_words for segment in parts], MAX_FEATURE_COUNT),
        digits=_to_fraction([segment.digits for segment in parts], MAX_FEATURE_COUNT),
        directives=_concatenate([segment.directives for segment in parts]),
        session_ids=session_ids,
        session_opening=_opening_scores(session_ids),
        novelty=_novelty_scores(parts),
        passage_offsets=passage_offsets,
        passage_rows=np.repeat(
            np.arange(len(at)), np.diff(passage_offsets, append=sum(len(each.passage_rows) for each in parts))
        ),
        same_session=tuple(
            (session_ids[distance:] == session_ids[:-distance]).astype(np.float32)
            for distance in range(1, MAX_NEIGHBOR_DISTANCE + 1)
        ),
        log_tokens=np.log(tokens + MESSAGE_HEADER_TOKENS).astype(np.float32),
        embedder=None if vectors is None else embedder,
        vectors=vectors,
        has_vector=np.zeros(len(at), dtype=np.bool_) if vectors is None else np.abs(vectors).max(axis=1) > 0,
        mean_vector=np.zeros(0, dtype=np.float32) if vectors is None else vectors.mean(axis=0),
    )


def _concatenate(columns: Sequence[IntArray]) -> IntArray:
    return np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)


def _to_fraction(columns: Sequence[IntArray], scale: int) -> FloatArray:
    return (_concatenate(columns) / scale).astype(np.float32)


def _map_speakers(segment: RecallSegment, speaker_names: tuple[str, ...]) -> IntArray:
    merged_ids = np.array([-1, *(speaker_names.index(name) for name in segment.speaker_names)], dtype=np.int64)
    return merged_ids[segment.speaker_ids]


def _compute_offsets(segments: Sequence[RecallSegment]) -> tuple[IntArray, tuple[int, ...]]:
    """First passage of each message, and of each segment."""
    counts = _concatenate([segment.passage_counts for segment in segments])
    offsets = np.cumsum([0, *(len(segment.passage_rows) for segment in segments)])
    return np.cumsum(counts) - counts, tuple(int(offset) for offset in offsets[:-1])


def _opening_scores(session_ids: IntArray) -> FloatArray:
    position = np.arange(len(session_ids)) - np.searchsorted(session_ids, session_ids)
    return (1 / (1 + position)).astype(np.float32)


def _novelty_scores(segments: Sequence[RecallSegment]) -> FloatArray:
    seen: set[str] = set()
    shares: list[FloatArray] = []
    for segment in segments:
        is_new = np.array([term not in seen for term in segment.vocabulary], dtype=np.bool_)
        seen.update(segment.vocabulary)
        rows = segment.passage_rows[segment.postings]
        # A term's passages are sorted, so each message is counted at the first of its run.
        term_of = np.repeat(np.arange(len(segment.posting_counts)), segment.posting_counts)
        is_first = np.ones(len(rows), dtype=np.bool_)
        is_first[1:] = (rows[1:] != rows[:-1]) | (term_of[1:] != term_of[:-1])
        term_counts = np.bincount(rows[is_first], minlength=len(segment.seq))
        new_counts = np.bincount(rows[segment.posting_offsets[:-1][is_new]], minlength=len(segment.seq))
        shares.append((new_counts / (1 + term_counts)).astype(np.float32))
    return np.concatenate(shares) if shares else np.zeros(0, dtype=np.float32)


def _merge_vectors(segments: Sequence[RecallSegment], embedder: str | None) -> FloatArray | None:
    widths = {
        segment.vectors.shape[1] for segment in segments if segment.vectors is not None and segment.embedder == embedder
    }
    if len(widths) != 1:
        return None
    [width] = widths
    return np.concatenate(
        [
            segment.vectors
            if segment.vectors is not None and segment.embedder == embedder
            else np.zeros((len(segment.seq), width), dtype=np.float32)
            for segment in segments
        ]
    )
