"""Transports for the MCP SDK's client: stdio, streamable HTTP, and SSE (server-sent events).

Each is monitored: the connection learns when its transport closes, and tool lists are filtered before the SDK parses
them. Each bounds the size of a message. That is why stdio is implemented here: the SDK's reader buffers a line without
a limit and scans it again for every chunk.
"""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, assert_never

import anyio
import httpx2
from anyio.abc import ByteReceiveStream, ObjectReceiveStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from quire.agent.limits import MCPLimits
from quire.agent.mcp.payloads import filter_valid_tools
from quire.model.agents import ToolServer
from quire.model.base import replace_lone_surrogates

TransportItem = SessionMessage | Exception
TransportStreams = tuple[Any, Any]
"""Read and write streams as the SDK's transports yield them; their classes are private to the SDK."""

_INHERITED_VARIABLES = (
    "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE", "SYSTEMDRIVE",
    "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
)  # fmt: skip
"""Environment variables that a process inherits: for programs, home and locale, on Unix and Windows. None is secret."""
_STDERR_TAIL_BYTES = 2_000
"""Bytes of standard error that are remembered."""
_POLL_SECONDS = 0.01
_TERMINATE_SECONDS = 1.0
"""Seconds between SIGTERM and SIGKILL, and for the pipes to end after that."""
_HEAD_BYTES = 1_000
"""Bytes at the start of an invalid line that are searched for a request id."""
_EXCERPT_CHARS = 80
"""Characters of an invalid line that are quoted in its problem."""
_REQUEST_ID_PATTERN = re.compile(rb'"id"\s*:\s*(\d+)')


@dataclass(slots=True)
class TransportMonitor:
    """Callbacks and state by which a connection observes its transport."""

    on_tool_skipped: Callable[[str], None]
    on_invalid_line: Callable[[str], None]
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    stderr_tail: str = ""
    """The end of a process's standard error, which often says why the process exited."""


@asynccontextmanager
async def open_transport(
    server: ToolServer, *, variables: Mapping[str, str], limits: MCPLimits, monitor: TransportMonitor
) -> AsyncGenerator[TransportStreams, None]:
    """Connects to the server over its configured transport. `variables` are those that a process may inherit from."""

    def make_client(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        # Without a read timeout, because each caller of the connection enforces its own.
        timeout = httpx2.Timeout(None, connect=limits.start_seconds)
        transport = _SizeLimitedTransport(limits.max_message_bytes)
        return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, transport=transport)

    headers = dict(server.headers)
    match server.transport:
        case "stdio":
            connection = _run_process(server, variables=variables, limits=limits, monitor=monitor)
        case "http":
            connection = _connect_http(server.url or "", make_client(headers), limits)
        case "sse":
            connection = sse_client(server.url or "", headers=headers, httpx_client_factory=make_client)
        case _:
            assert_never(server.transport)
    async with connection as (read_stream, write_stream):
        yield _MonitoredStream(read_stream, monitor), write_stream


@asynccontextmanager
async def _connect_http(
    url: str, client: httpx2.AsyncClient, limits: MCPLimits
) -> AsyncGenerator[TransportStreams, None]:
    async with (
        client,
        streamable_http_client(url, http_client=client, max_sse_event_size=limits.max_message_bytes) as streams,
    ):
        yield streams


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


@dataclass(slots=True, eq=False)
class _MonitoredStream(ObjectReceiveStream[TransportItem]):
    """Message stream that reports its end and filters tool lists to entries that the SDK accepts."""

    stream: Any
    monitor: TransportMonitor

    async def receive(self) -> TransportItem:
        try:
            item: TransportItem = await self.stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self.monitor.closed.set()
            raise
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            result = item.message.result
            if isinstance(tools := result.get("tools"), list):
                result["tools"], problems = filter_valid_tools(tools)  # pyright: ignore[reportUnknownArgumentType]
                for problem in problems:
                    self.monitor.on_tool_skipped(problem)
        return item

    async def aclose(self) -> None:
        await self.stream.aclose()


