"""The end of a server, told to those who listen to it.

Streams that have no end of their own end when the server begins to stop, all others when its grace is over; each with a
last event that says why, in a form that OpenAI's clients read as an error too.
"""

import asyncio
import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

EVENT = "server_stopping"
_SAID = "The server is stopping. What had come of the reply is kept; ask again to go on."
LAST_EVENT = (
    f"event: {EVENT}\n"
    f"data: {json.dumps({'error': {'message': _SAID, 'type': EVENT, 'code': EVENT, 'param': None}})}\n\n"
).encode()


class Stopping:
    """The event streams that are open, and how far the server is with its end."""

    def __init__(self) -> None:
        self.begun = False
        """Whether the server takes nothing new any more."""
        self._endless: set[asyncio.Task[object]] = set()
        self._ending: set[asyncio.Task[object]] = set()
        self._cut: set[asyncio.Task[object]] = set()

    def begin(self) -> None:
        self.begun = True
        self._cut_off(self._endless)

    def end_streams(self) -> None:
        """Ends whatever is still told; who tells it is cancelled, as if the client had gone."""
        self.begin()
        self._cut_off(self._ending)

    def _cut_off(self, streams: set[asyncio.Task[object]]) -> None:
        for task in streams - self._cut:
            self._cut.add(task)
            task.cancel()

    def __len__(self) -> int:
        """How many streams are open."""
        return len(self._endless) + len(self._ending)

    async def all_closed(self, *, within: float) -> None:
        """Waits until no stream is open, but not longer than this."""
        if open_ := self._endless | self._ending:
            await asyncio.wait(open_, timeout=within)

    def opened(self, task: asyncio.Task[object], *, endless: bool) -> None:
        (self._endless if endless else self._ending).add(task)
        if endless and self.begun:
            self._cut_off(self._endless)

    def closed(self, task: asyncio.Task[object]) -> None:
        for streams in (self._endless, self._ending, self._cut):
            streams.discard(task)

    def was_cut(self, task: asyncio.Task[object]) -> bool:
        return task in self._cut


class EndOfStreams:
    """The layer that knows of every open stream, and gives it its last event."""

    def __init__(self, app: ASGIApp, stopping: Stopping) -> None:
        self._app, self._stopping = app, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        if scope["type"] != "http" or task is None:
            await self._app(scope, receive, send)
            return
        whole = False

        async def sending(message: Message) -> None:
            nonlocal whole
            if message["type"] == "http.response.start" and _is_stream(message):
                # Something asked for by GET is told as long as somebody listens; a reply has an end.
                self._stopping.opened(task, endless=scope["method"] == "GET")
            if message["type"] == "http.response.body":
                whole = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if whole or not self._stopping.was_cut(task):
                raise
            task.uncancel()
            await send({"type": "http.response.body", "body": LAST_EVENT, "more_body": False})
        finally:
            self._stopping.closed(task)


def _is_stream(message: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in message.get("headers", ())
    )
