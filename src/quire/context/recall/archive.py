"""Archive: the segments of a branch joined, so that all its archived messages can be ranked at once.

What depends on a message's neighbours is worked out here, over all of them: where segments are parted makes no
difference to anything that an archive says.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.context.recall.marks import FULL, MOST
from quire.context.recall.packing import Floats, Ints
from quire.context.recall.segments import ROLES, Segment

Bools = NDArray[np.bool_]

SILENCE = 30 * 60 * 1_000_000
"""After so many microseconds without a word the next message opens a new sitting."""
REACH = 6
"""How many messages away one still stands in another's light, within a sitting."""
HEAD_TOKENS = 8
"""What a message's number and speaker take besides its text."""


@dataclass(frozen=True)
class Archive:
    """One row for each message, in the order of the log."""

    segments: tuple[Segment, ...]
    first_passage: tuple[int, ...]
    """Of each segment, counted over all."""
    seq: Ints
    at: Ints
    tokens: Ints
    names: tuple[str, ...]
    speakers: Ints
    """Places in `names`; -1 without a name."""
    asking: Floats
    """1 for what the user said in a chat without speakers' names."""
    own: Floats
    times: Floats
    digits: Floats
    wishes: Ints
    sittings: Ints
    """Counted from 0."""
    opening: Floats
    """1 for the first message of a sitting, 1/2 for the second, and so on."""
    new: Floats
    """The share of its terms that no message before it has."""
    passage_starts: Ints
    message_of: Ints
    """For each passage, the row of its message."""
    together: tuple[Floats, ...]
    """For each distance from 1 to `REACH`: 1 where a message and the one so far before it are of one sitting."""
    price: Floats
    """The logarithm of what showing it takes, in tokens."""
    embedder: str | None
    vectors: Floats | None
    """Rows of zeros for messages that this embedder has not seen."""
    seen: Bools
    """Which it has."""
    common: Floats
    """What the vectors have in common: their mean."""

    def __len__(self) -> int:
        return len(self.seq)

    def passages_having(self, term: str) -> Ints:
        found = [
            having + first
            for segment, first in zip(self.segments, self.first_passage, strict=True)
            if (having := segment.having(term)) is not None
        ]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def among(self, ranges: Iterable[tuple[int, int]], *, leaving: Collection[int] = ()) -> Bools:
        """Which rows have a number in one of the ranges, ends included, and none of those to leave out."""
        within = np.zeros(len(self), dtype=np.bool_)
        for first, last in ranges:
            within |= (self.seq >= first) & (self.seq <= last)
        return within & ~np.isin(self.seq, list(leaving))


def join(segments: Iterable[Segment], *, embedder: str | None = None) -> Archive:
    """The archive of these segments, oldest first. `embedder` names the one whose vectors are to be compared."""
    given = tuple(segment for segment in segments if len(segment.seq))
    names = tuple(sorted({name for segment in given for name in segment.names}))
    at = _joined([segment.at for segment in given])
    tokens = _joined([segment.tokens for segment in given])
    speakers = _joined([_speakers(segment, names) for segment in given])
    sittings = np.cumsum((np.diff(at, prepend=at[:1]) > SILENCE).astype(np.int64))
    starts, firsts = _passages(given)
    vectors = _vectors(given, embedder)
    asking = (_joined([segment.roles for segment in given]) == ROLES.index("user")) & (speakers < 0)
    return Archive(
        segments=given,
        first_passage=firsts,
        seq=_joined([segment.seq for segment in given]),
        at=at,
        tokens=tokens,
        names=names,
        speakers=speakers,
        asking=asking.astype(np.float32),
        own=_share([segment.own for segment in given], FULL),
        times=_share([segment.times for segment in given], MOST),
        digits=_share([segment.digits for segment in given], MOST),
        wishes=_joined([segment.wishes for segment in given]),
        sittings=sittings,
        opening=_opening(sittings),
        new=_newness(given),
        passage_starts=starts,
        message_of=np.repeat(np.arange(len(at)), np.diff(starts, append=sum(len(each.message_of) for each in given))),
        together=tuple(
            (sittings[distance:] == sittings[:-distance]).astype(np.float32) for distance in range(1, REACH + 1)
        ),
        price=np.log(tokens + HEAD_TOKENS).astype(np.float32),
        embedder=None if vectors is None else embedder,
        vectors=vectors,
        seen=np.zeros(len(at), dtype=np.bool_) if vectors is None else np.abs(vectors).max(axis=1) > 0,
        common=np.zeros(0, dtype=np.float32) if vectors is None else vectors.mean(axis=0),
    )


def _joined(columns: Sequence[Ints]) -> Ints:
    return np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)


def _share(columns: Sequence[Ints], full: int) -> Floats:
    return (_joined(columns) / full).astype(np.float32)


def _speakers(segment: Segment, names: tuple[str, ...]) -> Ints:
    places = np.array([-1, *(names.index(name) for name in segment.names)], dtype=np.int64)
    return places[segment.speakers]


def _passages(segments: Sequence[Segment]) -> tuple[Ints, tuple[int, ...]]:
    """Where each message's passages start, and each segment's."""
    counts = _joined([segment.passages for segment in segments])
    firsts = np.cumsum([0, *(len(segment.message_of) for segment in segments)])
    return np.cumsum(counts) - counts, tuple(int(first) for first in firsts[:-1])


def _opening(sittings: Ints) -> Floats:
    since = np.arange(len(sittings)) - np.searchsorted(sittings, sittings)
    return (1 / (1 + since)).astype(np.float32)


def _newness(segments: Sequence[Segment]) -> Floats:
    seen: set[str] = set()
    shares: list[Floats] = []
    for segment in segments:
        fresh = np.array([term not in seen for term in segment.vocabulary], dtype=np.bool_)
        seen.update(segment.vocabulary)
        rows = segment.message_of[segment.places]
        # A term's passages rise, so the first of each run of one message is where that message is counted.
        term_of = np.repeat(np.arange(len(segment.counts)), segment.counts)
        once = np.ones(len(rows), dtype=np.bool_)
        once[1:] = (rows[1:] != rows[:-1]) | (term_of[1:] != term_of[:-1])
        terms = np.bincount(rows[once], minlength=len(segment.seq))
        brought = np.bincount(rows[segment.starts[:-1][fresh]], minlength=len(segment.seq))
        shares.append((brought / (1 + terms)).astype(np.float32))
    return np.concatenate(shares) if shares else np.zeros(0, dtype=np.float32)


def _vectors(segments: Sequence[Segment], embedder: str | None) -> Floats | None:
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
