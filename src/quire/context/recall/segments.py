"""Segments: what recall keeps of up to 512 consecutive messages, as one block of bytes that never changes.

Columns of small numbers for each message, the terms of each passage, and a short vector for each message where there is
an embedder. The same messages give the same bytes. Bytes of another `FORMAT` are refused, to be built anew.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from quire.context.recall import packing
from quire.context.recall.marks import marks_of
from quire.context.recall.packing import Floats, Ints
from quire.context.recall.passages import passages
from quire.context.recall.terms import terms

FORMAT = 1
ROLES = ("user", "assistant", "tool", "system")
HEAD_WORDS = 80
"""Words of a message that its vector stands for: a mean over more of them says less."""
LONGEST_HEAD = 1_000
"""Characters of them."""

_BY_MESSAGE = ("seq", "at", "tokens", "roles", "speakers", "own", "times", "digits", "wishes", "passages")


class Embeds(Protocol):
    @property
    def name(self) -> str: ...

    def embed(self, texts: Sequence[str]) -> Floats: ...


class Spoken(NamedTuple):
    """A message as recall sees it. `at` is in microseconds since 1970, `name` the speaker's, where it has one."""

    seq: int
    role: str
    name: str | None
    at: int
    text: str
    tokens: int


@dataclass(frozen=True)
class Segment:
    """Messages in the order of their numbers, and for each term the passages that have it, in order."""

    seq: Ints
    at: Ints
    tokens: Ints
    roles: Ints
    speakers: Ints
    """Places in `names`, from 1; 0 for a message without a speaker's name."""
    own: Ints
    times: Ints
    digits: Ints
    wishes: Ints
    passages: Ints
    """How many each message has."""
    names: tuple[str, ...]
    vocabulary: tuple[str, ...]
    counts: Ints
    """How many passages have each term of the vocabulary."""
    places: Ints
    """Those passages, one term after the other."""
    embedder: str | None
    vectors: Floats | None

    @cached_property
    def starts(self) -> Ints:
        """Where each term's passages begin in `places`, and the end."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @cached_property
    def numbers(self) -> dict[str, int]:
        """A term's place in the vocabulary."""
        return {term: number for number, term in enumerate(self.vocabulary)}

    @cached_property
    def message_of(self) -> Ints:
        """For each passage, which message of the segment it belongs to."""
        return np.repeat(np.arange(len(self.seq)), self.passages)

    def having(self, term: str) -> Ints | None:
        """The passages that have a term."""
        number = self.numbers.get(term)
        return None if number is None else self.places[self.starts[number] : self.starts[number + 1]]


def build(spoken: Iterable[Spoken], *, embed: Embeds | None = None) -> bytes:
    """The segment of these messages, which come in the order of their numbers."""
    said = list(spoken)
    names = sorted({each.name for each in said if each.name})
    pieces = [passages(each.text) for each in said]
    vocabulary, counts, places = _index(piece for some in pieces for piece in some)
    columns = _columns(said, names=names) | {
        "passages": _ints(len(some) for some in pieces),
        "counts": counts,
        "places": packing.gaps(places, counts),
    }
    rows = embed.embed([_head(each.text) for each in said]) if embed and said else None
    about = {"names": names, "vocabulary": vocabulary, "embedder": embed.name if embed and said else None}
    return packing.pack(FORMAT, about, columns, rows)


def read(data: bytes) -> Segment:
    """The segment in these bytes; `UnreadableSegment` if this version of Quire did not write them."""
    about, columns, rows = packing.unpack(FORMAT, data)
    columns["seq"], columns["at"] = np.cumsum(columns["seq"]), np.cumsum(columns["at"])
    columns["places"] = packing.without_gaps(columns["places"], columns["counts"])
    return Segment(
        **columns,
        names=tuple(about["names"]),
        vocabulary=tuple(about["vocabulary"]),
        embedder=about["embedder"],
        vectors=rows,
    )


def cut(segment: Segment, *, upto: int) -> Segment:
    """The segment without the messages after this number, for a branch that forks in the middle of it."""
    kept = int(np.searchsorted(segment.seq, upto, side="right"))
    if kept == len(segment.seq):
        return segment
    within = segment.places < int(segment.passages[:kept].sum())
    counts = np.diff(np.concatenate([[0], np.cumsum(within)])[segment.starts])
    return replace(
        segment,
        **{name: getattr(segment, name)[:kept] for name in _BY_MESSAGE},
        vocabulary=tuple(term for term, count in zip(segment.vocabulary, counts, strict=True) if count),
        counts=counts[counts > 0],
        places=segment.places[within],
        vectors=None if segment.vectors is None else segment.vectors[:kept],
    )


def _columns(said: Sequence[Spoken], *, names: Sequence[str]) -> dict[str, Ints]:
    number_of = {name: number for number, name in enumerate(names, start=1)}
    marks = [marks_of(each.text) for each in said]
    return {
        "seq": np.diff(_ints(each.seq for each in said), prepend=0),
        "at": np.diff(_ints(each.at for each in said), prepend=0),
        "tokens": _ints(each.tokens for each in said),
        "roles": _ints(ROLES.index(each.role) for each in said),
        "speakers": _ints(number_of.get(each.name or "", 0) for each in said),
        "own": _ints(each.own for each in marks),
        "times": _ints(each.times for each in marks),
        "digits": _ints(each.digits for each in marks),
        "wishes": _ints(each.wish for each in marks),
    }


def _index(pieces: Iterable[str]) -> tuple[list[str], Ints, Ints]:
    """The vocabulary in its order, how many passages have each term of it, and which."""
    having: dict[str, list[int]] = {}
    for place, piece in enumerate(pieces):
        for term in set(terms(piece)):
            having.setdefault(term, []).append(place)
    vocabulary = sorted(having)
    counts = _ints(len(having[term]) for term in vocabulary)
    return vocabulary, counts, _ints(place for term in vocabulary for place in having[term])


def _head(text: str) -> str:
    return " ".join(text[:LONGEST_HEAD].split()[:HEAD_WORDS])


def _ints(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, dtype=np.int64)
