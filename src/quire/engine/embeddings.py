"""Embeddings of stored passages and of search queries. Without an embedder, search uses words alone (BM25)."""

from typing import Any

from quire.engine.context import EngineContext
from quire.errors import ModelError
from quire.llm.embeddings import Embedder, embed_texts
from quire.log.search.vectors import pack_vector
from quire.log.search_types import PassageVector

EMBED_BATCH_SIZE = 256
"""Passages embedded and stored at once."""


async def embed_scope(engine: EngineContext, scope: str) -> int:
    """Embeds every passage of the scope that has no vector and returns their number. An interrupted run can resume."""
    embedder, count = engine.embedder, 0
    if embedder is None:
        return count
    while passages := await engine.store.list_unembedded(scope, embedder=embedder.name, limit=EMBED_BATCH_SIZE):
        rows = await embed_texts(
            embedder, [f"{each.title}\n{each.text}" if each.title else each.text for each in passages]
        )
        vectors = [
            PassageVector(each.key, each.part, each.digest, pack_vector(row))
            for each, row in zip(passages, rows, strict=True)
        ]
        await engine.store.put_vectors(scope, vectors, embedder=embedder.name)
        count += len(vectors)
    return count


async def embed_query(query: str, embedder: Embedder | None) -> dict[str, Any]:
    """Vector arguments for a search; empty without an embedder or if it fails, so that words alone are searched."""
    if embedder is None:
        return {}
    try:
        [row] = await embed_texts(embedder, [query])
    except ModelError:
        return {}
    return {"vector": row, "embedder": embedder.name}
