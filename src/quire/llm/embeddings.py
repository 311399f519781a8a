"""Text embeddings: the `Embedder` protocol, and a small static model that works offline.

Every row has unit length, so that the dot product of two rows is their cosine similarity; an empty text gives a row of
zeros, similar to nothing. Only vectors of embedders with the same name are comparable.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from quire.errors import MissingExtra
from quire.model.base import replace_lone_surrogates

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

MAX_LOCAL_TEXT_CHARS = 20_000
"""Maximum characters of a text that the static model reads. The mean over more words has little meaning."""
MATRYOSHKA_DIMENSIONS = 128
"""Leading dimensions of the static model that are stored: it is trained to be truncated."""
MAX_CACHED_WORDS, MAX_CACHED_WORD_CHARS = 65_536, 40
"""Words whose token ids the static model caches, and their maximum length."""
MIN_THREAD_BATCH_SIZE = 64
"""Minimum number of texts for which a thread is worth its cost."""


class Embedder(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Returns one row for each text, in their order. It may block, on the network or the CPU."""
        ...


@runtime_checkable
class AsyncEmbedder(Protocol):
    """An embedder that waits for the network, not for the CPU."""

    async def embed_async(self, texts: Sequence[str]) -> Vectors: ...


async def embed_texts(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    """Embeds texts with any kind of embedder without blocking the event loop."""
    if isinstance(embedder, AsyncEmbedder):
        return await embedder.embed_async(texts)
    if len(texts) < MIN_THREAD_BATCH_SIZE:
        return embedder.embed(texts)
    return await asyncio.to_thread(embedder.embed, texts)


def normalize_rows(rows: NDArray[np.float64] | Vectors) -> Vectors:
    import numpy as np

    wide = rows.astype(np.float64)
    # Divide by the largest number first, so that no square overflows or underflows.
    largest = np.abs(wide).max(axis=1, keepdims=True, initial=0.0)
    wide = np.divide(wide, largest, out=np.zeros_like(wide), where=largest > 0)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.divide(wide, lengths, out=wide, where=lengths > 0).astype(np.float32)


class LocalEmbedder:
    """wordllama's static model: the mean of a text's token vectors. Offline. A text takes well under 1 ms."""

    def __init__(self, tokenizer: Any, table: Vectors) -> None:
        self.name = f"wordllama-{table.shape[1]}"
        self.dimensions = table.shape[1]
        self.stored_dimensions = min(MATRYOSHKA_DIMENSIONS, self.dimensions)
        self._tokenizer, self._table = tokenizer, table
        self._word_ids = _WordIdCache(self._encode)

    def embed(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for index, text in enumerate(texts):
            text = replace_lone_surrogates(text[:MAX_LOCAL_TEXT_CHARS])
            if not text or text[0] == " " or text[-1] == " " or any(map(text.__contains__, _UNSPLITTABLE)):
                ids = self._encode(text)
            else:
                # The ids of the words in order: no token of the model spans a single space.
                ids = list(chain.from_iterable(map(self._word_ids.__getitem__, text.split(" "))))
            if ids:
                # The sum has the direction of the mean, and every row gets unit length below.
                rows[index] = np.add.reduce(self._table.take(ids, axis=0), axis=0)
        return normalize_rows(rows)

    def _encode(self, text: str) -> list[int]:
        # One text at a time: a batch pads each text to the longest, and makes the tokenizer start threads.
        return self._tokenizer.encode(text, add_special_tokens=False).ids


_UNSPLITTABLE = ("  ", "\u2581", "<")
"""Several spaces, which have tokens of their own, the tokenizer's mark of a space, and the beginning of its special
tokens."""


class _WordIdCache(dict[str, list[int]]):
    """Token ids of words, which are encoded at the first lookup. Emptied when it is full."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode_word = encode

    def __missing__(self, word: str) -> list[int]:
        ids = self._encode_word(word)
        if len(word) <= MAX_CACHED_WORD_CHARS:
            if len(self) >= MAX_CACHED_WORDS:
                self.clear()
            self[word] = ids
        return ids


_load_lock = Lock()


def load_local_embedder() -> LocalEmbedder:
    """Loads the static model from wordllama's wheel, once per process. Nothing is downloaded."""
    with _load_lock:
        return _load_wordllama()


@cache
def _load_wordllama() -> LocalEmbedder:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import wordllama  # pyright: ignore[reportMissingTypeStubs]

            cache_dir = Path(wordllama.__file__).parent
            model: Any = cast(Any, wordllama.WordLlama).load(cache_dir=cache_dir, disable_download=True)
    except ImportError as exc:
        raise MissingExtra(extra="embeddings", feature="Embedding text on this machine") from exc
    finally:
        # Undoes wordllama's logging setup at import: configuring logging is up to the application.
        root.handlers[:] = handlers
        root.setLevel(level)
    return LocalEmbedder(model.tokenizer, model.embedding)
