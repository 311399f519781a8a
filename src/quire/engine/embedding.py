"""Vectors for the passages of a scope that lack them; without an embedder words alone find them."""

from quire.engine.core import Core
from quire.llm.embeddings import embedded
from quire.log.found import Embedded
from quire.log.vectors import packed

EMBEDDED_AT_ONCE = 256


async def embed_scope(engine: Core, scope: str) -> int:
    """Gives every passage its vector, and says how many got one. What is broken off goes on where it stopped."""
    embedder, made = engine.embedder, 0
    if embedder is None:
        return made
    while waiting := await engine.store.unembedded(scope, embedder=embedder.name, limit=EMBEDDED_AT_ONCE):
        rows = await embedded(embedder, [f"{each.title}\n{each.text}" if each.title else each.text for each in waiting])
        vectors = [
            Embedded(each.key, each.part, each.digest, packed(row)) for each, row in zip(waiting, rows, strict=True)
        ]
        await engine.store.put_vectors(scope, vectors, embedder=embedder.name)
        made += len(vectors)
    return made
