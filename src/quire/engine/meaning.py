"""A question's vector, for the searches that can use one."""

from typing import Any

from quire.errors import ModelError
from quire.llm.embeddings import Embedder, embedded


async def meaning_of(question: str, embedder: Embedder | None) -> dict[str, Any]:
    """What a search takes besides words; nothing without an embedder, or where it is out of reach."""
    if embedder is None:
        return {}
    try:
        [row] = await embedded(embedder, [question])
    except ModelError:
        return {}
    return {"vector": row, "embedder": embedder.name}
