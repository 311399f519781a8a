"""Events for user interfaces: context events of a conversation's branch, and the events of a turn in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quire.errors import ModelError, QuireError
from quire.model.entries import Entry
from quire.model.entry_bodies import Span
from quire.model.entry_metadata import Usage
from quire.model.messages import Message, ToolCallPart, ToolResultPart


@dataclass(frozen=True, slots=True, kw_only=True)
class _ContextEvent:
    conversation: str
    branch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextUsageUpdated(_ContextEvent):
    """Token usage after a request was prepared; `tokens` above `trigger_tokens` leads to a compaction."""

    tokens: int
    trigger_tokens: int
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStarted(_ContextEvent):
    covers: Span | None
    freed_tokens: int
    """Tokens that the plan expects to free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCompacted(_ContextEvent):
    entry: Entry
    """The compaction's entry in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFailed(_ContextEvent):
    """A summary failed: it changed nothing, and the next fallback is tried."""

    reason: str
    detail: str


ContextEvent = ContextUsageUpdated | CompactionStarted | ContextCompacted | CompactionFailed


TurnEndReason = Literal["answered", "truncated", "empty", "max_steps", "max_cost", "stopped"]
"""The last reply called no tools (and was complete, truncated at its token limit, or empty), the turn reached
`max_steps` or `max_cost`, or the user stopped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    message: Message | None
    """The question; None if the turn continues from the log as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRecorded:
    """The question is in the log, and stays there even if the turn fails."""

    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPrepared:
    """A request that fits the window is about to be sent. Emitted before every model call."""

    step: int
    """Number of the model call within the turn, from 1."""
    tokens: int
    window: int
    trigger_tokens: int
    """Tokens above which the history is compacted."""
    exact: bool
    """Whether the tokens are counted with the model's own tokenizer; otherwise they are estimated."""
    compactions: tuple[Entry, ...]
    """Compactions made for this request."""


@dataclass(frozen=True, slots=True)
class ThinkingChunk:
    text: str


@dataclass(frozen=True, slots=True)
class TextChunk:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryScheduled:
    """The model call failed; it is retried after `delay_seconds`, with a newly prepared request."""

    error: ModelError
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRecorded:
    entry: Entry
    usage: Usage
    finish_reason: str | None
    """Why the model stopped, in the provider's words."""
    incomplete: bool = False
    """The reply was interrupted; the entry holds what had arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    call: ToolCallPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested:
    """The user is about to be prompted to approve or deny the call."""

    call: ToolCallPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCompleted:
    """The call has its one result, which may be that it failed, was denied or was stopped.

    Emitted in the order of completion, which need not be the order of the calls.
    """

    call: ToolCallPart
    result: ToolResultPart


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    reason: TurnEndReason
    steps: int
    """Number of model calls."""
    usage: Usage
    """Sum over all model calls of the turn, without summaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed:
    """The turn failed. The log is valid, and holds the question and what arrived before the error."""

    error: QuireError
    steps: int
    usage: Usage


TurnEvent = (
    TurnStarted
    | QuestionRecorded
    | RequestPrepared
    | ThinkingChunk
    | TextChunk
    | RetryScheduled
    | ReplyRecorded
    | ToolCalled
    | ApprovalRequested
    | ToolCompleted
    | TurnEnded
    | TurnFailed
)


def sum_usage(usages: Sequence[Usage]) -> Usage:
    """Adds up usages; the sum is an estimate if any of them is."""
    models = {usage.model for usage in usages}
    return Usage(
        model=models.pop() if len(models) == 1 else None,
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        cache_read_tokens=sum(usage.cache_read_tokens for usage in usages),
        cache_write_tokens=sum(usage.cache_write_tokens for usage in usages),
        estimated=any(usage.estimated for usage in usages) or None,
    )
