"""Inverted index with BM25 ranking: one row per term and block of passages.

Passages are numbered within their scope, and `PASSAGES_PER_BLOCK` numbers form a block. A posting has three bytes: the
passage's offset in the block, and the term's weight there, the part of BM25 that does not depend on other passages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sqlalchemy import Connection, bindparam, delete, select, update

from quire.log.dialects import append_bytes
from quire.log.schema import terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PASSAGES_PER_BLOCK = 4_096
"""Passages per row of a term. A larger block means longer rows to rewrite, a smaller one more rows to read."""

_POSTING_BYTES = 3
_BM25_K1 = 1.2
_BM25_B = 0.6
# A constant, so that a stored weight never changes; about the length of a message or of a short section.
_AVERAGE_LENGTH_TERMS = 60
_ROWS_PER_STATEMENT = 500

T = TypeVar("T")
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


def build_postings(numbered: Iterable[tuple[int, Mapping[str, int]]]) -> dict[IndexRowKey, bytes]:
    """Postings to append to each row, for passages with these numbers and term counts."""
    blocks: defaultdict[int, defaultdict[str, bytearray]] = defaultdict(lambda: defaultdict(bytearray))
    for number, counts in numbered:
        block, offset = divmod(number, PASSAGES_PER_BLOCK)
        rows, encoded_offset = blocks[block], offset.to_bytes(2, "little")
        damping = _BM25_K1 * (1 - _BM25_B + _BM25_B * sum(counts.values()) / _AVERAGE_LENGTH_TERMS)
        # Encoded once per count, since most terms of a passage occur equally often.
        postings = {count: encoded_offset + _encode_weight(count, damping) for count in set(counts.values())}
        for term, count in counts.items():
            rows[term] += postings[count]
    return {(block, term): bytes(data) for block, rows in blocks.items() for term, data in rows.items()}


def _encode_weight(count: int, damping: float) -> bytes:
    return bytes((max(1, round(255 * count / (count + damping))),))


def remove_postings(postings: bytes, numbers: Collection[int]) -> bytes:
    """A row's postings without these passage numbers of its block."""
    import numpy as np

    stored = np.frombuffer(postings, dtype=_posting_dtype())
    is_removed = np.isin(stored["offset"], [number % PASSAGES_PER_BLOCK for number in numbers])
    return stored[~is_removed].tobytes()


def rank_by_bm25(rows: Collection[PostingRow], *, passage_count: int, limit: int) -> list[RankedPassage]:
    """The passages with the highest BM25 scores for the terms of these rows, best first."""
    import numpy as np

    if not rows:
        return []
    blocks = sorted({(row.scope, row.block) for row in rows})
    starts = {block: index * PASSAGES_PER_BLOCK for index, block in enumerate(blocks)}
    idf = _inverse_document_frequency(rows, passage_count)
    scores = np.zeros(len(blocks) * PASSAGES_PER_BLOCK, dtype=np.float32)
    for row in rows:
        stored = np.frombuffer(row.postings, dtype=_posting_dtype())
        # Each passage occurs once per row, so this fancy-indexed addition loses nothing.
        scores[starts[row.scope, row.block] + stored["offset"].astype(np.intp)] += stored["weight"] * idf[row.term]
    return [
        RankedPassage(
            blocks[index // PASSAGES_PER_BLOCK][0],
            blocks[index // PASSAGES_PER_BLOCK][1] * PASSAGES_PER_BLOCK + index % PASSAGES_PER_BLOCK,
            float(scores[index]),
        )
        for index in _top_k(scores, limit)
    ]


def _inverse_document_frequency(rows: Iterable[PostingRow], passage_count: int) -> dict[str, np.float32]:
    import numpy as np

    passages_with_term: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        passages_with_term[row.term] += len(row.postings) // _POSTING_BYTES
    return {
        term: np.float32(math.log(1 + (max(passage_count - count, 0) + 0.5) / (count + 0.5)) / 255)
        for term, count in passages_with_term.items()
    }


def _top_k(scores: NDArray[np.float32], limit: int) -> list[int]:
    """Indexes of the highest scores above zero; equal scores by index."""
    import numpy as np

    [nonzero] = np.nonzero(scores)
    if len(nonzero) > limit:
        threshold = np.partition(scores[nonzero], len(nonzero) - limit)[len(nonzero) - limit]
        nonzero = nonzero[scores[nonzero] >= threshold]
    order = np.argsort(-scores[nonzero], kind="stable")[:limit]
    return [int(index) for index in nonzero[order]]


def _posting_dtype() -> np.dtype[np.void]:
    import numpy as np

    return np.dtype([("offset", "<u2"), ("weight", "u1")])


def append_index_rows(connection: Connection, tenant: str, scope: str, added: Mapping[IndexRowKey, bytes]) -> None:
    """Appends postings to these rows, or creates them."""
    rows = [
        {"tenant": tenant, "scope": scope, "term": term, "block": block, "postings": postings}
        for (block, term), postings in sorted(added.items())
    ]
    if rows:
        append_bytes(connection, terms, rows, "postings")


def remove_from_index_rows(
    connection: Connection,
    tenant: str,
    scope: str,
    removed: Mapping[IndexRowKey, Collection[int]],
    *,
    remove_numbers: Callable[[bytes, Collection[int]], bytes],
) -> None:
    """Removes these passage numbers from rows; deletes rows that become empty."""
    by_block: dict[int, dict[str, Collection[int]]] = {}
    for (block, term), numbers in removed.items():
        by_block.setdefault(block, {})[term] = numbers
    for block, numbers_by_term in by_block.items():
        own_rows = (terms.c.tenant == tenant, terms.c.scope == scope, terms.c.block == block)
        remaining: dict[str, bytes] = {}
        for chunk in split_chunks(numbers_by_term):
            rows = connection.execute(select(terms.c.term, terms.c.postings).where(*own_rows, terms.c.term.in_(chunk)))
            remaining.update((row.term, remove_numbers(row.postings, numbers_by_term[row.term])) for row in rows)
        for chunk in split_chunks(term for term, postings in remaining.items() if not postings):
            connection.execute(delete(terms).where(*own_rows, terms.c.term.in_(chunk)))
        changed = [{"of_term": term, "postings": postings} for term, postings in remaining.items() if postings]
        if changed:
            statement = update(terms).where(*own_rows, terms.c.term == bindparam("of_term"))
            connection.execute(statement.values(postings=bindparam("postings")), changed)


def split_chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """Splits items into lists that are short enough for one statement."""
    iterator = iter(items)
    while chunk := list(islice(iterator, _ROWS_PER_STATEMENT)):
        yield chunk
