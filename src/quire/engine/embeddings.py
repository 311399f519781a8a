"""Embeddings of stored passages and of search queries. Without an embedder, search uses words alone (BM25)."""

from typing import TYPE_CHECKING

from quire.engine.state import EngineState
from quire.errors import ModelError
from quire.index.types import PassageVector, SearchHit
from quire.index.vectors import pack_vector
from quire.llm.embeddings import Embedder, embed_texts
from quire.store import SqlStore

if TYPE_CHECKING:
    from quire.search.vectors import FloatArray

EMBED_BATCH_SIZE = 256
"""Passages embedded and stored at once."""


async def embed_scope(engine: EngineState, scope: str) -> int:
    """Embeds every passage of the scope that has no vector and returns their number. An interrupted run can resume."""
    embedder, count = engine.embedder, 0
    if embedder is None:
        return count
    while passages := await engine.store.passages.list_unembedded(
        scope, embedder=embedder.name, limit=EMBED_BATCH_SIZE
    ):
        rows = await embed_texts(
            embedder, [f"{each.title}\n{each.text}" if each.title else each.text for each in passages]
        )
        vectors = [
            PassageVector(each.key, each.part, each.digest, pack_vector(row))
            for each, row in zip(passages, rows, strict=True)
        ]
        await engine.store.passages.put_vectors(scope, vectors, embedder=embedder.name)
        count += len(vectors)
    return count


async def embed_query(embedder: Embedder | None, query: str, *, subject: str = "") -> "FloatArray | None":
    """Vector of a query: the mean of its text and its subject, so that words about the request weigh less.

    None without an embedder or without words, or if the embedder fails: words alone are searched then.
    """
    texts = list(dict.fromkeys(text for text in (query, subject) if text.strip()))
    if embedder is None or not texts:
        return None
    try:
        rows = await embed_texts(embedder, texts)
    except ModelError:
        return None
    if len(rows) == 1:
        return rows[0]
    import numpy as np

    return (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)).mean(axis=0)


async def search_passages(
    store: SqlStore, embedder: Embedder | None, query: str, *, scope: str, limit: int
) -> list[SearchHit]:
    """Searches the passages of a scope, documents or memories, by words and by meaning."""
    # The import takes long, and most commands search nothing.
    from quire.search.query import parse_query

    parsed = parse_query(query, at=0)
    vector = await embed_query(embedder, parsed.text, subject=parsed.subject)
    name = embedder.name if embedder is not None else None
    return await store.passages.search(query, scopes=[scope], limit=limit, vector=vector, embedder=name)
