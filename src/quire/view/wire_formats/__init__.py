"""Wire formats of providers: for each, one module that renders requests, one that checks and one that parses them."""

from quire.view.wire_formats.anthropic_messages import AnthropicMessagesFormat
from quire.view.wire_formats.base import BlobLoader, Provider, Reply, WireFormat, WireMessage
from quire.view.wire_formats.openai_chat import OpenAIChatFormat

__all__ = [
    "AnthropicMessagesFormat",
    "BlobLoader",
    "OpenAIChatFormat",
    "Provider",
    "Reply",
    "WireFormat",
    "WireMessage",
    "provider_for",
    "wire_format_for",
]


def wire_format_for(provider: Provider, *, model: str = "") -> WireFormat:
    """Wire format of a provider; the model matters only for the token cost of images."""
    return AnthropicMessagesFormat(model) if provider == "anthropic" else OpenAIChatFormat(model)


def provider_for(model: str) -> Provider:
    """Provider format of a model. `anthropic/claude-…` is a router's name, and routers use OpenAI's format."""
    return "anthropic" if model.lower().startswith(("claude", "anthropic:")) else "openai"
