"""Texts as vectors: what Quire asks of an embedder, and the small static model that needs no network.

Every row has unit length, so that a product of two is their cosine; a text with nothing in it gives a row of zeros,
which is like nothing else. Vectors of embedders with the same name may be compared, no others.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from quire.errors import MissingExtra

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

LONGEST_LOCAL = 20_000
"""Characters of a text that the static model reads; the mean of more words than that says little."""
IN_THREAD = 64
"""From so many texts on, embedding them takes long enough to be worth a thread."""


class Embedder(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row for each text, in their order. It may block: on the way to a network, or for long lists."""
        ...


@runtime_checkable
class AsyncEmbedder(Protocol):
    """An embedder that waits for a network rather than for the processor."""

    async def embed_async(self, texts: Sequence[str]) -> Vectors: ...


async def embedded(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    """The vectors without holding up the event loop, whichever kind of embedder makes them."""
    if isinstance(embedder, AsyncEmbedder):
        return await embedder.embed_async(texts)
    if len(texts) < IN_THREAD:
        return embedder.embed(texts)
    return await asyncio.to_thread(embedder.embed, texts)


def unit_rows(rows: NDArray[np.float64] | Vectors) -> Vectors:
    import numpy as np

    wide = rows.astype(np.float64)
    # First by the largest number, so that no square of one overflows or vanishes.
    largest = np.abs(wide).max(axis=1, keepdims=True, initial=0.0)
    wide = np.divide(wide, largest, out=np.zeros_like(wide), where=largest > 0)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.divide(wide, lengths, out=wide, where=lengths > 0).astype(np.float32)


class LocalEmbedder:
    """wordllama's static model: the mean of the vectors of a text's tokens. Offline; a text takes well under 1 ms."""

    def __init__(self, tokenizer: Any, table: Vectors) -> None:
        self.name = f"wordllama-{table.shape[1]}"
        self.dimensions = table.shape[1]
        self._tokenizer, self._table = tokenizer, table

    def embed(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        # One text at a time: in a batch each is padded to the longest, and the tokenizer starts threads of its own.
        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for place, text in enumerate(texts):
            ids = self._tokenizer.encode(encodable(text[:LONGEST_LOCAL]), add_special_tokens=False).ids
            if ids:
                rows[place] = self._table[ids].mean(axis=0)
        return unit_rows(rows)


_loading = Lock()


def local_embedder() -> LocalEmbedder:
    """The static model in wordllama's wheel, loaded once. Nothing is downloaded."""
    with _loading:
        return _load_local()


@cache
def _load_local() -> LocalEmbedder:
    try:
        with _kept_quiet():
            import wordllama  # pyright: ignore[reportMissingTypeStubs]

            cache_dir = Path(wordllama.__file__).parent
            model: Any = cast(Any, wordllama.WordLlama).load(cache_dir=cache_dir, disable_download=True)
    except ImportError as exc:
        raise MissingExtra(extra="embeddings", needed_for="Embedding text on this machine") from exc
    return LocalEmbedder(model.tokenizer, model.embedding)


@contextmanager
def _kept_quiet() -> Generator[None, None, None]:
    """wordllama sets up logging for the whole program when it is imported; that is the application's to do."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def encodable(text: str) -> str:
    """Without lone surrogates, which no encoder takes."""
    return text.encode("utf-8", "replace").decode()
