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
    from numpy.typing import NDArray

FORMAT_VERSION = 7
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


BlockPostings = tuple[int, bytes]
"""Block, and its postings."""


class TermPostings(NamedTuple):
    numbers: NDArray[np.int64]
    passages: NDArray[np.uint8]
    weights: NDArray[np.float32]
    """The part of BM25 that a passage decides, from 0 to 1."""


def build_postings(
    numbered: Iterable[tuple[int, Sequence[Mapping[str, int]]]], *, first_passage: int = 0
) -> dict[IndexRowKey, bytes]:
    """Postings to append to each row, for texts with these numbers.

    A text has the term counts of all of it, as passage 0. A long text also has the counts of each passage, numbered
    from 1 to at most 255. With `first_passage` only passages are counted, numbered from there on.
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


def read_word(terms: Iterable[str], postings: Mapping[str, Sequence[BlockPostings]]) -> tuple[int, list[TermPostings]]:
    """The number of messages with a word, and the postings of each of the terms that it may have."""
    import numpy as np

    found: list[TermPostings] = []
    for blocks in (postings.get(term, ()) for term in terms):
        stored = np.frombuffer(b"".join(data for _, data in blocks), dtype=posting_dtype())
        counts = [len(data) // POSTING_BYTES for _, data in blocks]
        first = np.repeat(np.array([block for block, _ in blocks], dtype=np.int64) * NUMBERS_PER_BLOCK, counts)
        weights = stored["weight"].astype(np.float32) / np.float32(WEIGHT_SCALE)
        found.append(TermPostings(first + stored["offset"], stored["passage"], weights))
    # The passages of a message are next to each other.
    return max((int(np.count_nonzero(np.diff(each.numbers, prepend=-1))) for each in found), default=0), found


def inverse_document_frequency(matching: int, *, total: int) -> float:
    """IDF of a term as in BM25, in nats."""
    return math.log(1 + (max(total - matching, 0) + 0.5) / (matching + 0.5))


def posting_dtype() -> np.dtype[np.void]:
    import numpy as np

    return np.dtype([("offset", "<u2"), ("passage", "u1"), ("weight", "u1")])
