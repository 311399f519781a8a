"""MCP stdio transport: runs a server as a subprocess and exchanges newline-delimited JSON-RPC messages with it.

Unlike the SDK's reader, this one scans each byte once and bounds the length of a line. A server may write anything: a
line that is no valid message becomes an `InvalidLine` with a reason, never an exception.
"""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter

from quire.model.text import replace_lone_surrogates

INHERITED_VARIABLES = (
    "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE", "SYSTEMDRIVE",
    "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
)  # fmt: skip
"""Environment variables that a process inherits: for programs, home and locale, on Unix and Windows. None is secret."""

_READ_CHUNK_BYTES = 1 << 18
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

StdioItem = SessionMessage | Exception
StdioStreams = tuple[MemoryObjectReceiveStream[StdioItem], MemoryObjectSendStream[SessionMessage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    program: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None


@dataclass(slots=True)
class StderrTail:
    """The end of a process's standard error, which often says why the process exited."""

    text: str = ""

    async def read_from(self, stderr: asyncio.StreamReader) -> None:
        tail = b""
        while chunk := await stderr.read(_READ_CHUNK_BYTES):
            tail = (tail + chunk)[-_STDERR_TAIL_BYTES:]
            self.text = tail.decode("utf-8", "replace").strip()


def build_environment(configured: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the few inherited variables and those configured for this process."""
    return {name: variables[name] for name in INHERITED_VARIABLES if name in variables} | dict(configured)


@asynccontextmanager
async def open_process_streams(
    command: ServerCommand,
    *,
    max_message_bytes: int,
    close_seconds: float,
    stderr_tail: StderrTail,
    on_invalid_line: Callable[[str], None],
) -> AsyncGenerator[StdioStreams, None]:
    """Starts the process and yields the streams for the SDK's client. On exit the process and its group are ended."""
    process = await _start_process(command)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    incoming, read_stream = anyio.create_memory_object_stream[StdioItem](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    lines = LineReader(max_line_bytes=max_message_bytes)
    tasks = [
        asyncio.create_task(_read_messages(process.stdout, lines, incoming, on_invalid_line)),
        asyncio.create_task(_write_messages(process.stdin, outgoing, incoming)),
        asyncio.create_task(stderr_tail.read_from(process.stderr)),
    ]
    try:
        yield read_stream, write_stream
    finally:
        # The client no longer reads, but the tasks still drain the pipes, so that the process can write and exit.
        for stream in (read_stream, write_stream):
            stream.close()
        try:
            with anyio.CancelScope(shield=True):
                await _stop_process(process, close_seconds=close_seconds)
        finally:
            _kill_group(process)
            with anyio.CancelScope(shield=True):
                await _finish_tasks(process, tasks)
            for stream in (incoming, outgoing):
                stream.close()


async def _start_process(command: ServerCommand) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        command.program,
        *command.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(command.env),
        cwd=command.cwd,
        limit=_READ_CHUNK_BYTES,
        # A separate process group: Ctrl-C in the terminal does not reach it, and it can be killed as a whole.
        start_new_session=True,
    )


async def _read_messages(
    stdout: asyncio.StreamReader,
    lines: "LineReader",
    incoming: MemoryObjectSendStream[StdioItem],
    on_invalid_line: Callable[[str], None],
) -> None:
    with incoming:
        while chunk := await stdout.read(_READ_CHUNK_BYTES):
            for line in lines.feed(chunk):
                item = parse_line(line) if isinstance(line, bytes) else line
                if isinstance(item, InvalidLine):
                    on_invalid_line(item.problem)
                    item = None if item.request_id is None else _make_error_response(item.request_id, item.problem)
                if item is not None:
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await incoming.send(SessionMessage(item))


def _make_error_response(request: int, problem: str) -> JSONRPCError:
    """Makes an error response in place of the unreadable one, so that its request does not wait for the timeout."""
    return JSONRPCError(
        jsonrpc="2.0", id=request, error=ErrorData(code=INTERNAL_ERROR, message=f"the server {problem}")
    )


async def _write_messages(
    stdin: asyncio.StreamWriter,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    incoming: MemoryObjectSendStream[StdioItem],
) -> None:
    with outgoing:
        try:
            async for message in outgoing:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(text.encode() + b"\n")
                await stdin.drain()
        except OSError:
            # The process no longer reads; closing the stream fails the pending requests.
            incoming.close()


async def _stop_process(process: asyncio.subprocess.Process, *, close_seconds: float) -> None:
    """Graceful shutdown: closes standard input, which the protocol defines as the end, then sends SIGTERM."""
    if process.stdin is not None:
        process.stdin.close()
    if not await _wait_for_exit(process, timeout_seconds=close_seconds):
        _signal_group(process, signal.SIGTERM)
        await _wait_for_exit(process, timeout_seconds=_TERMINATE_SECONDS)


async def _wait_for_exit(process: asyncio.subprocess.Process, *, timeout_seconds: float) -> bool:
    """Polls, because `Process.wait` also waits for the pipes, which a grandchild may hold open."""
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    while process.returncode is None and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110  there is no event
        await asyncio.sleep(_POLL_SECONDS)
    return process.returncode is not None


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """Kills the rest of the group without awaiting, so that no cancellation can come before it."""
    if sys.platform == "win32":
        if process.returncode is None:
            process.kill()
    else:
        _signal_group(process, signal.SIGKILL)


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.terminate()
        else:
            os.killpg(process.pid, number)


async def _finish_tasks(process: asyncio.subprocess.Process, tasks: list[asyncio.Task[None]]) -> None:
    # The readers run until the pipes end: only then does asyncio consider the process finished.
    await asyncio.wait([*tasks, asyncio.create_task(process.wait())], timeout=_TERMINATE_SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # A process outside the group may still hold the pipes; asyncio has no public API to close them.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


@dataclass(frozen=True, slots=True)
class InvalidLine:
    """A line that is no valid message; `request_id` is the request it seems to answer, if one was found."""

    problem: str
    request_id: int | None = None


class LineReader:
    """Splits chunks of bytes into lines. Of a line beyond `max_line_bytes` only the head is examined."""

    def __init__(self, *, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes | InvalidLine]:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield from self._append(end)
            if self._size <= self._max_line_bytes:
                yield b"".join(self._pieces)
            self._pieces, self._size = [], 0
        yield from self._append(rest)

    def _append(self, piece: bytes) -> Iterator[InvalidLine]:
        was_within = self._size <= self._max_line_bytes
        self._size += len(piece)
        if self._size <= self._max_line_bytes:
            self._pieces.append(piece)
        elif was_within:
            # Reported at once, because the line may never end.
            head = b"".join([*self._pieces, piece])[:_HEAD_BYTES]
            self._pieces = []
            problem = f"sent a message of more than {self._max_line_bytes:,} bytes, which was dropped"
            yield InvalidLine(problem, request_id=_find_request_id(head))


def parse_line(line: bytes) -> JSONRPCMessage | InvalidLine | None:
    """Parses the message in a line; None for an empty line."""
    if not line.strip():
        return None
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return _parse_leniently(line)


def _parse_leniently(line: bytes) -> JSONRPCMessage | InvalidLine:
    """Parses JSON with escaped lone surrogates, which JavaScript and Python write and pydantic rejects."""
    text = line.decode("utf-8", "replace")
    try:
        return jsonrpc_message_adapter.validate_python(_replace_surrogates_deep(json.loads(text)), by_name=False)
    except (ValueError, RecursionError):
        request_id = _find_request_id(line[:_HEAD_BYTES]) if line.lstrip().startswith(b"{") else None
        return InvalidLine(
            f"wrote an invalid message to its standard output: {text[:_EXCERPT_CHARS]!r}", request_id=request_id
        )


def _replace_surrogates_deep(value: object) -> object:
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    if isinstance(value, list):
        return [_replace_surrogates_deep(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {
            replace_lone_surrogates(key): _replace_surrogates_deep(item)
            for key, item in cast("dict[str, Any]", value).items()
        }
    return value


def _find_request_id(head: bytes) -> int | None:
    match = _REQUEST_ID_PATTERN.search(head)
    return int(match[1]) if match is not None else None
