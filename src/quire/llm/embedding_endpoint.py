"""Embeddings from any OpenAI-compatible `/v1/embeddings` endpoint, with retry and exponential backoff.

A call returns exactly one row for each text, or raises one `ModelError`. Unlike a chat completion, it is cheap and has
no side effects, so it is retried when the server is busy or unreachable. The `llm` extra is needed only for a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from quire.errors import MissingExtra, ModelRateLimited, ModelRequestRejected, ModelUnavailable
from quire.llm.embeddings import normalize_rows
from quire.llm.error_mapping import classify_error, classify_response, map_transport_errors
from quire.model.base import replace_lone_surrogates

if TYPE_CHECKING:
    import httpx2

    from quire.llm.embeddings import Vectors

MAX_TEXT_CHARS = 8_000
"""Maximum characters of a text that are sent: about 2,000 tokens, which most models accept."""
MAX_BATCH_TEXTS, MAX_BATCH_CHARS = 128, 200_000
"""Maximum texts and characters in one request."""
MAX_BACKOFF_SECONDS = 20.0
"""Maximum seconds before a retry. If the server asks for a longer wait, the call fails."""


class EndpointEmbedder:
    """A model behind an OpenAI-compatible `/v1/embeddings`. `async with` reuses connections between calls.

    Of a long text the first `max_text_chars` are sent. When the server is busy or unreachable, a call is retried, for
    `attempts` attempts in all.
    """

    def __init__(
        self,
        url: str,
        model: str,
        api_key: str | None = None,
        *,
        dimensions: int,
        max_text_chars: int = MAX_TEXT_CHARS,
        timeout: float = 30.0,
        attempts: int = 3,
        backoff_seconds: float = 0.5,
    ) -> None:
        self.name, self.dimensions = f"{model}-{dimensions}", dimensions
        self.stored_dimensions = dimensions
        self._url = url if url.rstrip("/").endswith("/embeddings") else f"{url.rstrip('/')}/embeddings"
        self._model, self._api_key, self._max_text_chars = model, api_key, max_text_chars
        self._timeout, self._attempts, self._backoff_seconds = timeout, attempts, backoff_seconds
        self._client: httpx2.AsyncClient | None = None

    async def embed_async(self, texts: Sequence[str]) -> Vectors:
        async with self._make_client() if self._client is None else nullcontext(self._client) as client:
            return await self._embed(client, texts)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Like `embed_async`, for a thread without an event loop."""

        async def embed() -> Vectors:
            async with self._make_client() as client:
                return await self._embed(client, texts)

        return asyncio.run(embed())

    async def fetch_dimensions(self) -> int:
        """Asks the endpoint for the length of its vectors, whatever `dimensions` says."""
        async with self._make_client() as client:
            row = await self._fetch_vectors(client, ["How long is a vector?"], None)
        return row.shape[1]

    async def __aenter__(self) -> Self:
        self._client = self._make_client()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _make_client(self) -> httpx2.AsyncClient:
        try:
            import httpx2
        except ImportError as exc:
            raise MissingExtra(extra="llm", feature=f"Embedding text with {self._model}") from exc
        headers = {} if self._api_key is None else {"authorization": f"Bearer {self._api_key}"}
        return httpx2.AsyncClient(headers=headers, timeout=self._timeout)

    async def _embed(self, client: httpx2.AsyncClient, texts: Sequence[str]) -> Vectors:
        """Sends the texts in batches. An empty text is not sent, because servers reject a batch that contains one."""
        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        inputs = {
            index: replace_lone_surrogates(text[: self._max_text_chars])
            for index, text in enumerate(texts)
            if text.strip()
        }
        batches: list[list[int]] = [[]]
        batch_chars = 0
        for index, text in inputs.items():
            if len(batches[-1]) == MAX_BATCH_TEXTS or (batches[-1] and batch_chars + len(text) > MAX_BATCH_CHARS):
                batches.append([])
                batch_chars = 0
            batches[-1].append(index)
            batch_chars += len(text)
        for batch in filter(None, batches):
            rows[batch] = await self._fetch_vectors(client, [inputs[index] for index in batch], self.dimensions)
        return rows

    async def _fetch_vectors(self, client: httpx2.AsyncClient, texts: list[str], dimensions: int | None) -> Vectors:
        """Returns a row for each text, of any length if `dimensions` is None. Transient errors are retried."""
        for attempt in range(1, self._attempts + 1):
            try:
                return _parse_rows(await self._post(client, texts), len(texts), dimensions, self._model)
            except (ModelRateLimited, ModelUnavailable) as exc:
                if attempt == self._attempts:
                    raise
                delay = self._backoff_seconds * 2 ** (attempt - 1)
                if isinstance(exc, ModelRateLimited) and exc.retry_after is not None:
                    delay = max(delay, exc.retry_after)
                if delay > MAX_BACKOFF_SECONDS:
                    raise
                await asyncio.sleep(delay)
        raise ModelRequestRejected(
            f"{self._model} was not called: `attempts` is {self._attempts}; allow at least one attempt."
        )

    async def _post(self, client: httpx2.AsyncClient, texts: list[str]) -> object:
        body = {"model": self._model, "input": texts, "encoding_format": "float"}
        with map_transport_errors(target=self._model, url_name="the URL for embeddings"):
            # The client's timeout is per read; a server that sends a byte now and then would never reach it.
            async with asyncio.timeout(self._timeout):
                response = await client.post(self._url, json=body)
        if response.status_code >= 300:
            raise classify_response(response, model=self._model)
        try:
            return cast(object, response.json())
        except ValueError as exc:
            raise ModelUnavailable(f"{self._model} returned a response that is not JSON; check the URL.") from exc


async def connect_endpoint_embedder(
    url: str, model: str, api_key: str | None = None, **options: Any
) -> EndpointEmbedder:
    """Makes an embedder for this endpoint, with the dimensions found by one request. `EndpointEmbedder` takes the
    `options`."""
    dimensions = await EndpointEmbedder(url, model, api_key, dimensions=0, **options).fetch_dimensions()
    return EndpointEmbedder(url, model, api_key, dimensions=dimensions, **options)


def _parse_rows(response: object, count: int, dimensions: int | None, model: str) -> Vectors:
    """Returns the vectors in the order of the texts. Raises an error unless there is exactly one for each text."""
    if isinstance(response, dict) and "error" in response and "data" not in response:
        raise classify_error(200, cast(object, response), model=model)
    try:
        items = cast(Any, response)["data"]
        vectors = {int(item.get("index", position)): item["embedding"] for position, item in enumerate(items)}
        rows = np.array([vectors[index] for index in range(count)], dtype=np.float64)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise ModelRequestRejected(
            f"{model} returned no list of vectors for {count} texts; check that it is an embedding model."
        ) from exc
    if len(items) != count or rows.ndim != 2 or not rows.shape[1] or not np.isfinite(rows).all():
        raise ModelRequestRejected(
            f"{model} returned invalid vectors for {count} texts; check that it is an embedding model."
        )
    if dimensions is not None and rows.shape[1] != dimensions:
        raise ModelRequestRejected(
            f"{model} returned vectors of {rows.shape[1]} dimensions instead of {dimensions}; "
            "correct its dimensions, and rebuild indexes made with others."
        )
    return normalize_rows(rows)
