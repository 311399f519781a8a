"""Bodies of log entries: a closed union, discriminated by the entry's `kind`.

A body is a message, a decision that changes what a model is sent, or what a model wrote about messages for the search.
"""

from typing import Annotated, Literal, assert_never

from pydantic import Field, model_validator

from quire.model.base import FrozenModel
from quire.model.entry_metadata import Usage
from quire.model.messages import PURGED_TEXT, Message, purge_identifier

EntryKind = Literal[
    "message", "compaction", "restore", "pin", "unpin", "priority", "context_change", "drop", "undrop", "epoch",
    "topic_index",
]  # fmt: skip
EntryNumber = Annotated[int, Field(gt=0)]

MIN_PRIORITY, MAX_PRIORITY = 1, 10
"""Range of a message's priority."""


class Span(FrozenModel):
    """A range of entry numbers, both ends included."""

    first: EntryNumber
    last: EntryNumber

    @model_validator(mode="after")
    def _check_order(self) -> "Span":
        if self.first > self.last:
            raise ValueError(f"a span must run forward, but {self.first} is after {self.last}")
        return self

    def __contains__(self, seq: int) -> bool:
        return self.first <= seq <= self.last


class Truncation(FrozenModel):
    """Truncates each text of a message to `max_chars` characters in the view."""

    message: EntryNumber
    max_chars: int = Field(gt=0)
    summary: str | None = None
    """Summary of the message, in place of the middle of its longest text; `max_chars` includes it."""


IMPORTED_STRATEGY = "imported"
"""Strategy of a compaction that the source of an import made."""


class Compaction(FrozenModel):
    """From this entry on the view has `summary` instead of the messages in `covers`. Nothing is deleted.

    `supersedes` is the entry number of the compaction that was active when this one was made. Without a summary the
    covered messages are omitted, unless the summary is sealed: then they are hidden in the client's list only. Without
    `covers` only the `truncations` apply. A range may end inside a turn; its `question` then stays in the view
    verbatim, after the summary.
    """

    number: int = Field(gt=0)
    covers: Span | None = None
    question: EntryNumber | None = None
    preserved: tuple[EntryNumber, ...] | None = None
    """Covered messages that stay in the view verbatim because of their priority."""
    summary: str | None = None
    short_summary: str | None = None
    """The short level: selected lines of the summary, for context windows in which the summary exceeds its share."""
    sources: tuple[int, ...] = ()
    trigger: Literal["threshold", "background", "manual", "overflow", "edit", "model", "client", "provider"] = "manual"
    strategy: str = "summarize"
    model: str | None = None
    tokens_before: int = 0
    tokens_after: int = 0
    supersedes: EntryNumber | None = None
    truncations: tuple[Truncation, ...] | None = None
    cleared_through: EntryNumber | None = None
    """Tool results up to this entry are stubs, except pinned ones. Earlier compactions may have cleared a part."""
    cleared_results: int | None = None
    """Tool results that this compaction cleared."""
    instructions: str | None = None
    """The user's instructions for the summary."""
    failures: tuple[str, ...] | None = None
    """Reasons why earlier attempts at this summary failed."""
    invalidated_tokens: int | None = None
    """Tokens of the provider's prompt cache that it invalidates."""
    savings_per_request: float | None = None
    """Estimated savings per later request, in dollars."""
    usage: Usage | None = None
    """Tokens used to write the summary, including failed attempts."""
    cost_usd: float | None = None
    """Cost of the summary in US dollars, as it was charged, or None if no model was called. For an imported one, as its
    source states it, or None."""
    cost_incomplete: bool | None = None
    """`cost_usd` is a lower bound: a price is not known."""

    @property
    def freed_tokens(self) -> int:
        """0 if it is not known: transcripts of Claude Code may say only what was before a compaction."""
        return max(0, self.tokens_before - self.tokens_after) if self.tokens_after else 0

    @property
    def is_sealed(self) -> bool:
        """Whether a client or a provider has a summary that only the provider can read."""
        return self.summary is None and self.trigger in ("client", "provider")

    def summarizes(self, seq: int) -> bool:
        """Whether the message with this number is part of the summary, or has a separate summary here."""
        if self.covers is not None and seq in self.covers:
            return True
        return any(each.message == seq and each.summary is not None for each in self.truncations or ())


class Restore(FrozenModel):
    """Undoes the active compaction, named by its entry number. The one that it superseded is active again."""

    compaction: EntryNumber


class Pin(FrozenModel):
    """The message with this number stays in the view verbatim, whatever is compacted."""

    message: EntryNumber


class Unpin(FrozenModel):
    message: EntryNumber


class Priority(FrozenModel):
    """Sets the priority of the message with this number, which later compactions use; None resets it."""

    message: EntryNumber
    priority: int | None = Field(default=None, ge=MIN_PRIORITY, le=MAX_PRIORITY)


class Drop(FrozenModel):
    """The message with this number is a stub in later requests: it names what was there and how to read it.

    Of a message with tool results, the stubs are in place of the results. Calls stay.
    """

    message: EntryNumber
    reason: str | None = None
    """Why, in the user's words."""
    now: bool | None = None
    """Whether it takes effect at the next possible request, even if that breaks a warm prompt cache."""


class Undrop(FrozenModel):
    message: EntryNumber
    now: bool | None = None


class ListAnchor(FrozenModel):
    """An item of the list that a client sends: its index, and a digest of it without cache markers."""

    index: int = Field(ge=0)
    digest: str


class DroppedItem(FrozenModel):
    """What a `Drop` replaces in the client's list: the result of a call, or an item."""

    message: EntryNumber
    chars: int
    """Length of what is replaced."""
    tokens: int
    """Tokens of the message."""
    call_id: str | None = None
    item: ListAnchor | None = None


