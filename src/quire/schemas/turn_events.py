"""Schemas of turn events, a union discriminated by `event`.

They are not the events of `quire.model.events` themselves: their JSON adds the branch, contains entries in their public
form, and an error as a problem with an HTTP status, which the model does not know.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType

from quire.errors import QuireError
from quire.model import DocumentReference, Manifest, Message, ToolCallPart, ToolResultPart, Usage, events
from quire.model.events import ContextSuggestion, TurnEndReason, TurnEvent
from quire.schemas import JsonModel
from quire.schemas.entries import EntrySchema, entry_to_schema


class Problem(BaseModel):
    """Body of an error response."""

    type: str = Field(default="about:blank", description="Always `about:blank`; `code` identifies the problem.")
    title: str = Field(description="Reason phrase of the status.")
    status: int
    detail: str = Field(description="What happened, to which item, and what to do next.")
    code: str = Field(description="Machine-readable name of the problem.")


class _TurnEventBase(JsonModel):
    branch: int = Field(description="Branch of the turn.")


class TurnStartedSchema(_TurnEventBase):
    event: Literal["turn_started"] = "turn_started"
    message: Message | None = Field(description="The question; null if the turn continues from the log.")


class QuestionRecordedSchema(_TurnEventBase):
    """The question is recorded in the log, even if the turn fails later."""

    event: Literal["question_recorded"] = "question_recorded"
    entry: EntrySchema


class RequestPreparedSchema(_TurnEventBase):
    """A request that fits the context window is about to be sent. Emitted before every model call."""

    event: Literal["request_prepared"] = "request_prepared"
    step: int = Field(description="Number of the model call in the turn, from 1.")
    tokens: int
    window: int
    trigger_tokens: int = Field(description="Requests above this many tokens are compacted.")
    exact: bool = Field(description="The tokens are counted with the model's own tokenizer, not estimated.")
    compactions: list[EntrySchema] = Field(description="Compactions made for this request.")


class ThinkingChunkSchema(_TurnEventBase):
    event: Literal["thinking"] = "thinking"
    text: str


class TextChunkSchema(_TurnEventBase):
    event: Literal["text"] = "text"
    text: str


class RetryScheduledSchema(_TurnEventBase):
    """The model call failed; it is retried after `delay_seconds`."""

    event: Literal["retry_scheduled"] = "retry_scheduled"
    problem: Problem
    delay_seconds: float


class ReplyRecordedSchema(_TurnEventBase):
    event: Literal["reply_recorded"] = "reply_recorded"
    entry: EntrySchema
    usage: Usage
    finish_reason: str | None = Field(description="Finish reason, as the provider reports it.")
    incomplete: bool = Field(description="The reply was cut off; the entry contains what had arrived.")


class ToolCalledSchema(_TurnEventBase):
    event: Literal["tool_called"] = "tool_called"
    call: ToolCallPart


class ApprovalRequestedSchema(_TurnEventBase):
    """The call waits until it is approved or denied with `/approvals/{call_id}`."""

    event: Literal["approval_requested"] = "approval_requested"
    call: ToolCallPart


class ToolCompletedSchema(_TurnEventBase):
    """The call has its one result, also if it failed, was denied or was stopped."""

    event: Literal["tool_completed"] = "tool_completed"
    call: ToolCallPart
    result: ToolResultPart


class TurnEndedSchema(_TurnEventBase):
    event: Literal["turn_ended"] = "turn_ended"
    reason: TurnEndReason
    steps: int = Field(description="Number of model calls.")
    usage: Usage = Field(description="Total of all model calls.")
    suggestion: ContextSuggestion | None = Field(
        default=None, description="A change of the context that the turn suggests."
    )


class TurnFailedSchema(_TurnEventBase):
    """The turn failed. The log contains the question and everything before the error."""

    event: Literal["turn_failed"] = "turn_failed"
    problem: Problem
    steps: int
    usage: Usage


AnyTurnEventSchema = (
    TurnStartedSchema
    | QuestionRecordedSchema
    | RequestPreparedSchema
    | ThinkingChunkSchema
    | TextChunkSchema
    | RetryScheduledSchema
    | ReplyRecordedSchema
    | ToolCalledSchema
    | ApprovalRequestedSchema
    | ToolCompletedSchema
    | TurnEndedSchema
    | TurnFailedSchema
)
TurnEventSchema = TypeAliasType("TurnEventSchema", Annotated[AnyTurnEventSchema, Field(discriminator="event")])

SCHEMA_BY_EVENT: dict[type[TurnEvent], type[AnyTurnEventSchema]] = {
    events.TurnStarted: TurnStartedSchema,
    events.QuestionRecorded: QuestionRecordedSchema,
    events.RequestPrepared: RequestPreparedSchema,
    events.ThinkingChunk: ThinkingChunkSchema,
    events.TextChunk: TextChunkSchema,
    events.RetryScheduled: RetryScheduledSchema,
    events.ReplyRecorded: ReplyRecordedSchema,
    events.ToolCalled: ToolCalledSchema,
    events.ApprovalRequested: ApprovalRequestedSchema,
    events.ToolCompleted: ToolCompletedSchema,
    events.TurnEnded: TurnEndedSchema,
    events.TurnFailed: TurnFailedSchema,
}
"""The schema of every event; it has the fields of the event, with `problem` in place of `error`."""


def turn_event_to_schema(
    event: TurnEvent, *, branch: int, to_problem: Callable[[QuireError], Problem]
) -> AnyTurnEventSchema:
    """Copies the fields, and converts those whose JSON differs."""
    values: dict[str, Any] = {field.name: getattr(event, field.name) for field in fields(event)}
    match event:
        case events.QuestionRecorded() | events.ReplyRecorded():
            values["entry"] = entry_to_schema(event.entry)
        case events.RequestPrepared():
            values["compactions"] = [entry_to_schema(entry) for entry in event.compactions]
        case events.RetryScheduled() | events.TurnFailed():
            values["problem"] = to_problem(values.pop("error"))
        case _:
            pass
    return SCHEMA_BY_EVENT[type(event)](branch=branch, **values)


class AnswerSchema(JsonModel):
    """The answer to a question from a script."""

    conversation: str
    branch: int
    reply: str
    reason: TurnEndReason
    seq: int | None = Field(description="Sequence number of the reply; null if no reply came.")
    model: str
    usage: Usage
    cost_usd: float = Field(description="0 if no price is known.")
    references: list[DocumentReference]
    manifest: Manifest | None = Field(description="What the model saw for the last reply.")
