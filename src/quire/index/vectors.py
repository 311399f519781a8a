"""Vector search: exact cosine similarities.

PostgreSQL compares the vectors where it has the extension pgvector. Elsewhere they are stored in the rows of the
inverted index, by blocks, and compared in this process. Both scan every vector of the scope, so the result is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select, text

from quire.db import schema
from quire.db.column_types import VECTOR_TERM_PREFIX, seal_value
from quire.db.pgvector import uses_pgvector
from quire.errors import StoreError
from quire.index import inverted_index
from quire.search.postings import IndexRowKey

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

_VECTORS_PER_BLOCK = 256
_BLOCKS_PER_READ = 64
"""Rows per statement, to bound memory."""


def pack_vector(vector: ArrayLike) -> bytes:
    """Packs a vector for the store: float32 bytes of unit length. Zeros, which match nothing, if it has no length."""
    import numpy as np

    array = np.asarray(vector, dtype=np.float32)
    if array.ndim != 1 or not array.size:
        raise StoreError(f"A vector must have one dimension, but this has the shape {array.shape}; pack row by row.")
    length = float(np.linalg.norm(array))
    unit = array / length if length and np.isfinite(length) else np.zeros_like(array)
    return unit.astype("<f4").tobytes()


def add_vectors(
    connection: Connection, tenant: str, scope: str, numbered: Sequence[tuple[int, bytes]], *, embedder: str
) -> None:
    """Stores vectors of this embedder for passages, given by number."""
    if uses_pgvector(connection):
        params = {
            "numbers": [number for number, _ in numbered],
            "vectors": [_to_pgvector_text(vector) for _, vector in numbered],
        }
        connection.execute(_SET_VECTORS, {"tenant": tenant, "scope": scope, **params})
        return
    added: defaultdict[IndexRowKey, bytearray] = defaultdict(bytearray)
    for number, vector in numbered:
        added[number // _VECTORS_PER_BLOCK, _vector_term(embedder, len(vector) // 4)] += (
            number.to_bytes(4, "little") + vector
        )
    inverted_index.append_index_rows(connection, tenant, scope, {key: bytes(data) for key, data in added.items()})


_SET_VECTORS = text("""
    UPDATE quire_passages AS stored SET vector = CAST(incoming.vector AS vector)
    FROM unnest(CAST(:numbers AS bigint[]), CAST(:vectors AS text[])) AS incoming (number, vector)
    WHERE stored.tenant = :tenant AND stored.scope = :scope AND stored.number = incoming.number
""")


def remove_vectors(connection: Connection, tenant: str, scope: str, removed: Iterable[tuple[int, str | None]]) -> None:
    """Removes vectors of these passages, given by number and embedder, from the index rows."""
    by_embedder: defaultdict[str, set[int]] = defaultdict(set)
    for number, embedder in removed:
        if embedder is not None:
            by_embedder[embedder].add(number)
    if not by_embedder or uses_pgvector(connection):
        return
    for embedder, numbers in by_embedder.items():
        columns = schema.terms.c
        vector_terms = select(columns.term).where(
            columns.tenant == tenant,
            columns.scope == scope,
            columns.term > f"{VECTOR_TERM_PREFIX}{embedder}:",
            columns.term < f"{VECTOR_TERM_PREFIX}{embedder};",
        )
        for term in connection.execute(vector_terms.distinct()).scalars().all():
            numbers_by_row: defaultdict[IndexRowKey, set[int]] = defaultdict(set)
            for number in numbers:
                numbers_by_row[number // _VECTORS_PER_BLOCK, term].add(number)
            remove = partial(_remove_numbers, dimensions=int(term.rpartition(":")[2]))
            inverted_index.remove_from_index_rows(connection, tenant, scope, numbers_by_row, remove_numbers=remove)


def find_similar(
    connection: Connection,
    tenant: str,
    scope: str,
    vector: ArrayLike,
    *,
    embedder: str,
    limit: int,
    also: Collection[int] = (),
) -> dict[int, float]:
    """Cosines above 0 of the `limit` passages with the most similar vectors of the same embedder, nearest first, and of
    the passages `also`."""
    params = {"tenant": tenant, "scope": scope}
    packed = pack_vector(vector)
    if uses_pgvector(connection):
        params |= {"embedder": embedder, "vector": _to_pgvector_text(packed)}
        params |= {"dimensions": len(packed) // 4, "limit": limit, "also": list(also)}
        similar = [tuple(row) for row in connection.execute(_SIMILAR, params)]
    else:
        similar = _compare_in_process(connection, params, packed, embedder, limit, also)
    return {number: score for number, score in similar if score > 0}


# Vectors have unit length, so the inner product is the cosine similarity.
_SIMILAR = text("""
    WITH own AS (
        SELECT number, -(vector <#> CAST(:vector AS vector)) AS score FROM quire_passages
        WHERE tenant = :tenant AND scope = :scope AND embedder = :embedder AND vector_dims(vector) = :dimensions
    )
    (SELECT number, score FROM own ORDER BY score DESC, number LIMIT :limit)
    UNION ALL SELECT number, score FROM own WHERE number = ANY(:also)
""")


def _vector_term(embedder: str, dimensions: int) -> str:
    """The index term of vectors. It cannot collide with a word, since no word contains a colon."""
    return f"{VECTOR_TERM_PREFIX}{embedder}:{dimensions}"


def _remove_numbers(data: bytes, numbers: Collection[int], *, dimensions: int) -> bytes:
    import numpy as np

    stored, rows = _split_rows(data, dimensions)
    return rows[~np.isin(stored, list(numbers))].tobytes()


def _split_rows(data: bytes, dimensions: int) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """The passage numbers, and the whole rows, whose first four bytes are the number."""
    import numpy as np

    rows = np.frombuffer(data, dtype="<f4").reshape(-1, dimensions + 1)
    return rows.view("<u4")[:, 0], rows


def _to_pgvector_text(vector: bytes) -> str:
    import numpy as np

    return f"[{','.join(map('{:.9g}'.format, np.frombuffer(vector, dtype='<f4').tolist()))}]"


def _compare_in_process(
    connection: Connection,
    params: Mapping[str, Any],
    vector: bytes,
    embedder: str,
    limit: int,
    also: Collection[int],
) -> list[tuple[int, float]]:
    import numpy as np

    query = np.frombuffer(vector, dtype="<f4")
    numbers: list[NDArray[np.uint32]] = []
    scores: list[NDArray[np.float32]] = []
    scope = seal_value(schema.terms.c.scope, params["scope"])
    block_params = {**params, "scope": scope, "term": _vector_term(embedder, len(query)), "last": -1}
    while blocks := connection.execute(_VECTOR_BLOCKS, block_params).all():
        for _, block in blocks:
            number, rows = _split_rows(block, len(query))
            numbers.append(number)
            scores.append(rows[:, 1:] @ query)
        block_params["last"] = blocks[-1][0]
    if not numbers:
        return []
    number, score = np.concatenate(numbers), np.concatenate(scores)
    chosen = np.concatenate([np.lexsort((number, -score))[:limit], np.flatnonzero(np.isin(number, list(also)))])
    return list(zip(number[chosen].tolist(), score[chosen].tolist(), strict=True))


_VECTOR_BLOCKS = text(f"""
    SELECT block, postings FROM quire_terms
    WHERE tenant = :tenant AND scope = :scope AND term = :term AND block > :last
    ORDER BY block LIMIT {_BLOCKS_PER_READ}
""").columns(schema.terms.c.block, schema.terms.c.postings)  # noqa: S608 (a constant)
