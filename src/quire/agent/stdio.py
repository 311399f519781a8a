"""A server's process, spoken to over its standard streams: a transport for the MCP SDK's client.

The SDK has one; this one bounds what a server can make us keep, on standard output and standard error, and gives the
process no variable that is not named here or configured. However it is left, nothing of the process group remains.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError

from quire.agent.lines import Garbage, Lines, parsed

INHERITED = (
    "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE", "SYSTEMDRIVE",
    "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
)  # fmt: skip
"""What a process needs to find its programs, its home and its language, on Unix and on Windows. None holds a key."""

_CHUNK = 1 << 18
_TAIL = 2_000
_POLL = 0.01
_TERMINATE_SECONDS = 1.0

Items = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Items], MemoryObjectSendStream[SessionMessage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    program: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None


@dataclass(slots=True)
class LastWords:
    """The end of what a process wrote to standard error: often the reason why it is gone."""

    text: str = ""

    async def follow(self, stderr: asyncio.StreamReader) -> None:
        tail = b""
        while chunk := await stderr.read(_CHUNK):
            tail = (tail + chunk)[-_TAIL:]
            self.text = tail.decode("utf-8", "replace").strip()


def environment(configured: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The few variables that every process needs, and what is configured for this one."""
    return {name: variables[name] for name in INHERITED if name in variables} | dict(configured)


@asynccontextmanager
async def process_streams(
    command: Command,
    *,
    largest_message: int,
    close_seconds: float,
    last_words: LastWords,
    on_garbage: Callable[[str], None],
) -> AsyncGenerator[Streams, None]:
    """Starts the process, and yields the streams that the SDK's client reads and writes."""
    process = await _started(command)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    incoming, read_stream = anyio.create_memory_object_stream[Items](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    lines = Lines(largest=largest_message)
    tasks = [
        asyncio.create_task(_read(process.stdout, lines, incoming, on_garbage)),
        asyncio.create_task(_write(process.stdin, outgoing, incoming)),
        asyncio.create_task(last_words.follow(process.stderr)),
    ]
    try:
        yield read_stream, write_stream
    finally:
        # From here on nobody reads: the pipes are drained all the same, so that the process can write and end.
        for stream in (read_stream, write_stream):
            stream.close()
        try:
            with anyio.CancelScope(shield=True):
                await _stop(process, close_seconds=close_seconds)
        finally:
            _kill(process)
            with anyio.CancelScope(shield=True):
                await _settled(process, tasks)
            for stream in (incoming, outgoing):
                stream.close()


async def _started(command: Command) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        command.program,
        *command.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(command.env),
        cwd=command.cwd,
        limit=_CHUNK,
        # A group of its own: Ctrl-C in the terminal is for the program, and the group can be ended as a whole.
        start_new_session=True,
    )


async def _read(
    stdout: asyncio.StreamReader,
    lines: Lines,
    incoming: MemoryObjectSendStream[Items],
    on_garbage: Callable[[str], None],
) -> None:
    with incoming:
        while chunk := await stdout.read(_CHUNK):
            for line in lines.feed(chunk):
                item = parsed(line) if isinstance(line, bytes) else line
                if isinstance(item, Garbage):
                    on_garbage(item.problem)
                    item = None if item.answers is None else _refusal(item.answers, item.problem)
                if item is not None:
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await incoming.send(SessionMessage(item))


def _refusal(request: int, problem: str) -> JSONRPCError:
    """An answer in place of the one that cannot be read, so that nobody waits for it."""
    return JSONRPCError(
        jsonrpc="2.0", id=request, error=ErrorData(code=INTERNAL_ERROR, message=f"the server {problem}")
    )


async def _write(
    stdin: asyncio.StreamWriter,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    incoming: MemoryObjectSendStream[Items],
) -> None:
    with outgoing:
        try:
            async for message in outgoing:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(text.encode() + b"\n")
                await stdin.drain()
        except OSError:
            # The process no longer reads: whoever waits for an answer is told by the end of the stream.
            incoming.close()


async def _stop(process: asyncio.subprocess.Process, *, close_seconds: float) -> None:
    """First the end of its input, by which a server knows that it is over; then a request to end."""
    if process.stdin is not None:
        process.stdin.close()
    if not await _ended(process, within=close_seconds):
        _signal(process, signal.SIGTERM)
        await _ended(process, within=_TERMINATE_SECONDS)


async def _ended(process: asyncio.subprocess.Process, *, within: float) -> bool:
    """Not by `wait`, which also waits for the pipes: a grandchild may hold those open."""
    until = asyncio.get_running_loop().time() + within
    while process.returncode is None and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(_POLL)
    return process.returncode is not None


def _kill(process: asyncio.subprocess.Process) -> None:
    """Ends what is left of the group at once, without waiting: this is the last thing that can be interrupted."""
    if sys.platform == "win32":
        if process.returncode is None:
            process.kill()
    else:
        _signal(process, signal.SIGKILL)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.terminate()
        else:
            os.killpg(process.pid, number)


async def _settled(process: asyncio.subprocess.Process, tasks: list[asyncio.Task[None]]) -> None:
    # The readers go on until the pipes end: asyncio counts a process as over only then.
    await asyncio.wait([*tasks, asyncio.create_task(process.wait())], timeout=_TERMINATE_SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # A process that left the group may still hold the pipes; asyncio has no public way to let go of them.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
