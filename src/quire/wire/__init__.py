"""Wire formats of providers, one folder each: `render`, `parse` and `check` requests, `codec` and `stream`.

A format loads on first use, because a process usually needs one of them.
"""

from collections.abc import Sequence

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


PREFIX_FORMATS: dict[str, WireFormatName] = {
    "openai-chat:": "chat",
    "openai-responses:": "responses",
    "anthropic:": "messages",
    "google:": "gemini",
}
"""Wire formats by the prefix of a model's name that selects them."""


def infer_wire_format(model: str, spoken: Sequence[WireFormatName] = ()) -> WireFormatName:
    """Wire format of a model: by the prefix of its name, or else by its name, if its server speaks that format.

    `spoken` are the formats of the server, if they are known. `anthropic/claude-…` is a router's name, and routers
    speak OpenAI's chat.
    """
    name = model.lower()
    for prefix, wire_format in PREFIX_FORMATS.items():
        if name.startswith(prefix):
            return wire_format
    inferred: WireFormatName = "messages" if name.startswith("claude") else "chat"
    return inferred if not spoken or inferred in spoken else spoken[0]
