"""The ways to a server, as transports for the MCP SDK's client: a process, streamable HTTP, server-sent events.

Each is watched: the connection's owner learns when it ends, and a listing is sifted before the SDK reads it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, assert_never

import anyio
import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from quire.agent.limits import ServerLimits
from quire.agent.offers import sifted
from quire.agent.stdio import Command, LastWords, process_streams
from quire.model.agents import ToolServer

Items = SessionMessage | Exception
Streams = tuple[Any, Any]
"""What the SDK's transports yield: a stream to read and one to write, of classes that it keeps to itself."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What the owner of a connection wants to hear of it."""

    on_left_out: Callable[[str], None]
    on_garbage: Callable[[str], None]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    last_words: LastWords = field(default_factory=LastWords)


@asynccontextmanager
async def watched(
    server: ToolServer, *, env: dict[str, str], limits: ServerLimits, watch: Watch
) -> AsyncGenerator[Streams, None]:
    """Reaches the server in the way that it is configured for."""
    async with _reached(server, env=env, limits=limits, watch=watch) as (read_stream, write_stream):
        yield _Watched(read_stream, watch), write_stream


def _reached(
    server: ToolServer, *, env: dict[str, str], limits: ServerLimits, watch: Watch
) -> AbstractAsyncContextManager[Streams]:
    match server.transport:
        case "stdio":
            command = Command(program=server.command or "", args=server.args, env=env, cwd=server.cwd)
            return process_streams(
                command,
                largest_message=limits.largest_message,
                close_seconds=limits.close_seconds,
                last_words=watch.last_words,
                on_garbage=watch.on_garbage,
            )
        case "http":
            return _http(server, limits)
        case "sse":
            return sse_client(server.url or "", headers=dict(server.headers), httpx_client_factory=_client(limits))
    assert_never(server.transport)


@asynccontextmanager
async def _http(server: ToolServer, limits: ServerLimits) -> AsyncGenerator[Streams, None]:
    async with (
        _client(limits)(headers=dict(server.headers)) as client,
        streamable_http_client(
            server.url or "", http_client=client, max_sse_event_size=limits.largest_message
        ) as streams,
    ):
        yield streams


def _client(limits: ServerLimits) -> Callable[..., httpx2.AsyncClient]:
    """Clients that wait as long as the callers do: each of those has a limit of its own."""

    def client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        patience = httpx2.Timeout(None, connect=limits.start_seconds)
        return httpx2.AsyncClient(
            headers=headers, auth=auth, timeout=patience, transport=_Bounded(limits.largest_message)
        )

    return client


class _Bounded(httpx2.AsyncHTTPTransport):
    """Holds answers of one piece to a size. Streams of events are held to it event by event, by the SDK."""

    def __init__(self, largest: int) -> None:
        super().__init__()
        self._largest = largest

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream, self._largest)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, largest: int) -> None:
        self._stream, self._largest = stream, largest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > self._largest:
                raise httpx2.StreamError(f"the server sent a message of more than {self._largest:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Watched:
    """A stream of messages that says when it ends, and brings a listing of tools into a shape that the SDK takes."""

    def __init__(self, stream: Any, watch: Watch) -> None:
        self._stream, self._watch = stream, watch

    async def receive(self) -> Items:
        try:
            item: Items = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._watch.over.set()
            raise
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            self._sift(item.message.result)
        return item

    def _sift(self, result: dict[str, Any]) -> None:
        if isinstance(listed := result.get("tools"), list):
            result["tools"], problems = sifted(listed)  # pyright: ignore[reportUnknownArgumentType]
            for problem in problems:
                self._watch.on_left_out(problem)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Items:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
