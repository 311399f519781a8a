"""Model access: a prompt in, a reply or a stream of chunks out, provider errors mapped to `ModelError` classes.

Nothing here needs the `llm` extra until `get_model` is called.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quire.errors import MissingExtra, ModelRequestRejected
from quire.llm.protocol import Model, ModelChunk, Prompt, TextDelta, ThinkingDelta, ToolCallDelta
from quire.settings.schema import Settings, upstream_for
from quire.wire import Reply

if TYPE_CHECKING:
    from quire.llm.chat_completions_model import ChatCompletionsModel
    from quire.llm.pydantic_ai_model import PydanticAIModel

    HTTPModel = ChatCompletionsModel | PydanticAIModel

__all__ = [
    "Model",
    "ModelChunk",
    "Prompt",
    "Reply",
    "TextDelta",
    "ThinkingDelta",
    "ToolCallDelta",
    "get_model",
    "get_upstream_model",
]


def get_model(name: str, *, base_url: str | None = None, api_key: str | None = None) -> "HTTPModel":
    """Returns the model of this name: `openai:gpt-4o`, `anthropic:claude-sonnet-4-5`, `gpt-4o`, `claude-sonnet-4-5`,
    or one of any other provider that pydantic-ai knows. With `base_url`, any name on that OpenAI-compatible server; the
    prefix `anthropic:` selects Anthropic's messages API there, and `openai-responses:` OpenAI's Responses API. `async
    with` reuses connections between calls.
    """
    try:
        from quire.llm.chat_completions_model import ChatCompletionsModel, is_called_directly

        if base_url is not None and is_called_directly(name, base_url):
            return ChatCompletionsModel(name, base_url=base_url, api_key=api_key)
        from quire.llm.pydantic_ai_model import PydanticAIModel
    except ImportError as exc:
        raise MissingExtra(extra="llm", feature=f"Calling the model {name}") from exc
    return PydanticAIModel.from_name(name, base_url=base_url, api_key=api_key)


def to_google_chat_url(base_url: str) -> str:
    """Where a server of Google's API speaks chat completions."""
    return f"{base_url.rstrip('/').removesuffix('/v1').removesuffix('/v1beta')}/v1beta/openai"


def get_upstream_model(name: str, settings: Settings, environ: Mapping[str, str]) -> "HTTPModel":
    """Returns the model at the upstream that serves it, with the operator's API key; without one, as `get_model`."""
    upstream = upstream_for(settings, name)
    if upstream is None:
        return get_model(name)
    if upstream.credentials == "client":
        raise ModelRequestRejected(
            f"Only clients have credentials for {name}: Quire cannot call it. Set `summarizer` to another model, or to "
            "`extract`."
        )
    key = environ.get(upstream.api_key_env) if upstream.api_key_env is not None else None
    prefix = "anthropic:" if "messages" in upstream.speaks and "chat" not in upstream.speaks else ""
    base_url = upstream.base_url
    if set(upstream.speaks) == {"gemini"}:
        base_url = to_google_chat_url(base_url)
    return get_model(prefix + (upstream.model or name), base_url=base_url, api_key=key)
