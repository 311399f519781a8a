"""Model access: a prompt in, a reply or a stream of chunks out, provider errors mapped to `ModelError` classes.

Nothing here needs the `llm` extra until `get_model` is called.
"""

from typing import TYPE_CHECKING

from quire.errors import MissingExtra
from quire.llm.protocol import Model, ModelChunk, Prompt, TextDelta, ThinkingDelta, ToolCallDelta
from quire.view.wire_formats import Reply

if TYPE_CHECKING:
    from quire.llm.pydantic_ai_model import PydanticAIModel

__all__ = ["Model", "ModelChunk", "Prompt", "Reply", "TextDelta", "ThinkingDelta", "ToolCallDelta", "get_model"]


def get_model(name: str, *, base_url: str | None = None, api_key: str | None = None) -> "PydanticAIModel":
    """Returns the model of this name: `openai:gpt-4o`, `anthropic:claude-sonnet-4-5`, `gpt-4o`, `claude-sonnet-4-5`,
    or one of any other provider that pydantic-ai knows. With `base_url`, any name on that OpenAI-compatible server; the
    prefix `anthropic:` selects Anthropic's messages API there. `async with` reuses connections between calls.
    """
    try:
        from quire.llm.pydantic_ai_model import PydanticAIModel
    except ImportError as exc:
        raise MissingExtra(extra="llm", feature=f"Calling the model {name}") from exc
    return PydanticAIModel.from_name(name, base_url=base_url, api_key=api_key)
