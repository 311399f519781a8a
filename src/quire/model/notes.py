"""What stands beside an entry's body: how many tokens it has, what it referred to, what the provider reported."""

from typing import Literal, NamedTuple

from quire.model.value import Foreign, Value


class TokenCount(NamedTuple):
    """A number of tokens and who counted; the counter `estimate` says that it is one."""

    tokens: int
    counter: str


class Usage(Value):
    """What the provider reported for the request that an assistant's message answers."""

    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    provider: Foreign | None = None
    estimated: bool | None = None
    """The provider reported nothing, as when a reply is broken off: these are Quire's own counts."""


class DocumentReference(Value):
    """A document that a message names (direct) or that a tool found for it (search); broken if it has no path."""

    link: str
    path: str | None = None
    kind: Literal["direct", "search"] = "direct"
    summary: str | None = None
    snippet: str | None = None
    blob: str | None = None
    injected: bool | None = None
    """Its text stands in the message as the model reads it; otherwise the message only lists it."""


class Notes(Value):
    references: tuple[DocumentReference, ...] | None = None
    usage: Usage | None = None
    unfinished: bool | None = None
    """The reply was broken off, by the user or by an error: the message is what had come by then."""
