"""Wire formats of providers, one folder each: `render`, `parse` and `check` requests, `codec` and `stream`.

A format loads on first use, because a process usually needs one of them.
"""

from quire.model.policy import WireFormatName
from quire.wire.base import BlobLoader, Reply, WireFormat, WireMessage

__all__ = [
    "BlobLoader",
    "Reply",
    "WireFormat",
    "WireFormatName",
    "WireMessage",
    "infer_wire_format",
    "wire_format_for",
]


def wire_format_for(name: WireFormatName, *, model: str = "") -> WireFormat:
    """Renderer and parser of a wire format. The model matters only for the token cost of images."""
    match name:
        case "chat":
            from quire.wire.chat.render import OpenAIChatFormat

            return OpenAIChatFormat(model)
        case "messages":
            from quire.wire.messages.render import AnthropicMessagesFormat

            return AnthropicMessagesFormat(model)
        case "responses":
            from quire.wire.responses.render import OpenAIResponsesFormat

            return OpenAIResponsesFormat(model)
        case "gemini":
            from quire.wire.gemini.render import GeminiFormat

            return GeminiFormat(model)


def infer_wire_format(model: str) -> WireFormatName:
    """Wire format of a model by its name. `anthropic/claude-…` is a router's name, and routers speak OpenAI's chat."""
    name = model.lower()
    if name.startswith("openai-responses:"):
        return "responses"
    return "messages" if name.startswith(("claude", "anthropic:")) else "chat"
