"""Metadata of log entries: token counts, usage, document references and the totals of a turn."""

from collections.abc import Sequence
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
    """The provider reported nothing, as when a reply is interrupted. These are Quire's own counts."""
    partial: bool | None = None
    """Counted while the reply was still being written: `output_tokens` is a lower bound."""


def sum_usage(usages: Sequence[Usage]) -> Usage:
    """Adds up usages. The sum is an estimate if any of them is."""
    models = {usage.model for usage in usages}
    return Usage(
        model=models.pop() if len(models) == 1 else None,
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        cache_read_tokens=sum(usage.cache_read_tokens for usage in usages),
        cache_write_tokens=sum(usage.cache_write_tokens for usage in usages),
        estimated=any(usage.estimated for usage in usages) or None,
        partial=any(usage.partial for usage in usages) or None,
    )


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


class TurnTotals(FrozenModel):
    """Totals over all steps of a turn, stored with its answer."""

    steps: int
    """Number of model calls."""
    usage: Usage
    """Sum over all model calls except summaries."""
    cost_usd: float
    """Cost of the model calls and of the summaries, in US dollars."""
    compactions: tuple[int, ...] | None = None
    """Entry numbers of the compactions made during the turn."""
    cost_incomplete: bool | None = None
    """`cost_usd` is a lower bound: the price of a call is not known."""


class EntryMetadata(FrozenModel):
    """Metadata stored with an entry, as JSON."""

    references: tuple[DocumentReference, ...] | None = None
    written_tokens: int | None = None
    """Tokens of the message as written, if it has references: the entry's own count includes their text."""
    usage: Usage | None = None
    incomplete: bool | None = None
    """The reply was interrupted, by the user or by an error. The message holds what had arrived."""
    turn: TurnTotals | None = None
    """Totals of the turn that this reply ends: it calls no tools."""
    cost_usd: float | None = None
    """Cost of the call in US dollars, as it was charged, or as the source of an imported message states it."""
    dropped: tuple[str, ...] | None = None
    """Names of what an import could not carry over, from this message or just before it."""
    cost_incomplete: bool | None = None
    """`cost_usd` is a lower bound: a price of the call is not known."""
