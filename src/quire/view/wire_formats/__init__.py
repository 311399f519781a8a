"""Wire formats of providers: for each, one module that renders requests, one that checks and one that parses them.

The formats load on first use: a process usually needs one of them.
"""

from typing import assert_never

from quire.view.wire_formats.base import BlobLoader, Provider, Reply, WireFormat, WireMessage

__all__ = [
    "BlobLoader",
    "Provider",
    "Reply",
    "WireFormat",
    "WireMessage",
    "provider_for",
    "wire_format_for",
]


def wire_format_for(provider: Provider, *, model: str = "") -> WireFormat:
    """Wire format of a provider; the model matters only for the token cost of images."""
    match provider:
        case "openai":
            from quire.view.wire_formats.openai_chat import OpenAIChatFormat

            return OpenAIChatFormat(model)
        case "anthropic":
            from quire.view.wire_formats.anthropic_messages import AnthropicMessagesFormat

            return AnthropicMessagesFormat(model)
        case "openai_responses":
            from quire.view.wire_formats.openai_responses import OpenAIResponsesFormat

            return OpenAIResponsesFormat(model)
    assert_never(provider)


def provider_for(model: str) -> Provider:
    """Provider format of a model. `anthropic/claude-…` is a router's name, and routers use OpenAI's chat format."""
    name = model.lower()
    if name.startswith("openai-responses:"):
        return "openai_responses"
    return "anthropic" if name.startswith(("claude", "anthropic:")) else "openai"
