"""What happens in a turn, in order, for those who show it. Everything that a face shows of a turn comes from these.

A turn is `TurnStarted`, `QuestionKept` if something was asked, and for each reply `RequestPrepared`, `Thinking` and
`Text` as they come, and `ReplyKept`; then for each call of the reply one `ToolCalled` and, once it is done, one
`ToolAnswered`. It ends with `TurnEnded` or `TurnFailed`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quire.errors import ModelError, QuireError
from quire.model.entries import Entry
from quire.model.messages import Message
from quire.model.notes import Usage
from quire.model.parts import ToolCallPart, ToolResultPart

EndReason = Literal["answered", "truncated", "empty", "steps", "stopped"]
"""The last reply called no tools (and was whole, cut at the limit of its tokens, or empty), the turn had as many
replies as it may have, or somebody stopped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    message: Message | None
    """What is asked; None where the turn goes on from the log as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionKept:
    """What was asked is in the log, whatever becomes of the turn."""

    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPrepared:
    """A request that fits, about to be sent. There is one before every call of the model."""

    step: int
    """The reply that it asks for, counted from 1."""
    tokens: int
    window: int
    trigger: int
    """So many tokens lead to a compaction."""
    exact: bool
    """Whether the tokens are counted with the model's own vocabulary, or estimated."""
    compacted: tuple[Entry, ...]
    """The compactions that were made for it."""


@dataclass(frozen=True, slots=True)
class Thinking:
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """The model did not answer; after so many seconds it is asked again, with a request prepared anew."""

    error: ModelError
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyKept:
    entry: Entry
    usage: Usage
    finish: str | None
    """The provider's own word for why it stopped."""
    unfinished: bool = False
    """It was broken off, and is what had come by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    call: ToolCallPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAsked:
    """Somebody is about to be asked whether the call may be run."""

    call: ToolCallPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswered:
    """The call has its one result, be it that it failed, was not allowed or was stopped. As they are done, which need
    not be the order of the calls."""

    call: ToolCallPart
    result: ToolResultPart


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    reason: EndReason
    steps: int
    """How many replies there were."""
    usage: Usage
    """All of them together; summaries are not counted here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed:
    """What could not be mended. The log is valid, and holds what was asked and what came before the error."""

    error: QuireError
    steps: int
    usage: Usage


TurnEvent = (
    TurnStarted
    | QuestionKept
    | RequestPrepared
    | Thinking
    | Text
    | Retrying
    | ReplyKept
    | ToolCalled
    | ApprovalAsked
    | ToolAnswered
    | TurnEnded
    | TurnFailed
)


def total_usage(usages: Sequence[Usage]) -> Usage:
    """The sum; it is an estimate if a part of it is."""
    models = {usage.model for usage in usages}
    return Usage(
        model=models.pop() if len(models) == 1 else None,
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        cache_read_tokens=sum(usage.cache_read_tokens for usage in usages),
        cache_write_tokens=sum(usage.cache_write_tokens for usage in usages),
        estimated=any(usage.estimated for usage in usages) or None,
    )