@asynccontextmanager
async def _run_process(
    server: ToolServer, *, variables: Mapping[str, str], limits: MCPLimits, monitor: TransportMonitor
) -> AsyncGenerator[TransportStreams, None]:
    """Runs the server as a subprocess and exchanges lines of JSON-RPC with it. On exit its process group is ended.

    A server may write anything: a line that is no valid message is reported, never raised.
    """
    inherited = {name: variables[name] for name in _INHERITED_VARIABLES if name in variables}
    process = await anyio.open_process(
        [server.command or "", *server.args],
        env=inherited | dict(server.env),
        cwd=server.cwd,
        # A separate process group: Ctrl-C in the terminal does not reach it, and it can be killed as a whole.
        start_new_session=True,
    )
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    assert stdin is not None
    assert stdout is not None
    assert stderr is not None
    incoming, read_stream = anyio.create_memory_object_stream[TransportItem](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)

    async def read_messages() -> None:
        with incoming:
            async for line in read_lines(stdout, max_line_bytes=limits.max_message_bytes):
                item = parse_line(line) if isinstance(line, bytes) else line
                if isinstance(item, InvalidLine):
                    monitor.on_invalid_line(item.problem)
                    if item.request_id is None:
                        continue
                    # An error response in place of the invalid one, so that its request does not wait for its timeout.
                    error = ErrorData(code=INTERNAL_ERROR, message=f"the server {item.problem}")
                    item = JSONRPCError(jsonrpc="2.0", id=item.request_id, error=error)
                if item is not None:
                    # If the client no longer reads, the pipe is still drained, so that the process can write and exit.
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await incoming.send(SessionMessage(item))

    async def write_messages() -> None:
        with outgoing:
            try:
                async for message in outgoing:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await stdin.send(text.encode() + b"\n")
            except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                # The process no longer reads; closing the stream fails the pending requests.
                incoming.close()

    async def read_stderr() -> None:
        tail = b""
        async for chunk in stderr:
            tail = (tail + chunk)[-_STDERR_TAIL_BYTES:]
            monitor.stderr_tail = tail.decode("utf-8", "replace").strip()

    tasks = [asyncio.create_task(work()) for work in (read_messages, write_messages, read_stderr)]
    try:
        yield read_stream, write_stream
    finally:
        for stream in (read_stream, write_stream):
            stream.close()
        await _end_process(process, tasks, close_seconds=limits.close_seconds)
        for stream in (incoming, outgoing):
            stream.close()


async def _end_process(process: Process, tasks: list[asyncio.Task[None]], *, close_seconds: float) -> None:
    """Closes standard input, which the protocol defines as the end, then sends SIGTERM, then SIGKILL to the group."""

    async def wait_for_exit(timeout_seconds: float) -> None:
        # Polls, because `Process.wait` also waits for the pipes, which a grandchild may hold open.
        with anyio.move_on_after(timeout_seconds):
            while process.returncode is None:  # noqa: ASYNC110  there is no event
                await asyncio.sleep(_POLL_SECONDS)

    def signal_group(*, kill: bool) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform != "win32":
                os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)
            elif process.returncode is None:
                process.terminate()

    try:
        with anyio.CancelScope(shield=True):
            if process.stdin is not None:
                await process.stdin.aclose()
            await wait_for_exit(close_seconds)
            if process.returncode is None:
                signal_group(kill=False)
                await wait_for_exit(_TERMINATE_SECONDS)
    finally:
        # Kills the rest of the group without awaiting, so that no cancellation can come before it.
        signal_group(kill=True)
        with anyio.CancelScope(shield=True):
            # The readers run until the pipes end: only then does asyncio consider the process finished.
            await asyncio.wait([*tasks, asyncio.create_task(process.wait())], timeout=_TERMINATE_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # A process outside the group may still hold the pipes; neither anyio nor asyncio has an API to close them.
        transport = getattr(getattr(process, "_process", None), "_transport", None)
        if transport is not None:
            transport.close()


@dataclass(frozen=True, slots=True)
class InvalidLine:
    """A line that is no valid message; `request_id` is the request it seems to answer, if one was found."""

    problem: str
    request_id: int | None = None


async def read_lines(stream: ByteReceiveStream, *, max_line_bytes: int) -> AsyncGenerator[bytes | InvalidLine, None]:
    """Yields the lines of a stream. Of a line beyond `max_line_bytes` only the head is examined."""
    buffered = BufferedByteReceiveStream(stream)
    is_continued = False
    while True:
        try:
            line = await buffered.receive_until(b"\n", max_line_bytes + 1)
            is_complete = True
        except anyio.DelimiterNotFound:
            # Reported at once and then dropped piece by piece, because the line may never end.
            line, buffered = buffered.buffer, BufferedByteReceiveStream(stream)
            is_complete = False
        except anyio.IncompleteRead:
            return
        if not is_continued and len(line) <= max_line_bytes:
            yield line
        elif not is_continued:
            problem = f"sent a message of more than {max_line_bytes:,} bytes, which was dropped"
            yield InvalidLine(problem, request_id=_find_request_id(line))
        is_continued = not is_complete


def parse_line(line: bytes) -> JSONRPCMessage | InvalidLine | None:
    """Parses the message in a line; None for an empty line."""
    if not line.strip():
        return None
    with suppress(ValueError):
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    text = line.decode("utf-8", "replace")
    # JavaScript and Python write lone surrogates as escapes, which pydantic rejects.
    with suppress(ValueError, RecursionError):
        plain = replace_lone_surrogates(json.dumps(json.loads(text), ensure_ascii=False))
        return jsonrpc_message_adapter.validate_json(plain, by_name=False)
    return InvalidLine(
        f"wrote an invalid message to its standard output: {text[:_EXCERPT_CHARS]!r}",
        request_id=_find_request_id(line) if line.lstrip().startswith(b"{") else None,
    )


def _find_request_id(line: bytes) -> int | None:
    match = _REQUEST_ID_PATTERN.search(line[:_HEAD_BYTES])
    return int(match[1]) if match is not None else None
