"""In which passages a word stands, as bytes, and what a question's words add up to.

Passages are numbered within their scope, and numbers are taken by blocks. A posting is three bytes: the place in
the block and the word's weight there, which is the part of BM25 that does not depend on other passages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK = 4_096
"""So many numbers share a row for each word. More make longer rows to rewrite, fewer make more rows to read."""

_POSTING = 3
_SATURATION = 1.2
_LENGTH_SHARE = 0.6
# Fixed, so that a weight never changes once it is written; about the length of a message or of a short section.
_USUAL_LENGTH = 60

Place = tuple[int, str]
"""A block and a word: one row."""


class Row(NamedTuple):
    scope: str
    word: str
    block: int
    places: bytes


class Ranked(NamedTuple):
    scope: str
    number: int
    score: float


def postings(numbered: Iterable[tuple[int, Mapping[str, int]]]) -> dict[Place, bytes]:
    """What is to be added to which rows for passages with these numbers and words."""
    found: defaultdict[int, defaultdict[str, bytearray]] = defaultdict(lambda: defaultdict(bytearray))
    for number, counts in numbered:
        block, place = divmod(number, BLOCK)
        rows, low_high = found[block], place.to_bytes(2, "little")
        damping = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * sum(counts.values()) / _USUAL_LENGTH)
        # Most words of a passage occur equally often in it.
        written = {count: low_high + _weight(count, damping) for count in set(counts.values())}
        for word, count in counts.items():
            rows[word] += written[count]
    return {(block, word): bytes(data) for block, rows in found.items() for word, data in rows.items()}


def _weight(count: int, damping: float) -> bytes:
    return bytes((max(1, round(255 * count / (count + damping))),))


def without(places: bytes, numbers: Collection[int]) -> bytes:
    """A row's postings but for these numbers of its block."""
    import numpy as np

    stored = np.frombuffer(places, dtype=_dtype())
    gone = np.isin(stored["place"], [number % BLOCK for number in numbers])
    return stored[~gone].tobytes()


def rank(rows: Collection[Row], *, passages: int, limit: int) -> list[Ranked]:
    """The passages in which these words weigh most, the best first; rare words weigh more."""
    import numpy as np

    if not rows:
        return []
    blocks = sorted({(row.scope, row.block) for row in rows})
    starts = {block: index * BLOCK for index, block in enumerate(blocks)}
    rarity = _rarity(rows, passages)
    scores = np.zeros(len(blocks) * BLOCK, dtype=np.float32)
    for row in rows:
        stored = np.frombuffer(row.places, dtype=_dtype())
        # A passage stands in a row once, so that no addition is lost.
        scores[starts[row.scope, row.block] + stored["place"].astype(np.intp)] += stored["weight"] * rarity[row.word]
    return [
        Ranked(blocks[slot // BLOCK][0], blocks[slot // BLOCK][1] * BLOCK + slot % BLOCK, float(scores[slot]))
        for slot in _best(scores, limit)
    ]


def _rarity(rows: Iterable[Row], passages: int) -> dict[str, np.float32]:
    import numpy as np

    having: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        having[row.word] += len(row.places) // _POSTING
    return {
        word: np.float32(math.log(1 + (max(passages - count, 0) + 0.5) / (count + 0.5)) / 255)
        for word, count in having.items()
    }


def _best(scores: NDArray[np.float32], limit: int) -> list[int]:
    """The places of the highest scores above zero; of equal ones the first."""
    import numpy as np

    [found] = np.nonzero(scores)
    if len(found) > limit:
        least = np.partition(scores[found], len(found) - limit)[len(found) - limit]
        found = found[scores[found] >= least]
    order = np.argsort(-scores[found], kind="stable")[:limit]
    return [int(slot) for slot in found[order]]


def _dtype() -> np.dtype[np.void]:
    import numpy as np

    return np.dtype([("place", "<u2"), ("weight", "u1")])
