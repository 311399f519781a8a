"""Turns: send a message, stream events (SSE), stop, approve or deny tool calls."""

import asyncio
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field, field_validator

from quire.log import MAIN_BRANCH
from quire.model import Message
from quire.model.policy import MAX_MODEL_NAME_CHARS
from quire.schemas import JsonModel
from quire.schemas.turn_events import TurnEventSchema
from quire.server.auth import check_model, check_scope, is_still_authorized
from quire.server.dependencies import (
    AfterSeq,
    ChatCaller,
    ChatEngine,
    ConversationId,
    ReadEngine,
    StateDep,
    engine_for_caller,
    load_conversation,
)
from quire.server.event_stream import EventStreamResponse, LiveEventSchema, event_stream_responses
from quire.server.turn_registry import BranchKey
from quire.server.turn_submission import TurnSubmission, open_turn, stream_submission

router = APIRouter(prefix="/api/conversations/{conversation}", tags=["turns"])
running_router = APIRouter(prefix="/api/turns", tags=["turns"])

BranchField = Annotated[int, Field(ge=0, le=2**31 - 1, description="Branch number. 0 is the main branch.")]


class SendBody(BaseModel):
    message: str | Message | None = Field(
        default=None, description="The question, as a string or a user message. null continues from the log."
    )
    branch: BranchField = MAIN_BRANCH
    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_MODEL_NAME_CHARS,
        description="Name of the model. Default: the model in the settings.",
    )
    after: AfterSeq = None

    @field_validator("message")
    @classmethod
    def _check_user_role(cls, message: str | Message | None) -> str | Message | None:
        if isinstance(message, Message) and message.role != "user":
            raise ValueError("a question must be a user message; record others with POST /messages, then send null")
        return message

    @property
    def question(self) -> Message | None:
        return Message.user(self.message) if isinstance(self.message, str) else self.message


class RunningTurnSchema(BaseModel):
    conversation: str
    branch: int
    needs_approval: bool = Field(description="A tool call of the turn waits for a decision.")


class RunningTurnList(BaseModel):
    items: list[RunningTurnSchema]


class StopBody(BaseModel):
    branch: BranchField = MAIN_BRANCH


class StopSchema(JsonModel):
    was_running: bool = Field(description="Whether the branch had a running turn, on any server.")


class ApprovalBody(BaseModel):
    approve: bool
    branch: BranchField = MAIN_BRANCH


@router.post(
    "/send",
    status_code=200,
    response_class=EventStreamResponse,
    response_model=TurnEventSchema,
    responses=event_stream_responses("TurnEventSchema"),
)
async def send_message(
    request: Request, caller: ChatCaller, server_state: StateDep, conversation: ConversationId, body: SendBody
) -> EventStreamResponse:
    """Starts a turn and streams its events: `event` is the name, `data` the event as JSON.

    The last event is `turn_ended` or `turn_failed`. A turn belongs to the conversation: it continues if the client
    disconnects, and `/events` streams it from its start. 409 `turn_in_progress` if the branch has a running turn, on
    any server. A retry with the same message and `after` (idempotency key) replays an answered question from the log,
    streams the turn that is running, or waits for it if another server process runs it, and answers a question that
    was not answered. A server that shuts down ends the stream with `server_stopping`. The reply so far is recorded. The
    stream ends within ten seconds after its key was revoked or expired.
    """
    model = body.model or server_state.settings.model
    check_model(caller, model, server_state.upstream_model_for(model))
    engine = engine_for_caller(server_state, caller, model=body.model)
    submission = TurnSubmission(
        key=BranchKey(caller.tenant, conversation, body.branch),
        conversation=await load_conversation(engine, conversation, body.branch),
        message=body.question,
        after=body.after,
        # In a thread, because the first model imports the client of its provider for a second or two.
        model=await asyncio.to_thread(server_state.model_for, body.model),
    )
    source = await open_turn(server_state.turns, submission)
    events = stream_submission(server_state.turns, submission, source)
    return EventStreamResponse(events, is_authorized=partial(is_still_authorized, request))


@running_router.get("")
async def list_running_turns(engine: ReadEngine) -> RunningTurnList:
    """Lists the turns that run now, on any server, and whether they wait for an approval."""
    running = await engine.store.leases.list_running()
    return RunningTurnList(
        items=[
            RunningTurnSchema(
                conversation=state.lease.conversation,
                branch=state.lease.branch,
                needs_approval=state.approval is not None and state.is_approved is None,
            )
            for state in running
        ]
    )


@router.post("/stop", status_code=202)
async def stop_turn(
    engine: ChatEngine, server_state: StateDep, conversation: ConversationId, body: StopBody
) -> StopSchema:
    """Stops the branch's turn. The reply so far is recorded and marked as incomplete.

    A turn that another server process runs stops about a second later.
    """
    await load_conversation(engine, conversation, body.branch)
    key = BranchKey(engine.store.tenant, conversation, body.branch)
    return StopSchema(was_running=await server_state.turns.stop(key))


@router.post("/approvals/{call}", status_code=204)
async def decide_approval(
    caller: ChatCaller,
    engine: ChatEngine,
    server_state: StateDep,
    conversation: ConversationId,
    call: Annotated[str, Path(min_length=1, max_length=500, description="ID of the call in `approval_requested`.")],
    body: ApprovalBody,
) -> None:
    """Approves or denies a tool call, on any server. The model receives the decision. The first decision counts.

    A tool runs on the server's machine, so approving needs both scopes, `chat` and `approve`. Denying needs `chat`.
    """
    if body.approve:
        check_scope(caller, "approve")
    await load_conversation(engine, conversation, body.branch)
    key = BranchKey(caller.tenant, conversation, body.branch)
    await server_state.turns.decide_approval(key, call, approve=body.approve)


@router.get(
    "/events",
    status_code=200,
    response_class=EventStreamResponse,
    response_model=LiveEventSchema,
    responses=event_stream_responses("LiveEventSchema"),
)
async def stream_events(
    request: Request, engine: ReadEngine, server_state: StateDep, conversation: ConversationId
) -> EventStreamResponse:
    """Streams live events: `event` is the name, `data` the event as JSON.

    `branch_changed` is sent for every branch at first, and then within a second of each change, by any node. Turns are
    streamed live, from their start, on whichever node they run. A turn whose node died ends with `turn_failed` and the
    code `turn_lost`. A server that shuts down ends the stream with `server_stopping`: reconnect. The stream ends within
    ten seconds after its key was revoked or expired.
    """
    await load_conversation(engine, conversation)
    events = server_state.live_events.events(engine.store.tenant, conversation)
    return EventStreamResponse(events, is_authorized=partial(is_still_authorized, request))
