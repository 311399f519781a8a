"""Passages by what they mean: the exact order of a scope's vectors.

PostgreSQL orders them itself where it has the extension `vector`. Elsewhere they stand in the index, a block of
numbers a row, and are multiplied here. Either way every vector is looked at, and none is missed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select, text

from quire.errors import StoreError
from quire.log import schema, terms
from quire.log.driver import fetch_bytes
from quire.log.extension import has_extension
from quire.log.postings import Ranked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

_BLOCK = 256
_ROWS_AT_ONCE = 64


def packed(vector: ArrayLike) -> bytes:
    """A vector as the store keeps it: in bytes, of unit length; zeros, which nothing is near to, where it has none."""
    import numpy as np

    given = np.asarray(vector, dtype=np.float32)
    if given.ndim != 1 or not given.size:
        raise StoreError(f"A vector is one row of numbers, and this has the shape {given.shape}; pack row by row.")
    length = float(np.linalg.norm(given))
    unit = given / length if length and np.isfinite(length) else np.zeros_like(given)
    return unit.astype("<f4").tobytes()


def add(connection: Connection, tenant: str, scope: str, given: Sequence[tuple[int, bytes]], *, embedder: str) -> None:
    """Gives passages, by number, the vectors that this embedder made of them."""
    if has_extension(connection):
        known = {"numbers": [number for number, _ in given], "vectors": [_written_out(vector) for _, vector in given]}
        connection.execute(_EMBED, {"tenant": tenant, "scope": scope, **known})
        return
    added: defaultdict[terms.Place, bytearray] = defaultdict(bytearray)
    for number, vector in given:
        added[number // _BLOCK, _term(embedder, len(vector) // 4)] += number.to_bytes(4, "little") + vector
    terms.add(connection, tenant, scope, {place: bytes(data) for place, data in added.items()})


_EMBED = text("""
    UPDATE quire_passages AS stored SET vector = CAST(given.vector AS vector)
    FROM unnest(CAST(:numbers AS bigint[]), CAST(:vectors AS text[])) AS given (number, vector)
    WHERE stored.tenant = :tenant AND stored.scope = :scope AND stored.number = given.number
""")


def remove(connection: Connection, tenant: str, scope: str, gone: Iterable[tuple[int, str | None]]) -> None:
    """These passages, by number, lose the vector that the embedder made of them, where it stands in the index."""
    by_embedder: defaultdict[str, set[int]] = defaultdict(set)
    for number, embedder in gone:
        if embedder is not None:
            by_embedder[embedder].add(number)
    if not by_embedder or has_extension(connection):
        return
    for embedder, numbers in by_embedder.items():
        for term in _terms_of(connection, tenant, scope, embedder):
            having: defaultdict[terms.Place, set[int]] = defaultdict(set)
            for number in numbers:
                having[number // _BLOCK, term].add(number)
            left = partial(_without, dimensions=int(term.rpartition(":")[2]))
            terms.take_out(connection, tenant, scope, having, without=left)


def nearest(
    connection: Connection, tenant: str, scope: str, vector: ArrayLike, *, embedder: str, limit: int
) -> list[Ranked]:
    """The passages whose vectors, made by the same embedder, point most nearly the same way; the nearest first."""
    known = {"tenant": tenant, "scope": scope}
    order = _ordered_there if has_extension(connection) else _ordered_here
    found = order(connection, known, packed(vector), embedder, limit)
    return [Ranked(scope, number, score) for number, score in found if score > 0]


def _term(embedder: str, dimensions: int) -> str:
    """No word has a colon in it."""
    return f"vector:{embedder}:{dimensions}"


def _terms_of(connection: Connection, tenant: str, scope: str, embedder: str) -> list[str]:
    found = schema.terms.c
    wanted = select(found.term).where(
        found.tenant == tenant,
        found.scope == scope,
        found.term > f"vector:{embedder}:",
        found.term < f"vector:{embedder};",
    )
    return list(connection.execute(wanted.distinct()).scalars())


def _without(places: bytes, numbers: Collection[int], *, dimensions: int) -> bytes:
    import numpy as np

    stored, rows = _parted(places, dimensions)
    return rows[~np.isin(stored, list(numbers))].tobytes()


def _parted(places: bytes, dimensions: int) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """The numbers, and whole rows of which the number takes the first four bytes."""
    import numpy as np

    rows = np.frombuffer(places, dtype="<f4").reshape(-1, dimensions + 1)
    return rows.view("<u4")[:, 0], rows


def _written_out(vector: bytes) -> str:
    import numpy as np

    return f"[{','.join(map('{:.9g}'.format, np.frombuffer(vector, dtype='<f4').tolist()))}]"


def _ordered_there(
    connection: Connection, known: Mapping[str, Any], vector: bytes, embedder: str, limit: int
) -> list[tuple[int, float]]:
    asked = {"embedder": embedder, "vector": _written_out(vector), "dimensions": len(vector) // 4, "limit": limit}
    return [(row.number, row.score) for row in connection.execute(_NEAREST, {**known, **asked})]


# Of unit length, so that the inner product is the cosine.
_NEAREST = text("""
    SELECT number, -(vector <#> CAST(:vector AS vector)) AS score FROM quire_passages
    WHERE tenant = :tenant AND scope = :scope AND embedder = :embedder AND vector_dims(vector) = :dimensions
    ORDER BY vector <#> CAST(:vector AS vector), number LIMIT :limit
""")


def _ordered_here(
    connection: Connection, known: Mapping[str, Any], vector: bytes, embedder: str, limit: int
) -> list[tuple[int, float]]:
    import numpy as np

    asked = np.frombuffer(vector, dtype="<f4")
    numbers: list[NDArray[np.uint32]] = []
    scores: list[NDArray[np.float32]] = []
    for places in _blocks(connection, {**known, "term": _term(embedder, len(asked))}):
        number, rows = _parted(places, len(asked))
        numbers.append(number)
        scores.append(rows[:, 1:] @ asked)
    if not numbers:
        return []
    number, score = np.concatenate(numbers), np.concatenate(scores)
    order = np.lexsort((number, -score))[:limit]
    return [(int(number[place]), float(score[place])) for place in order]


def _blocks(connection: Connection, known: Mapping[str, Any]) -> Iterator[bytes]:
    """So many at a time that memory stays small."""
    last = -1
    while rows := fetch_bytes(connection, _VECTORS, {**known, "last": last}):
        yield from (places for _, places in rows)
        last = rows[-1][0]


_VECTORS = text(f"""
    SELECT block, places FROM quire_terms
    WHERE tenant = :tenant AND scope = :scope AND term = :term AND block > :last
    ORDER BY block LIMIT {_ROWS_AT_ONCE}
""")  # noqa: S608 (a constant)
