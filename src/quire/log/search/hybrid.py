"""Hybrid search: BM25 and vector rankings, combined by reciprocal rank fusion.

A query is any text: the tokenizer splits it like the passages, so it has no syntax.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, select

from quire.log.schema import passages, search_scopes, terms
from quire.log.search import vectors
from quire.log.search.inverted_index import split_chunks
from quire.log.search_types import Passage, SearchHit
from quire.search.postings import PostingRow, RankedPassage, rank_by_bm25

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

TEXT_WEIGHT = 1.0
VECTOR_WEIGHT = 0.7
# Damping constant of reciprocal rank fusion: the usual value; results hardly depend on it.
_RRF_K = 60

MAX_QUERY_TERMS = 64
"""Maximum terms of a query; later ones are ignored."""

PassageKey = tuple[str, int]
"""Scope and passage number."""


def hybrid_search(
    connection: Connection,
    tenant: str,
    query: str,
    *,
    scopes: Sequence[str],
    limit: int,
    vector: ArrayLike | None = None,
    embedder: str | None = None,
) -> list[SearchHit]:
    """The passages of these scopes that match the query, best first."""
    depth = max(3 * limit, 60)
    unique_scopes = list(dict.fromkeys(scopes))
    rankings = [(TEXT_WEIGHT, _rank_by_terms(connection, tenant, query, unique_scopes, depth))]
    if vector is not None and embedder is not None:
        nearest = [
            ranked
            for scope in unique_scopes
            for ranked in vectors.find_nearest(connection, tenant, scope, vector, embedder=embedder, limit=depth)
        ]
        nearest.sort(key=lambda ranked: -ranked.score)
        rankings.append((VECTOR_WEIGHT, nearest[:depth]))
    return _read_hits(connection, tenant, fuse_rankings(rankings)[:limit])


def fuse_rankings(rankings: Sequence[tuple[float, Sequence[RankedPassage]]]) -> list[tuple[PassageKey, float]]:
    """Reciprocal rank fusion: each ranking adds its weight over the rank; a passage first in every ranking scores 1."""
    sums: defaultdict[PassageKey, float] = defaultdict(float)
    max_score = sum(weight for weight, _ in rankings) / (_RRF_K + 1)
    for weight, ranking in rankings:
        for rank, each in enumerate(ranking, start=1):
            sums[each.scope, each.number] += weight / (_RRF_K + rank) / max_score
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))


def _rank_by_terms(
    connection: Connection, tenant: str, query: str, scope_names: Sequence[str], depth: int
) -> list[RankedPassage]:
    from quire.search.tokenizer import tokenize_query

    query_terms = tokenize_query(query)[:MAX_QUERY_TERMS]
    if not query_terms:
        return []
    rows: list[PostingRow] = []
    count = 0
    for scope in scope_names:
        params = {"tenant": tenant, "scope": scope}
        count += connection.execute(_PASSAGE_COUNT, params).scalar() or 0
        scope_rows = connection.execute(_POSTINGS, {**params, "query_terms": query_terms})
        rows.extend(PostingRow(scope, term, block, postings) for term, block, postings in scope_rows)
    return rank_by_bm25(rows, passage_count=count, limit=depth)


_PASSAGE_COUNT = select(search_scopes.c.passage_count).where(
    search_scopes.c.tenant == bindparam("tenant"), search_scopes.c.scope == bindparam("scope")
)
# One scope per statement: with a list of scopes PostgreSQL could not prune partitions.
_POSTINGS = select(terms.c.term, terms.c.block, terms.c.postings).where(
    terms.c.tenant == bindparam("tenant"),
    terms.c.scope == bindparam("scope"),
    terms.c.term.in_(bindparam("query_terms", expanding=True)),
)


def _read_hits(connection: Connection, tenant: str, scored: Iterable[tuple[PassageKey, float]]) -> list[SearchHit]:
    scores = dict(scored)
    by_scope: defaultdict[str, list[int]] = defaultdict(list)
    for scope, number in scores:
        by_scope[scope].append(number)
    hits: dict[PassageKey, SearchHit] = {}
    for scope, numbers in by_scope.items():
        for chunk in split_chunks(numbers):
            for number, *row in connection.execute(_HITS, {"tenant": tenant, "scope": scope, "numbers": chunk}):
                key, part, title, text, at, digest = row
                # A passage that was changed is no hit: requests contain its text.
                if Passage(key, text, part, title, at).digest == digest:
                    hits[scope, number] = SearchHit(scope, key, part, title, text, round(scores[scope, number], 6), at)
    return [hits[key] for key in scores if key in hits]


_HITS = select(
    passages.c.number,
    passages.c.key,
    passages.c.part,
    passages.c.title,
    passages.c.text,
    passages.c.at,
    passages.c.digest,
).where(
    passages.c.tenant == bindparam("tenant"),
    passages.c.scope == bindparam("scope"),
    passages.c.number.in_(bindparam("numbers", expanding=True)),
)
