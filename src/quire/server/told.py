"""How the events of turns and of conversations look in JSON: each says by its `event` which one it is."""

from typing import Annotated, Literal, assert_never

from pydantic import Field
from typing_extensions import TypeAliasType

from quire.model import Message, ToolCallPart, ToolResultPart, Usage
from quire.model import turns as happened
from quire.model.turns import EndReason, TurnEvent
from quire.server.problems import Problem
from quire.server.shown import EntryShown, Shown, entry_shown, problem_shown


class _TurnTold(Shown):
    branch: int = Field(description="The branch whose turn it is.")


class TurnStarted(_TurnTold):
    event: Literal["turn_started"] = "turn_started"
    message: Message | None = Field(description="What is asked; null where the turn goes on from the log as it is.")


class QuestionKept(_TurnTold):
    """What was asked is in the log, whatever becomes of the turn."""

    event: Literal["question_kept"] = "question_kept"
    entry: EntryShown


class RequestPrepared(_TurnTold):
    """A request that fits, about to be sent. There is one before every call of the model."""

    event: Literal["request_prepared"] = "request_prepared"
    step: int = Field(description="The reply that it asks for, counted from 1.")
    tokens: int
    window: int
    trigger: int = Field(description="So many tokens lead to a compaction.")
    exact: bool = Field(description="Counted with the model's own vocabulary, not estimated.")
    compacted: list[EntryShown] = Field(description="The compactions that were made for it.")


class ThinkingDelta(_TurnTold):
    event: Literal["thinking"] = "thinking"
    text: str


class TextDelta(_TurnTold):
    event: Literal["text"] = "text"
    text: str


class Retrying(_TurnTold):
    """The model did not answer; after so many seconds it is asked again."""

    event: Literal["retrying"] = "retrying"
    problem: Problem
    seconds: float


class ReplyKept(_TurnTold):
    event: Literal["reply_kept"] = "reply_kept"
    entry: EntryShown
    usage: Usage
    finish: str | None = Field(description="The provider's own word for why it stopped.")
    unfinished: bool = Field(description="It was broken off, and is what had come by then.")


class ToolCalled(_TurnTold):
    event: Literal["tool_called"] = "tool_called"
    call: ToolCallPart


class ApprovalAsked(_TurnTold):
    """The call waits until `/approvals/{call_id}` is told whether it may be run."""

    event: Literal["approval_asked"] = "approval_asked"
    call: ToolCallPart


class ToolAnswered(_TurnTold):
    """The call has its one result, be it that it failed, was not allowed or was stopped."""

    event: Literal["tool_answered"] = "tool_answered"
    call: ToolCallPart
    result: ToolResultPart


class TurnEnded(_TurnTold):
    event: Literal["turn_ended"] = "turn_ended"
    reason: EndReason
    steps: int = Field(description="How many replies there were.")
    usage: Usage = Field(description="All of them together.")


class TurnFailed(_TurnTold):
    """What could not be mended. The log holds what was asked and what came before the error."""

    event: Literal["turn_failed"] = "turn_failed"
    problem: Problem
    steps: int
    usage: Usage


class BranchChanged(Shown):
    """The branch has come to another entry. Told of every branch at first, then of each that moves."""

    event: Literal["changed"] = "changed"
    branch: int
    head: int = Field(description="The number of its newest entry.")


AnyTurnEvent = (
    TurnStarted
    | QuestionKept
    | RequestPrepared
    | ThinkingDelta
    | TextDelta
    | Retrying
    | ReplyKept
    | ToolCalled
    | ApprovalAsked
    | ToolAnswered
    | TurnEnded
    | TurnFailed
)
TurnEventShown = TypeAliasType("TurnEventShown", Annotated[AnyTurnEvent, Field(discriminator="event")])
LiveEventShown = TypeAliasType("LiveEventShown", Annotated[AnyTurnEvent | BranchChanged, Field(discriminator="event")])


def turn_event_shown(event: TurnEvent, *, branch: int) -> AnyTurnEvent:  # noqa: C901 (one case an event)
    match event:
        case happened.TurnStarted():
            return TurnStarted(branch=branch, message=event.message)
        case happened.QuestionKept():
            return QuestionKept(branch=branch, entry=entry_shown(event.entry))
        case happened.RequestPrepared():
            return _prepared(event, branch)
        case happened.Thinking():
            return ThinkingDelta(branch=branch, text=event.text)
        case happened.Text():
            return TextDelta(branch=branch, text=event.text)
        case happened.Retrying():
            return Retrying(branch=branch, problem=problem_shown(event.error), seconds=event.seconds)
        case happened.ReplyKept():
            return _kept(event, branch)
        case happened.ToolCalled():
            return ToolCalled(branch=branch, call=event.call)
        case happened.ApprovalAsked():
            return ApprovalAsked(branch=branch, call=event.call)
        case happened.ToolAnswered():
            return ToolAnswered(branch=branch, call=event.call, result=event.result)
        case happened.TurnEnded():
            return TurnEnded(branch=branch, reason=event.reason, steps=event.steps, usage=event.usage)
        case happened.TurnFailed():
            problem = problem_shown(event.error)
            return TurnFailed(branch=branch, problem=problem, steps=event.steps, usage=event.usage)
    assert_never(event)


def _prepared(event: happened.RequestPrepared, branch: int) -> RequestPrepared:
    return RequestPrepared(
        branch=branch,
        step=event.step,
        tokens=event.tokens,
        window=event.window,
        trigger=event.trigger,
        exact=event.exact,
        compacted=[entry_shown(entry) for entry in event.compacted],
    )


def _kept(event: happened.ReplyKept, branch: int) -> ReplyKept:
    return ReplyKept(
        branch=branch,
        entry=entry_shown(event.entry),
        usage=event.usage,
        finish=event.finish,
        unfinished=event.unfinished,
    )
