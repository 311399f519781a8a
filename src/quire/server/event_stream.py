"""Streaming responses: server-sent events (SSE) with heartbeats, and JSON Lines.

A stream only observes a turn: when the client disconnects, the stream is closed and the turn continues. Framing and
heartbeat comment come from `fastapi.sse`. Its response class is not used: it requires the route to be the generator, so
that a route can no longer return 404 or 409. It also sends its own `Cache-Control`, and it raises `BrokenResourceError`
instead of closing the source when a client disconnects while it does not read.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Annotated, Any, Literal

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic import Field
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import TypeAliasType

from quire.concurrency.cancellation import run_shielded
from quire.errors import QuireError
from quire.schemas import JsonModel
from quire.schemas.turn_events import AnyTurnEventSchema

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
"""Returns whether the client is still authorized. Its argument is the maximum age of a cached result in seconds."""


def event_stream_responses(schema: str) -> dict[int | str, dict[str, Any]]:
    """Describes an SSE response for OpenAPI: an array with an `itemSchema`, as in version 3.2."""
    reference = {"$ref": f"#/components/schemas/{schema}"}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": reference}
    fields = {"id": {"type": "string"}, "event": {"type": "string"}, "data": data}
    item = {"type": "object", "properties": fields, "required": ["event", "data"]}
    return _stream_responses("The events, as they happen.", "text/event-stream", item)


def ndjson_responses(schema: str) -> dict[int | str, dict[str, Any]]:
    """Describes a JSON Lines response for OpenAPI."""
    return _stream_responses("The lines.", "application/x-ndjson", {"$ref": f"#/components/schemas/{schema}"})


def _stream_responses(description: str, media_type: str, item: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    content = {media_type: {"schema": {"type": "array"}, "itemSchema": item}}
    return {200: {"description": description, "content": content}}


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

    def __init__(self, events: AsyncGenerator[StreamEvent, None], *, is_authorized: AuthorizationCheck) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(_encode_events(events, is_authorized), headers=headers)


async def _encode_events(
    events: AsyncGenerator[StreamEvent, None], is_authorized: AuthorizationCheck
) -> AsyncGenerator[bytes, None]:
    event_id = 0
    next_event: asyncio.Future[StreamEvent | None] | None = None
    revocation = asyncio.ensure_future(_wait_for_revocation(is_authorized))
    async with aclosing(events):
        try:
            while True:
                # A task with `asyncio.wait`, because a timeout on the source itself would cancel the source.
                next_event = next_event or asyncio.ensure_future(anext(events, None))
                waiting = [next_event, revocation]
                await asyncio.wait(waiting, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
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
            await run_shielded(asyncio.wait(tasks))


async def _wait_for_revocation(is_authorized: AuthorizationCheck) -> None:
    """Returns when the client is no longer authorized, or when that cannot be verified."""
    with suppress(QuireError):
        while True:
            await asyncio.sleep(KEY_RECHECK_SECONDS)
            if not await is_authorized(KEY_RECHECK_SECONDS):
                return
