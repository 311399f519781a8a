"""Streaming responses: server-sent events (SSE) with heartbeats, and JSON Lines.

A stream only observes a turn: when the client disconnects, the stream is closed and the turn continues. Framing and
heartbeat comment are those of `fastapi.sse`, but not its response: that one requires the route to be the generator, so
that a route can no longer return 404 or 409; it does not close the source of a client that disconnects while it does
not read, raises `BrokenResourceError` instead, and sends its own `Cache-Control`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Any, Literal

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic import Field
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import TypeAliasType

from quire.agent.cancellation import run_shielded
from quire.errors import QuireError
from quire.model import Usage
from quire.model.events import TurnEnded, TurnEvent, TurnFailed
from quire.schemas import JsonModel
from quire.schemas.turn_events import AnyTurnEventSchema, TurnFailedSchema, turn_event_to_schema
from quire.server.problems import UNEXPECTED_PROBLEM, error_to_problem

HEARTBEAT_SECONDS = 15.0
"""Heartbeat interval: after this many idle seconds an SSE comment is sent, so that proxies do not close the stream."""
KEY_RECHECK_SECONDS = 5.0
"""Seconds between two verifications of the key of an open stream, and maximum age of a cached verification: a revoked
key ends its streams within twice this time."""


class BranchChangedSchema(JsonModel):
    """The head of a branch moved. Sent for every branch at first, then for each change."""

    event: Literal["branch_changed"] = "branch_changed"
    branch: int
    head: int = Field(description="Sequence number of the newest entry.")


StreamEvent = AnyTurnEventSchema | BranchChangedSchema
LiveEventSchema = TypeAliasType("LiveEventSchema", Annotated[StreamEvent, Field(discriminator="event")])

AuthorizationCheck = Callable[[float], Awaitable[bool]]
"""Returns whether the client is still authorized; its argument is the maximum age of a cached result in seconds."""


def event_stream_responses(schema: str) -> dict[int | str, dict[str, Any]]:
    """Describes an SSE response for OpenAPI: an array with an `itemSchema`, as in version 3.2."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": _schema_reference(schema)}
    fields = {"id": {"type": "string"}, "event": {"type": "string"}, "data": data}
    item = {"type": "object", "properties": fields, "required": ["event", "data"]}
    return _stream_responses("The events, as they happen.", "text/event-stream", item)


def ndjson_responses(schema: str) -> dict[int | str, dict[str, Any]]:
    """Describes a JSON Lines response for OpenAPI."""
    return _stream_responses("The lines.", "application/x-ndjson", _schema_reference(schema))


def _stream_responses(description: str, media_type: str, item: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    content = {media_type: {"schema": {"type": "array"}, "itemSchema": item}}
    return {200: {"description": description, "content": content}}


def _schema_reference(schema: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema}"}


class ClosingStreamingResponse(StreamingResponse):
    """Streaming response that always closes its source, also when the client disconnects."""

    def __init__(self, source: AsyncGenerator[bytes, None], **options: Any) -> None:
        super().__init__(source, **options)
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._source):
            await super().__call__(scope, receive, send)


class EventStreamResponse(ClosingStreamingResponse):
    """Server-sent events, with ids from 1. The stream ends when its client is no longer authorized."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[StreamEvent, None],
        *,
        is_authorized: AuthorizationCheck,
        heartbeat_seconds: float | None = None,
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        heartbeat_seconds = HEARTBEAT_SECONDS if heartbeat_seconds is None else heartbeat_seconds
        encoded = _encode_events(events, is_authorized=is_authorized, heartbeat_seconds=heartbeat_seconds)
        super().__init__(encoded, headers=headers)


async def _encode_events(
    events: AsyncGenerator[StreamEvent, None], *, is_authorized: AuthorizationCheck, heartbeat_seconds: float
) -> AsyncGenerator[bytes, None]:
    event_id = 0
    next_event: asyncio.Task[StreamEvent | None] | None = None
    revocation = asyncio.get_running_loop().create_task(_wait_for_revocation(is_authorized))
    async with aclosing(events):
        try:
            while True:
                # A task with `asyncio.wait`, because a timeout on the source itself would cancel the source.
                next_event = next_event or asyncio.get_running_loop().create_task(_next_event(events))
                waiting = [next_event, revocation]
                await asyncio.wait(waiting, timeout=heartbeat_seconds, return_when=asyncio.FIRST_COMPLETED)
                if revocation.done():
                    return
                if not next_event.done():
                    yield KEEPALIVE_COMMENT
                    continue
                event, next_event = next_event.result(), None
                if event is None:
                    return
                event_id += 1
                yield format_sse_event(data_str=event.model_dump_json(), event=event.event, id=str(event_id))
        finally:
            tasks = [revocation, *([next_event] if next_event is not None else [])]
            for task in tasks:
                task.cancel()
            # Shielded: the stream may be cancelled more than once, and a source that still runs cannot be closed.
            await run_shielded(_wait_done(tasks))


async def _wait_done(tasks: Sequence[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks)


async def _wait_for_revocation(is_authorized: AuthorizationCheck) -> None:
    """Returns when the client is no longer authorized, or when that cannot be verified."""
    with suppress(QuireError):
        while True:
            await asyncio.sleep(KEY_RECHECK_SECONDS)
            if not await is_authorized(KEY_RECHECK_SECONDS):
                return


async def _next_event(events: AsyncGenerator[StreamEvent, None]) -> StreamEvent | None:
    return await anext(events, None)


async def stream_turn(
    events: AsyncGenerator[TurnEvent, None], *, branch: int
) -> AsyncGenerator[AnyTurnEventSchema, None]:
    """Converts the events of a turn. A turn that ended without a final event gets `turn_failed`."""
    ended = False
    async with aclosing(events):
        async for event in events:
            ended = isinstance(event, TurnEnded | TurnFailed)
            yield turn_event_to_schema(event, branch=branch, to_problem=error_to_problem)
    if not ended:
        yield TurnFailedSchema(branch=branch, problem=UNEXPECTED_PROBLEM, steps=0, usage=Usage())
