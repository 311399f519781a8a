"""What every provider's shape offers, and the types that they share.

A shape turns messages into one provider's request and back, counts it, and finds what the provider would refuse. It
leaves to its callers what is sent at all: histories come to it mended. Tokens of a request are a plain sum.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from quire.model import Message, ToolDefinition, Usage
from quire.view.tokens import Counter

Provider = Literal["openai", "anthropic"]

Unit = dict[str, Any]
"""One message, or one tool, as the provider takes it. Units are cached and shared: never change one."""

Load = Callable[[str], str | None]
"""The base64 text of the blob with this digest, or None where it is gone."""


class Reply(NamedTuple):
    """A provider's response. `finish` is the provider's own word for why it stopped."""

    message: Message
    usage: Usage | None
    finish: str | None


class Shape(Protocol):
    name: Provider
    overhead: int
    """Tokens of a request besides its system text, tools and messages."""
    per_text: int
    """What a message costs besides its text, if a text is all that it has."""

    def units(self, message: Message, *, load: Load | None = None) -> list[Unit]:
        """The message as the provider takes it; parts that its role cannot carry are left out."""
        ...

    def tool(self, definition: ToolDefinition) -> Unit: ...

    def count_units(self, units: Sequence[Unit], counter: Counter) -> int: ...

    def count_tools(self, tools: Sequence[Unit], counter: Counter) -> int: ...

    def count_system(self, text: str | None, counter: Counter) -> int: ...

    def payload(
        self, *, model: str, system: str | None, tools: Sequence[Unit], units: Sequence[Unit], max_tokens: int | None
    ) -> dict[str, Any]:
        """The whole body of the request. It shares its units with the caller's, and changes none."""
        ...

    def check(self, payload: Mapping[str, Any]) -> list[str]:
        """What the provider would refuse the request for; empty if it is valid."""
        ...

    def recount(self, payload: Mapping[str, Any], counter: Counter) -> int:
        """The tokens of a finished payload, from nothing but itself: overhead, system, tools and units in sum."""
        ...

    def parse(self, response: object) -> Reply:
        """The reply in a response, given as a dict or as the SDK's object."""
        ...

    def parse_messages(self, messages: Sequence[object], *, system: object = None) -> list[Message]:
        """The messages of a request, with its system text as the first of them."""
        ...
