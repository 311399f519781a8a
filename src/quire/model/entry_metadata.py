"""Metadata of an entry: token count, document references, and the usage that the provider reported."""

from typing import Literal, NamedTuple

from quire.model.base import FrozenModel, JsonObject


class TokenCount(NamedTuple):
    """A number of tokens and the name of the counter; the counter `estimate` marks an estimate."""

    tokens: int
    counter: str


class Usage(FrozenModel):
    """Token usage that the provider reported for the request that an assistant's message answers."""

    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    provider_fields: JsonObject | None = None
    estimated: bool | None = None
    """The provider reported nothing, as when a reply is interrupted; these are Quire's own counts."""


class DocumentReference(FrozenModel):
    """A document that a message names (direct) or that a tool found (search); without a path the link is broken."""

    link: str
    path: str | None = None
    kind: Literal["direct", "search"] = "direct"
    summary: str | None = None
    snippet: str | None = None
    blob: str | None = None
    injected: bool | None = None
    """Whether its text was injected into the message; otherwise the message only lists it."""


class EntryMetadata(FrozenModel):
    """Metadata stored with an entry, as JSON."""

    references: tuple[DocumentReference, ...] | None = None
    usage: Usage | None = None
    incomplete: bool | None = None
    """The reply was interrupted, by the user or by an error; the message holds what had arrived."""
