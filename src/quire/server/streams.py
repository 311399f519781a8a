"""Streams over HTTP: server-sent events as the standard writes them, and lines; each is closed when its reader goes.

What a stream tells goes on without it: to close one ends nothing but the telling.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from quire.agent.waiting import uninterrupted
from quire.model import Usage
from quire.model.turns import TurnEnded, TurnFailed
from quire.server import told as events_told
from quire.server.shown import UNEXPECTED
from quire.server.told import AnyTurnEvent, BranchChanged, turn_event_shown
from quire.server.turns import Running

BEAT = 15.0
"""After so many seconds without an event a comment is sent, so that nobody on the way takes the stream for dead."""

Told = AnyTurnEvent | BranchChanged


def events_of(schema: str) -> dict[int | str, dict[str, Any]]:
    """How OpenAPI is told what the events of a stream hold: a stream is to it a list, as its version 3.2 has it."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": _reference(schema)}
    fields = {"id": {"type": "string"}, "event": {"type": "string"}, "data": data}
    item = {"type": "object", "properties": fields, "required": ["event", "data"]}
    return _listed("The events, as they happen.", "text/event-stream", item)


def lines_of(schema: str) -> dict[int | str, dict[str, Any]]:
    """The same for JSON Lines."""
    return _listed("The lines.", "application/x-ndjson", _reference(schema))


def _listed(description: str, media_type: str, item: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    content = {media_type: {"schema": {"type": "array"}, "itemSchema": item}}
    return {200: {"description": description, "content": content}}


def _reference(schema: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema}"}


class ClosingStream(StreamingResponse):
    """A stream whose source is closed at its end, whichever way it ends."""

    def __init__(self, source: AsyncGenerator[bytes, None], **options: Any) -> None:
        super().__init__(source, **options)
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._source):
            await super().__call__(scope, receive, send)


class EventStream(ClosingStream):
    """Server-sent events, numbered from 1."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[Told, None], *, beat: float | None = None) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(_frames(events, beat=BEAT if beat is None else beat), headers=headers)


async def _frames(events: AsyncGenerator[Told, None], *, beat: float) -> AsyncGenerator[bytes, None]:
    number = 0
    coming: asyncio.Task[Told | None] | None = None
    async with aclosing(events):
        try:
            while True:
                # Waited for beside the beat, and not with a time limit, which would break the source off.
                coming = coming or asyncio.get_running_loop().create_task(_next(events))
                if not (await asyncio.wait([coming], timeout=beat))[0]:
                    yield b":\n\n"
                    continue
                told, coming = coming.result(), None
                if told is None:
                    return
                number += 1
                yield f"id: {number}\nevent: {told.event}\ndata: {told.model_dump_json()}\n\n".encode()
        finally:
            if coming is not None:
                coming.cancel()
                # Whoever cancels a stream may do so again and again; a source that still runs cannot be closed.
                await uninterrupted(_over(coming))


async def _over(task: asyncio.Task[Told | None]) -> None:
    await asyncio.wait([task])


async def _next(events: AsyncGenerator[Told, None]) -> Told | None:
    return await anext(events, None)


async def turn_told(running: Running, *, branch: int) -> AsyncGenerator[AnyTurnEvent, None]:
    """A turn from its beginning to its end; one that broke off in a way that nobody foresaw ends as a failure."""
    ended = False
    async with aclosing(running.events()) as events:
        async for event in events:
            ended = isinstance(event, TurnEnded | TurnFailed)
            yield turn_event_shown(event, branch=branch)
    if not ended:
        yield events_told.TurnFailed(branch=branch, problem=UNEXPECTED, steps=0, usage=Usage())
