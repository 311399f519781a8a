"""The record of one request: every candidate, in or out, with its slot, its tokens and its reason.

Contiguous messages with one decision are one row. Included rows stand in the order of the request, so that with the log
and the blobs they are enough to build it again.
"""

from typing import Literal

from quire.model.entries import Span
from quire.model.policy import Policy, Slot
from quire.model.value import Value

Reason = Literal[
    "instructions",
    "always",
    "manual",
    "agent",
    "carried",
    "memory",
    "pinned",
    "recent",
    "newest",
    "summary",
    "recalled",
    "referenced",
    "imported",
    "excerpted",
    "cleared",
    "over_budget",
    "below_score",
    "archived",
    "disabled",
    "incomplete",
    "listed",
    "not_found",
]
"""Why something is there (the first fourteen, `cleared` with its stub) or is not; `listed` is there by its summary."""

What = Literal["instructions", "rule", "tool", "memory", "reference", "summary", "message", "document"]


class Decision(Value):
    """Messages are named by their numbers, everything else by name and by the blob that keeps its text."""

    slot: Slot
    what: What
    included: bool
    reason: Reason
    tokens: int = 0
    span: Span | None = None
    name: str | None = None
    blob: str | None = None
    score: float | None = None
    excerpt: int | None = None
    """Each text of the message was shortened to about so many characters."""
    pieces: tuple[tuple[int, int], ...] | None = None
    """Of a recalled message too long to be shown whole, the characters that were shown."""
    asked: bool | None = None
    """It was not in the log yet when the request was made; its number came with the reply."""


class SlotUse(Value):
    slot: Slot
    budget: int
    used: int
    overflows: bool | None = None


class Sent(Value):
    """How a client's own request went on through the gateway: its list of messages, and the body that left."""

    form: Literal["as_received", "renamed", "fitted"]
    """Byte for byte; with another name for the model and nothing else; or with other messages, which fit."""
    digest: str
    """The SHA-256 of the body that was sent."""
    same: bool
    """Whether its instructions, tools and messages are those that a replay gives, field by field."""
    listed: int | None = None
    """Tokens of the client's list with the reply behind it, if it holds the whole conversation: its next begins so."""
    unkept: int | None = None
    """Messages of the client's own making at the head of its list, which stand for earlier ones and are not kept."""


class Manifest(Value):
    renderer: int
    conversation: str
    branch: int
    head: int
    """The branch's newest entry when the request was made."""
    policy: Policy
    counter: str
    exact: bool
    ratio: float = 1.0
    """How the provider's reports compare with the counts for this model; the room is divided by it."""
    slots: tuple[SlotUse, ...]
    total: int
    wanted: int
    """What it would have been with the whole history: the number that is held against the trigger."""
    room: int
    trigger: int
    decisions: tuple[Decision, ...]
    stable: int
    """How many of the request's messages belong to the part that the next request repeats."""
    digest: str
    sent: Sent | None = None
    """For what came through the gateway."""

    @property
    def included(self) -> tuple[Decision, ...]:
        return tuple(decision for decision in self.decisions if decision.included)

    @property
    def left_out(self) -> tuple[Decision, ...]:
        return tuple(decision for decision in self.decisions if not decision.included)
