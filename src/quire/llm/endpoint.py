"""Vectors from any OpenAI-compatible `/v1/embeddings`.

A call gives exactly the rows that were asked for, or raises one `ModelError`; unlike a reply, it costs little and says
nothing, so it is repeated where the server was busy or out of reach. Nothing here needs the `llm` extra until then.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from quire.errors import MissingExtra, ModelInvalid, ModelThrottled, ModelUnavailable
from quire.llm.embeddings import encodable, unit_rows
from quire.llm.faults import sort_error

if TYPE_CHECKING:
    import httpx2

    from quire.llm.embeddings import Vectors

LONGEST = 8_000
"""Characters of a text that are sent: about the 2,000 tokens that most models take."""
BATCH_TEXTS, BATCH_CHARACTERS = 128, 200_000
LONGEST_WAIT = 20.0
"""Seconds: a server that asks for more than this is left alone."""


class EndpointEmbedder:
    """A model behind an OpenAI-compatible `/v1/embeddings`. `async with` keeps its connections between calls.

    Of a long text the first `longest` characters are sent. Where the server is busy or out of reach, a call is
    repeated, `attempts` times in all.
    """

    def __init__(
        self,
        url: str,
        model: str,
        key: str | None = None,
        *,
        dimensions: int,
        longest: int = LONGEST,
        timeout: float = 30.0,
        attempts: int = 3,
        pause: float = 0.5,
    ) -> None:
        self.name, self.dimensions = f"{model}-{dimensions}", dimensions
        self._caller = _Caller(url, model, key, timeout=timeout, attempts=attempts, pause=pause)
        self._longest = longest
        self._client: httpx2.AsyncClient | None = None

    async def embed_async(self, texts: Sequence[str]) -> Vectors:
        async with self._connected() as client:
            return await self._embed(client, texts)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """The same, for a thread that has no event loop."""

        async def embed() -> Vectors:
            async with self._caller.client() as client:
                return await self._embed(client, texts)

        return asyncio.run(embed())

    async def _embed(self, client: httpx2.AsyncClient, texts: Sequence[str]) -> Vectors:
        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        # Servers refuse an empty text, and with it the whole batch.
        cut = {place: encodable(text[: self._longest]) for place, text in enumerate(texts) if text.strip()}
        for places in _batches({place: len(text) for place, text in cut.items()}):
            rows[places] = await self._caller.ask(client, [cut[place] for place in places], dimensions=self.dimensions)
        return rows

    async def __aenter__(self) -> Self:
        self._client = self._caller.client()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[httpx2.AsyncClient, None]:
        if self._client is not None:
            yield self._client
        else:
            async with self._caller.client() as client:
                yield client


async def endpoint_embedder(url: str, model: str, key: str | None = None, **options: Any) -> EndpointEmbedder:
    """The model at this endpoint, asked once how long its vectors are. `options` are those of `EndpointEmbedder`."""
    timed = {name: options[name] for name in ("timeout", "attempts", "pause") if name in options}
    caller = _Caller(url, model, key, **timed)
    async with caller.client() as client:
        row = await caller.ask(client, ["How long is a vector?"], dimensions=None)
    return EndpointEmbedder(url, model, key, dimensions=row.shape[1], **options)


class _Caller:
    """Calls to one model at one endpoint, repeated where that may help."""

    def __init__(
        self, url: str, model: str, key: str | None, *, timeout: float = 30.0, attempts: int = 3, pause: float = 0.5
    ) -> None:
        self._url = url if url.rstrip("/").endswith("/embeddings") else f"{url.rstrip('/')}/embeddings"
        self._model, self._key = model, key
        self._timeout, self._attempts, self._pause = timeout, attempts, pause

    def client(self) -> httpx2.AsyncClient:
        try:
            import httpx2
        except ImportError as exc:
            raise MissingExtra(extra="llm", needed_for=f"Embedding text with {self._model}") from exc
        headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        return httpx2.AsyncClient(headers=headers, timeout=self._timeout)

    async def ask(self, client: httpx2.AsyncClient, texts: list[str], *, dimensions: int | None) -> Vectors:
        for attempt in range(1, self._attempts + 1):
            try:
                return _rows(await self._post(client, texts), len(texts), dimensions, self._model)
            except (ModelThrottled, ModelUnavailable) as exc:
                if attempt == self._attempts:
                    raise
                wait = self._pause * 2 ** (attempt - 1)
                if isinstance(exc, ModelThrottled) and exc.retry_after is not None:
                    wait = max(wait, exc.retry_after)
                if wait > LONGEST_WAIT:
                    raise
                await asyncio.sleep(wait)
        raise ModelInvalid(f"{self._model} was asked {self._attempts} times; allow at least one attempt.")

    async def _post(self, client: httpx2.AsyncClient, texts: list[str]) -> object:
        import httpx2

        body = {"model": self._model, "input": texts, "encoding_format": "float"}
        try:
            # The client's own time-out is for each step; a server that sends a byte now and then would never end.
            async with asyncio.timeout(self._timeout):
                answer = await client.post(self._url, json=body)
        except TimeoutError as exc:
            raise ModelUnavailable(f"{self._model} gave no vectors in time; repeat the call later.") from exc
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as exc:
            raise ModelInvalid(f"{self._url} is no address for embeddings: {exc}") from exc
        except (httpx2.HTTPError, OSError) as exc:
            why = str(exc) or type(exc).__name__
            raise ModelUnavailable(f"{self._model} at {self._url} cannot be reached: {why}") from exc
        if answer.status_code >= 300:
            raise sort_error(answer.status_code, answer.text, model=self._model, retry_after=_retry_after(answer))
        try:
            return cast(object, answer.json())
        except ValueError as exc:
            raise ModelUnavailable(f"{self._model} gave an answer that is no JSON; check the address.") from exc


def _retry_after(answer: httpx2.Response) -> float | None:
    try:
        seconds = float(answer.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _rows(answer: object, count: int, dimensions: int | None, model: str) -> Vectors:
    """The answer's vectors in the order of the texts; an answer that is not exactly that is refused."""
    if isinstance(answer, dict) and "error" in answer and "data" not in answer:
        raise sort_error(200, cast(object, answer), model=model)
    try:
        items = cast(Any, answer)["data"]
        placed = {int(item.get("index", place)): item["embedding"] for place, item in enumerate(items)}
        rows = np.array([placed[place] for place in range(count)], dtype=np.float64)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise ModelInvalid(f"{model} gave no list of vectors for {count} texts; is it an embedding model?") from exc
    if len(items) != count or rows.ndim != 2 or not rows.shape[1] or not np.isfinite(rows).all():
        raise ModelInvalid(f"{model} gave vectors that cannot be used for {count} texts; is it an embedding model?")
    if dimensions is not None and rows.shape[1] != dimensions:
        raise ModelInvalid(
            f"{model} gives vectors of {rows.shape[1]} numbers, and {dimensions} were expected; "
            "set its dimensions, and index again what was indexed with others."
        )
    return unit_rows(rows)


def _batches(lengths: dict[int, int]) -> Iterator[list[int]]:
    batch: list[int] = []
    characters = 0
    for place, length in lengths.items():
        if batch and (len(batch) == BATCH_TEXTS or characters + length > BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(place)
        characters += length
    if batch:
        yield batch