class QuotedMessage(FrozenModel):
    """A message that is quoted behind an item of the client's list."""

    message: EntryNumber
    behind: ListAnchor


class EditedSummary(FrozenModel):
    """What is sent in place of the client's own summary: another text, messages that it covers, or both."""

    item: ListAnchor
    """The item with the summary."""
    restored: Span | None = None
    """The messages."""
    restored_tokens: int | None = None
    is_partial: bool | None = None
    """Whether a summary stays before them, because not all that it covers is restored."""
    compaction: EntryNumber | None = None
    """Number of the compaction with the other text."""


class ContextEpoch(FrozenModel):
    """All edits that apply to the client's list from one request on, until the next epoch.

    The entry is stored before that request is sent, so that every server edits later lists in the same way.
    """

    newest: ListAnchor
    """The newest item of the list when the epoch began."""
    changes_in_place: bool | None = None
    """Whether it changes the list before its newest messages, and not only adds quotations."""
    drops: tuple[DroppedItem, ...] | None = None
    quotes: tuple[QuotedMessage, ...] | None = None
    summary: EditedSummary | None = None
    stale_thinking: ListAnchor | None = None
    """Reasoning up to this item was signed for another list, and is left out."""


class ContextItem(FrozenModel):
    """A rule, a reference or a tool, by name; for a tool also its MCP server."""

    type: Literal["rule", "reference", "tool"]
    name: str
    server: str | None = None


SessionIncludeMode = Literal["always", "manual", "agent"]
"""How an item was added to the session: at its start, by the user, or as a tool selected for a message."""


class ContextChange(FrozenModel):
    """Adds an item to the session or removes it."""

    action: Literal["add", "remove"]
    item: ContextItem
    include: SessionIncludeMode = "manual"


TopicKind = Literal["topic", "entity", "event"]


class Topic(FrozenModel):
    """What some messages are about, in a model's words."""

    kind: TopicKind
    label: str
    """General name of the subject, name of the entity, or what happened."""
    text: str
    """What the messages say of it."""
    messages: tuple[EntryNumber, ...]
    """The messages that it cites."""


class TopicIndex(FrozenModel):
    """Topics that a model found in the messages of `covers`. Search and recall find the cited messages by their words.

    No request contains it, and it stays valid when a compaction is undone, since it cites messages.
    """

    covers: Span
    """Messages that the model has read, or failed to index. They are not read again."""
    topics: tuple[Topic, ...] = ()
    """Events are in their order."""
    model: str | None = None
    failures: tuple[str, ...] | None = None
    """Reasons why attempts failed."""
    usage: Usage | None = None
    """Tokens of all attempts."""
    cost_usd: float | None = None
    """Cost of all attempts in US dollars, as it was charged."""
    cost_incomplete: bool | None = None
    """`cost_usd` is a lower bound: a price is not known."""


Body = (
    Message | Compaction | Restore | Pin | Unpin | Priority | ContextChange | Drop | Undrop | ContextEpoch | TopicIndex
)

_BODY_TYPES: dict[EntryKind, type[Body]] = {
    "message": Message,
    "compaction": Compaction,
    "restore": Restore,
    "pin": Pin,
    "unpin": Unpin,
    "priority": Priority,
    "context_change": ContextChange,
    "drop": Drop,
    "undrop": Undrop,
    "epoch": ContextEpoch,
    "topic_index": TopicIndex,
}
_KINDS: dict[type[Body], EntryKind] = {body: kind for kind, body in _BODY_TYPES.items()}


def kind_of(body: Body) -> EntryKind:
    return _KINDS[type(body)]


def parse_body(kind: EntryKind, text: str) -> Body:
    return _BODY_TYPES[kind].parse(text)


def purge_body(body: Body) -> Body:
    """The body without its content. Those that only hold numbers (pins, undo, epochs) have none and stay."""
    match body:
        case Message():
            return body.without_content()
        case Compaction():
            return _purge_compaction(body)
        case ContextChange(item=item):
            server = None if item.server is None else purge_identifier(item.server)
            purged_item = item.model_copy(update={"name": purge_identifier(item.name), "server": server})
            return body.model_copy(update={"item": purged_item})
        case Drop():
            return body if body.reason is None else body.model_copy(update={"reason": PURGED_TEXT})
        case ContextEpoch(drops=drops):
            return body if drops is None else body.model_copy(update={"drops": tuple(map(_purge_drop, drops))})
        case TopicIndex(usage=usage):
            usage = None if usage is None else usage.model_copy(update={"provider_fields": None})
            return body.model_copy(update={"topics": (), "failures": None, "usage": usage})
        case Restore() | Pin() | Unpin() | Priority() | Undrop():
            return body
    assert_never(body)


def _purge_compaction(body: Compaction) -> Compaction:
    """The compaction without any text. What it covers stays, because the state of the branch depends on it."""
    return body.model_copy(
        update={
            "summary": None if body.summary is None else PURGED_TEXT,
            "short_summary": None,
            "instructions": None if body.instructions is None else PURGED_TEXT,
            "failures": None,
            "truncations": _purge_truncations(body.truncations),
            "usage": None if body.usage is None else body.usage.model_copy(update={"provider_fields": None}),
        }
    )


def _purge_drop(drop: DroppedItem) -> DroppedItem:
    return drop if drop.call_id is None else drop.model_copy(update={"call_id": purge_identifier(drop.call_id)})


def _purge_truncations(truncations: tuple[Truncation, ...] | None) -> tuple[Truncation, ...] | None:
    if truncations is None:
        return None
    return tuple(
        each if each.summary is None else each.model_copy(update={"summary": PURGED_TEXT}) for each in truncations
    )
