"""Finds passages by their words and by their vectors, and makes one list of the two by reciprocal rank.

A question is any text: it is cut into words as the passages were, so that nothing in it can be syntax.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, select

from quire.log import vectors
from quire.log.found import Hit
from quire.log.postings import Ranked, Row, rank
from quire.log.schema import passages, scopes, terms
from quire.log.terms import chunked
from quire.log.words import words as words_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

TEXT_WEIGHT = 1.0
VECTOR_WEIGHT = 0.7
# How little the first ranks differ; the usual value, and results hardly depend on it.
_RANK_OFFSET = 60

MOST_WORDS = 64
"""Of a longer question the words that come first."""

Place = tuple[str, int]
"""Scope and number."""


def search(
    connection: Connection,
    tenant: str,
    query: str,
    *,
    scopes: Sequence[str],
    limit: int,
    vector: ArrayLike | None = None,
    embedder: str | None = None,
) -> list[Hit]:
    """The passages of these scopes that bear on the query, the best first."""
    depth = max(3 * limit, 60)
    within = list(dict.fromkeys(scopes))
    ranked = [(TEXT_WEIGHT, _by_words(connection, tenant, query, within, depth))]
    if vector is not None and embedder is not None:
        near = [
            found
            for scope in within
            for found in vectors.nearest(connection, tenant, scope, vector, embedder=embedder, limit=depth)
        ]
        near.sort(key=lambda found: -found.score)
        ranked.append((VECTOR_WEIGHT, near[:depth]))
    return _read(connection, tenant, fuse(ranked)[:limit])


def fuse(ranked: Sequence[tuple[float, Sequence[Ranked]]]) -> list[tuple[Place, float]]:
    """One order out of several: each list gives a place its weight over its rank; 1 is first in every list."""
    sums: defaultdict[Place, float] = defaultdict(float)
    most = sum(weight for weight, _ in ranked) / (_RANK_OFFSET + 1)
    for weight, found in ranked:
        for position, each in enumerate(found, start=1):
            sums[each.scope, each.number] += weight / (_RANK_OFFSET + position) / most
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))


def _by_words(connection: Connection, tenant: str, query: str, within: Sequence[str], depth: int) -> list[Ranked]:
    asked = list(words_of(query))[:MOST_WORDS]
    if not asked:
        return []
    rows: list[Row] = []
    count = 0
    for scope in within:
        known = {"tenant": tenant, "scope": scope}
        count += connection.execute(_COUNT, known).scalar() or 0
        found = connection.execute(_PLACES, {**known, "asked": asked})
        rows.extend(Row(scope, word, block, places) for word, block, places in found)
    return rank(rows, passages=count, limit=depth)


_COUNT = select(scopes.c.passages).where(scopes.c.tenant == bindparam("tenant"), scopes.c.scope == bindparam("scope"))
# One scope at a time, since a list of them would keep PostgreSQL from seeing which partition it needs.
_PLACES = select(terms.c.term, terms.c.block, terms.c.places).where(
    terms.c.tenant == bindparam("tenant"),
    terms.c.scope == bindparam("scope"),
    terms.c.term.in_(bindparam("asked", expanding=True)),
)


def _read(connection: Connection, tenant: str, chosen: Iterable[tuple[Place, float]]) -> list[Hit]:
    scores = dict(chosen)
    by_scope: defaultdict[str, list[int]] = defaultdict(list)
    for scope, number in scores:
        by_scope[scope].append(number)
    found: dict[Place, Hit] = {}
    for scope, numbers in by_scope.items():
        for some in chunked(numbers):
            for number, *row in connection.execute(_HITS, {"tenant": tenant, "scope": scope, "numbers": some}):
                key, part, title, text, at = row
                found[scope, number] = Hit(scope, key, part, title, text, round(scores[scope, number], 6), at)
    return [found[place] for place in scores if place in found]


_HITS = select(
    passages.c.number, passages.c.key, passages.c.part, passages.c.title, passages.c.text, passages.c.at
).where(
    passages.c.tenant == bindparam("tenant"),
    passages.c.scope == bindparam("scope"),
    passages.c.number.in_(bindparam("numbers", expanding=True)),
)
