"""Transports for the MCP SDK's client: stdio, streamable HTTP, and SSE (server-sent events).

Each is monitored: the connection learns when its transport closes, and tool lists are filtered before the SDK parses
them.
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

from quire.agent.limits import MCPLimits
from quire.agent.mcp.stdio import ServerCommand, StderrTail, open_process_streams
from quire.agent.mcp.tool_list import filter_valid_tools
from quire.model.agents import ToolServer

TransportItem = SessionMessage | Exception
TransportStreams = tuple[Any, Any]
"""Read and write streams as the SDK's transports yield them; their classes are private to the SDK."""


@dataclass(frozen=True, slots=True)
class TransportMonitor:
    """Callbacks and state by which a connection observes its transport."""

    on_tool_skipped: Callable[[str], None]
    on_invalid_line: Callable[[str], None]
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    stderr_tail: StderrTail = field(default_factory=StderrTail)


@asynccontextmanager
async def open_transport(
    server: ToolServer, *, env: dict[str, str], limits: MCPLimits, monitor: TransportMonitor
) -> AsyncGenerator[TransportStreams, None]:
    """Connects to the server over its configured transport."""
    async with _connect(server, env=env, limits=limits, monitor=monitor) as (read_stream, write_stream):
        yield _MonitoredStream(read_stream, monitor), write_stream


def _connect(
    server: ToolServer, *, env: dict[str, str], limits: MCPLimits, monitor: TransportMonitor
) -> AbstractAsyncContextManager[TransportStreams]:
    match server.transport:
        case "stdio":
            command = ServerCommand(program=server.command or "", args=server.args, env=env, cwd=server.cwd)
            return open_process_streams(
                command,
                max_message_bytes=limits.max_message_bytes,
                close_seconds=limits.close_seconds,
                stderr_tail=monitor.stderr_tail,
                on_invalid_line=monitor.on_invalid_line,
            )
        case "http":
            return _connect_http(server, limits)
        case "sse":
            return sse_client(
                server.url or "", headers=dict(server.headers), httpx_client_factory=_make_client_factory(limits)
            )
    assert_never(server.transport)


@asynccontextmanager
async def _connect_http(server: ToolServer, limits: MCPLimits) -> AsyncGenerator[TransportStreams, None]:
    async with (
        _make_client_factory(limits)(headers=dict(server.headers)) as client,
        streamable_http_client(
            server.url or "", http_client=client, max_sse_event_size=limits.max_message_bytes
        ) as streams,
    ):
        yield streams


def _make_client_factory(limits: MCPLimits) -> Callable[..., httpx2.AsyncClient]:
    """Makes HTTP clients without a read timeout: each caller enforces its own."""

    def make_client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        connect_only = httpx2.Timeout(None, connect=limits.start_seconds)
        return httpx2.AsyncClient(
            headers=headers, auth=auth, timeout=connect_only, transport=_SizeLimitedTransport(limits.max_message_bytes)
        )

    return make_client


class _SizeLimitedTransport(httpx2.AsyncHTTPTransport):
    """Limits the size of a response body. SSE streams are exempt: the SDK limits each of their events."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _SizeLimitedStream(response.stream, self._max_bytes)
        return response


class _SizeLimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream, self._max_bytes = stream, max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > self._max_bytes:
                raise httpx2.StreamError(f"the server sent a message of more than {self._max_bytes:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _MonitoredStream:
    """Message stream that reports its end and filters tool lists to entries that the SDK accepts."""

    def __init__(self, stream: Any, monitor: TransportMonitor) -> None:
        self._stream, self._monitor = stream, monitor

    async def receive(self) -> TransportItem:
        try:
            item: TransportItem = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._monitor.closed.set()
            raise
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            self._filter_tools(item.message.result)
        return item

    def _filter_tools(self, result: dict[str, Any]) -> None:
        if isinstance(tools := result.get("tools"), list):
            result["tools"], problems = filter_valid_tools(tools)  # pyright: ignore[reportUnknownArgumentType]
            for problem in problems:
                self._monitor.on_tool_skipped(problem)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TransportItem:
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
