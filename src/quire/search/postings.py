"""Postings of the inverted index with BM25 ranking, of passages and of messages.

Passages and messages are numbered within their scope, and `NUMBERS_PER_BLOCK` numbers form a block, a row of a term. A
posting has four bytes: the offset in the block, the passage of a long message, and the term's weight there, the part of
BM25 that does not depend on other passages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

FORMAT_VERSION = 6
"""Format of every search index. Raise it with each change of the tokenizer, the features, the codec, or of what is
boilerplate (`quire.rows.boilerplate`): an index with another version is rebuilt."""
NUMBERS_PER_BLOCK = 16_384
"""Numbers per row of a term. A larger block means longer rows to rewrite, a smaller one more rows to read."""
ENTRIES_PER_SEGMENT = 512
"""Entries per segment: segment 0 covers the entries 1 to 512 of a branch, segment 1 the next 512. A message's number is
its segment's number times this, plus its row in the segment."""
TOPIC_PASSAGE = 192
"""Number of a message's first topic among its passages. A message with more passages shares numbers with its topics."""
MAX_MESSAGE_TOPICS = 64
"""Topics of one message in the inverted index."""
WEIGHT_SCALE = 255
"""Stored weight of a term that a passage consists of."""
POSTING_BYTES = 4
_BM25_K1 = 1.2
_BM25_B = 0.6
# A constant, so that a stored weight never changes; about the length of a message or of a short section.
_AVERAGE_LENGTH_TERMS = 60

IndexRowKey = tuple[int, str]
"""Block and term: the key of one row."""


class PostingRow(NamedTuple):
    scope: str
    term: str
    block: int
    postings: bytes


class RankedPassage(NamedTuple):
    scope: str
    number: int
    score: float


def build_postings(
    numbered: Iterable[tuple[int, Sequence[Mapping[str, int]]]], *, first_passage: int = 0
) -> dict[IndexRowKey, bytes]:
    """Postings to append to each row, for texts with these numbers.

    A text has the term counts of all of it, as passage 0. A long text also has the counts of each passage, numbered
    from 1 to at most 255. With `first_passage` the counts are those of passages from this number on.
    """
    blocks: defaultdict[int, defaultdict[str, bytearray]] = defaultdict(lambda: defaultdict(bytearray))
    for number, passages in numbered:
        block, offset = divmod(number, NUMBERS_PER_BLOCK)
        rows = blocks[block]
        for passage, counts in enumerate(passages, start=first_passage):
            encoded_place = offset.to_bytes(2, "little") + bytes((passage,))
            damping = _BM25_K1 * (1 - _BM25_B + _BM25_B * sum(counts.values()) / _AVERAGE_LENGTH_TERMS)
            # Encoded once per count, since most terms of a passage occur equally often.
            postings = {
                count: encoded_place + bytes((max(1, round(WEIGHT_SCALE * count / (count + damping))),))
                for count in set(counts.values())
            }
            for term, count in counts.items():
                rows[term] += postings[count]
    return {(block, term): bytes(data) for block, rows in blocks.items() for term, data in rows.items()}


def remove_postings(postings: bytes, numbers: Collection[int]) -> bytes:
    """A row's postings without these numbers of its block."""
    import numpy as np

    stored = np.frombuffer(postings, dtype=posting_dtype())
    is_removed = np.isin(stored["offset"], [number % NUMBERS_PER_BLOCK for number in numbers])
    return stored[~is_removed].tobytes()


def rank_by_bm25(rows: Collection[PostingRow], *, passage_count: int, limit: int) -> list[RankedPassage]:
    """The passages with the highest BM25 scores for the terms of these rows, best first."""
    import numpy as np

    if not rows:
        return []
    blocks = sorted({(row.scope, row.block) for row in rows})
    starts = {block: index * NUMBERS_PER_BLOCK for index, block in enumerate(blocks)}
    passages_with_term: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        passages_with_term[row.term] += len(row.postings) // POSTING_BYTES
    idf = {
        term: np.float32(inverse_document_frequency(count, total=passage_count) / WEIGHT_SCALE)
        for term, count in passages_with_term.items()
    }
    scores = np.zeros(len(blocks) * NUMBERS_PER_BLOCK, dtype=np.float32)
    for row in rows:
        stored = np.frombuffer(row.postings, dtype=posting_dtype())
        # Each passage occurs once per row, so this fancy-indexed addition loses nothing.
        scores[starts[row.scope, row.block] + stored["offset"].astype(np.intp)] += stored["weight"] * idf[row.term]
    # The highest scores above zero; equal ones by number.
    [indexes] = np.nonzero(scores)
    if len(indexes) > limit:
        threshold = np.partition(scores[indexes], len(indexes) - limit)[len(indexes) - limit]
        indexes = indexes[scores[indexes] >= threshold]
    best = indexes[np.argsort(-scores[indexes], kind="stable")[:limit]].tolist()
    return [
        RankedPassage(
            blocks[index // NUMBERS_PER_BLOCK][0],
            blocks[index // NUMBERS_PER_BLOCK][1] * NUMBERS_PER_BLOCK + index % NUMBERS_PER_BLOCK,
            float(scores[index]),
        )
        for index in best
    ]


def inverse_document_frequency(matching: int, *, total: int) -> float:
    """IDF of a term as in BM25, in nats."""
    return math.log(1 + (max(total - matching, 0) + 0.5) / (matching + 0.5))


def posting_dtype() -> np.dtype[np.void]:
    import numpy as np

    return np.dtype([("offset", "<u2"), ("passage", "u1"), ("weight", "u1")])
