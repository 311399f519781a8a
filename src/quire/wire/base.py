"""The `WireFormat` protocol, and the types that all wire formats share.

A wire format renders messages to one provider's request and parses them back, counts tokens, and finds what the
provider would reject. Callers decide what is sent and repair histories first. Tokens of a request are a plain sum.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from quire.model import Message, ToolDefinition, Usage
from quire.model.policy import WireFormatName
from quire.wire.tokens import TokenCounter

WireMessage = dict[str, Any]
"""One message, item or tool in the provider's format. Cached and shared: never mutate one."""

BlobLoader = Callable[[str], str | None]
"""Loads the base64 text of a blob by its digest, or None if it no longer exists."""


class Reply(NamedTuple):
    """A parsed response. `finish_reason` is in the provider's own words."""

    message: Message
    usage: Usage | None
    finish_reason: str | None


class WireFormat(Protocol):
    name: WireFormatName
    request_overhead: int
    """Tokens of a request without system text, tools and messages."""
    text_overhead: int
    """Tokens that a message with a single text costs in addition to the text."""

    def render_message(self, message: Message, *, load_blob: BlobLoader | None = None) -> list[WireMessage]:
        """Renders a message. Parts that its role cannot carry are dropped."""
        ...

    def render_tool(self, definition: ToolDefinition) -> WireMessage: ...

    def count_messages(self, messages: Sequence[WireMessage], counter: TokenCounter) -> int: ...

    def count_tools(self, tools: Sequence[WireMessage], counter: TokenCounter) -> int: ...

    def count_system(self, text: str | None, counter: TokenCounter) -> int: ...

    def build_payload(
        self,
        *,
        model: str,
        system: str | None,
        tools: Sequence[WireMessage],
        messages: Sequence[WireMessage],
        max_tokens: int | None,
    ) -> dict[str, Any]:
        """Builds the request body. Shares the messages and tools with the caller, and mutates none."""
        ...

    def check(self, payload: Mapping[str, Any]) -> list[str]:
        """Problems for which the provider would reject the request. Empty if it is valid."""
        ...

    def parse_reply(self, response: object) -> Reply:
        """Parses a response, given as a dict or as an object of the SDK."""
        ...

    def parse_messages(self, messages: Sequence[object], *, system: object = None) -> list[Message]:
        """Parses the messages of a request, with its system text as the first message."""
        ...


UNSPOKEN = "audio, video, generated images, real-time sessions"
"""What no wire format of Quire has."""
