"""The `Model` protocol and the values of a model call.

A call takes a `Prompt` and yields `ModelChunk`s. It ends in exactly one `Reply` or raises one `ModelError`. It is made
once: retries are the caller's decision.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Protocol

from quire.model import Message, ToolDefinition
from quire.view.wire_formats import BlobLoader, Reply


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
    """Extra HTTP headers, if the provider's client supports them."""


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
