"""What Quire asks of any model, and how one is found by its name.

Owns the values of a call: `Prompt` in, `Chunk`s and a `Reply` out. A call either ends in exactly one reply or raises
one `ModelError`; it is made once, and whether to repeat it is for the caller to decide.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from quire.errors import MissingExtra
from quire.model import Message, ToolDefinition
from quire.view.shapes import Load, Reply

if TYPE_CHECKING:
    from quire.llm.direct import DirectModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a model is sent. `load` finds the blobs that messages quote; without it they are only named."""

    system: str | None
    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    timeout: float | None = None
    """Seconds to wait for the whole reply, or in a stream for the next chunk."""
    load: Load | None = None
    headers: Mapping[str, str] | None = None
    """To go with the request, where the provider's client can send any."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of the call at this place among the reply's parts; `id` and `name` are there once they are known."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


Chunk = TextDelta | ThinkingDelta | ToolCallDelta | Reply


class Model(Protocol):
    @property
    def name(self) -> str: ...

    async def complete(self, prompt: Prompt) -> Reply:
        """The whole reply. `finish` is None where the provider gave no reason: the answer may have broken off."""
        ...

    def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Deltas as they come, then the reply that they make up. Closing the stream early ends the request."""
        ...


def model_named(name: str, *, base_url: str | None = None, api_key: str | None = None) -> "DirectModel":
    """The model of this name: `openai:gpt-4o`, `anthropic:claude-sonnet-4-5`, `gpt-4o`, `claude-sonnet-4-5`, or any
    other provider's that pydantic-ai knows. With `base_url`, any name on that OpenAI-compatible server; a name that
    begins with `anthropic:` is asked for there in Anthropic's way. `async with` keeps its connections between calls.
    """
    try:
        from quire.llm.direct import DirectModel
    except ImportError as exc:
        raise MissingExtra(extra="llm", needed_for=f"Asking the model {name}") from exc
    return DirectModel.named(name, base_url=base_url, api_key=api_key)
