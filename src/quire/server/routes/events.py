"""What happens to a conversation, told as it happens to everyone who listens."""

from fastapi import APIRouter, Request

from quire.server.asking import ConversationId, Reading, Shared, conversation_of
from quire.server.listening import listening_of
from quire.server.streams import EventStream, events_of
from quire.server.told import LiveEventShown

router = APIRouter(prefix="/api/conversations/{conversation}", tags=["talking"])


@router.get(
    "/events",
    status_code=200,
    response_class=EventStream,
    response_model=LiveEventShown,
    responses=events_of("LiveEventShown"),
)
async def listen(request: Request, caller: Reading, serving: Shared, conversation: ConversationId) -> EventStream:
    """Each event's `data` is one of these, and `event` is its name.

    `changed` tells of every branch at first, and then within a second of each that moves, whoever moved it. Turns that
    run on this server are told as they happen; one that was under way already, from its beginning. A server that stops
    ends the stream with `server_stopping`: connect again.
    """
    await conversation_of(serving, caller, conversation)
    return EventStream(listening_of(request.app).events(caller.tenant, conversation))
