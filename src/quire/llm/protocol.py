"""The `Model` protocol and the values of a model call.

A call takes a `Prompt` and yields `ModelChunk`s. It ends in exactly one `Reply` or raises one `ModelError`. It is made
once: retries are the caller's decision.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quire.errors import MissingExtra, ModelRequestRejected
from quire.model import Message, ToolDefinition
from quire.wire import BlobLoader, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Input of a model call. `load_blob` loads the blobs of messages; without it the model sees only their names."""

    system: str | None
    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    timeout: float | None = None
    """Seconds to wait for the whole reply, or, when streaming, for the next chunk."""
    load_blob: BlobLoader | None = None
    headers: Mapping[str, str] | None = None
    """Extra HTTP headers."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of the tool call at `index` among the reply's parts; `id` and `name` are set once they are known."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


ModelChunk = TextDelta | ThinkingDelta | ToolCallDelta | Reply


class Model(Protocol):
    @property
    def name(self) -> str: ...

    async def complete(self, prompt: Prompt) -> Reply:
        """Returns the whole reply. Its `finish_reason` is None if the provider gave none: it may be incomplete."""
        ...

    def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        """Yields deltas as they arrive, then the complete reply. Closing the stream early aborts the request."""
        ...


ModelBuilder = Callable[[str], Model]
"""Returns the model of a name."""


@dataclass(slots=True)
class DeferredModel:
    """A model that is built when it is first called: naming one needs no API key, no package and no server.

    An error of `build` is the error of that call.
    """

    name: str
    build: Callable[[], Model]
    _model: Model | None = field(default=None, init=False)

    async def complete(self, prompt: Prompt) -> Reply:
        return await (await self._get_model()).complete(prompt)

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        async for chunk in (await self._get_model()).stream(prompt):
            yield chunk

    async def _get_model(self) -> Model:
        if self._model is None:
            try:
                # In a thread, because the first one imports the HTTP client.
                self._model = await asyncio.to_thread(self.build)
            except MissingExtra as exc:
                raise ModelRequestRejected(str(exc)) from exc
        return self._model
