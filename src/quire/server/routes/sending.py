"""Talking: a message sent, its turn told as it happens, stopped, and its tools allowed."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field, field_validator

from quire.errors import NotFound
from quire.log import MAIN
from quire.model import Message
from quire.server.asking import Chatting, ConversationId, Shared, conversation_of
from quire.server.repeats import asked_before, told_again
from quire.server.routes.entries import After
from quire.server.shown import Shown
from quire.server.streams import EventStream, events_of, turn_told
from quire.server.told import TurnEventShown
from quire.server.turns import Place

router = APIRouter(prefix="/api/conversations/{conversation}", tags=["talking"])

Branch = Annotated[int, Field(ge=0, le=2**31 - 1, description="The branch; 0 is the main one.")]


class Sending(BaseModel):
    message: str | Message | None = Field(
        default=None, description="What is asked, as a text or a user's message; null to go on from the log as it is."
    )
    branch: Branch = MAIN
    model: str | None = Field(
        default=None, min_length=1, max_length=200, description="The model to ask; else the usual one."
    )
    after: After = None

    @field_validator("message")
    @classmethod
    def _asked_by_the_user(cls, message: str | Message | None) -> str | Message | None:
        if isinstance(message, Message) and message.role != "user":
            raise ValueError("what is sent is a user's message; keep others with POST /messages, and send null")
        return message

    @property
    def asked(self) -> Message | None:
        return Message.user(self.message) if isinstance(self.message, str) else self.message


class Stop(BaseModel):
    branch: Branch = MAIN


class Stopped(Shown):
    under_way: bool = Field(description="Whether this server had a turn of the branch to stop.")


class Decided(BaseModel):
    approve: bool
    branch: Branch = MAIN


@router.post(
    "/send",
    status_code=200,
    response_class=EventStream,
    response_model=TurnEventShown,
    responses=events_of("TurnEventShown"),
)
async def send(caller: Chatting, serving: Shared, conversation: ConversationId, sent: Sending) -> EventStream:
    """Begins a turn and tells it as it happens: each event's `data` is one of these, and `event` is its name.

    The last is `turn_ended` or `turn_failed`. A turn belongs to the conversation: it goes on if the client leaves, and
    `/events` tells it to everyone, from its beginning. 409 `turn_under_way` if the branch has one already. Repeated
    with the same `after`, a question that was answered is told from the log, and one that was not is answered. A
    server that stops ends the stream with `server_stopping`; what had come is in the log.
    """
    found = await conversation_of(serving, caller, conversation, sent.branch, model=sent.model)
    message = sent.asked
    if sent.after is not None:
        before = await asked_before(found, message, after=sent.after)
        if before is not None and before.answered:
            return EventStream(told_again(before, branch=sent.branch))
        message = message if before is None else None
    place = Place(caller.tenant, conversation, sent.branch)
    running = serving.turns.start(place, found, message, model=serving.model(sent.model))
    return EventStream(turn_told(running, branch=sent.branch))


@router.post("/stop", status_code=202)
async def stop(caller: Chatting, serving: Shared, conversation: ConversationId, wanted: Stop) -> Stopped:
    """Ends the branch's turn; what had come of the reply is kept, marked as unfinished."""
    await conversation_of(serving, caller, conversation, wanted.branch)
    running = serving.turns.at(Place(caller.tenant, conversation, wanted.branch))
    if running is not None:
        running.stop()
    return Stopped(under_way=running is not None)


@router.post("/approvals/{call}", status_code=204)
async def decide(
    caller: Chatting,
    serving: Shared,
    conversation: ConversationId,
    call: Annotated[str, Path(min_length=1, max_length=500, description="The call's id, as `approval_asked` has it.")],
    decided: Decided,
) -> None:
    """Lets a tool's call be run, or not; the model is told which."""
    await conversation_of(serving, caller, conversation, decided.branch)
    running = serving.turns.at(Place(caller.tenant, conversation, decided.branch))
    if running is None:
        raise NotFound(f"Branch {decided.branch} of {conversation!r} has no turn under way that could wait for leave.")
    running.decide(call, approve=decided.approve)
