"""Events of a turn for user interfaces, in order. `quire.model.context_events` has the events of a branch's context."""

from dataclasses import dataclass
from typing import Literal

from quire.errors import ModelError, QuireError
from quire.model.base import FrozenModel
from quire.model.entries import Entry
from quire.model.entry_metadata import Usage
from quire.model.messages import Message, ToolCallPart, ToolResultPart

TurnEndReason = Literal["answered", "truncated", "empty", "max_steps", "max_cost", "stopped"]
"""The last reply called no tools (and was complete, truncated at its token limit, or empty), the turn reached
`max_steps` or `max_cost`, or the user stopped it."""


class ContextSuggestion(FrozenModel):
    """A change of the context that a turn suggests."""

    action: Literal["add", "remove", "refer"]
    """Add the item to the session, remove it from it, or refer to the file in the next question."""
    kind: Literal["rule", "reference", "tool", "document"]
    name: str
    """Name of the item, or path of the file."""
    turns: int | None = None
    """Turns in which an item to remove was not used."""

    @property
    def text(self) -> str:
        """The reason, as a sentence."""
        if self.action == "remove":
            return f"No answer of the last {self.turns} turns used the {self.kind} {self.name!r}."
        return f"The question names {self.name!r}, which is not in the context."


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    message: Message | None
    """The question, or None if the turn continues from the log as it is."""


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
    """Whether the tokens are counted with the model's own tokenizer. Otherwise they are estimated."""
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
    """The model call failed. It is retried after `delay_seconds`, with a newly prepared request."""

    error: ModelError
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRecorded:
    entry: Entry
    usage: Usage
    finish_reason: str | None
    """Why the model stopped, in the provider's words."""
    incomplete: bool = False
    """The reply was interrupted. The entry holds what had arrived."""


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
    suggestion: ContextSuggestion | None = None


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
