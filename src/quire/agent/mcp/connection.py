"""Connection to one MCP server: starts it on first use, lists and calls its tools, and restarts it after a failure.

After too many failures in a row the server is given up. Problems are described in one line for people and models,
without tracebacks and without URLs, which may contain API keys.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.types import METHOD_NOT_FOUND, Implementation, Tool, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from quire.agent.limits import MCPLimits
from quire.agent.mcp.results import PutBlob, convert_mcp_result
from quire.agent.mcp.stdio import build_environment
from quire.agent.mcp.tool_list import build_tool_listing
from quire.agent.mcp.transports import TransportMonitor, open_transport
from quire.agent.tool_results import ToolResult, make_tool_error
from quire.context.mcp_config import expand_variables
from quire.llm.transport_errors import map_transport_error
from quire.model.agents import AgentTool, ToolServer

try:
    # Not from `quire`, which imports the engine above this layer.
    from quire._version import __version__
except ModuleNotFoundError:  # A source tree that was never installed.
    __version__ = "0.0.0"

_MAX_ERROR_CHARS = 500
"""Maximum characters of an error's description."""
_MAX_TOOL_PAGES = 500
"""Maximum pages read of a server's tool list."""
_MAX_REMEMBERED_PROBLEMS = 20
"""Maximum problems remembered for a server; the oldest are dropped."""
_MAX_LISTED_SKIPPED_TOOLS = 50
"""Maximum skipped tools reported by name."""
_MAX_REPORTED_INVALID_LINES = 3
"""Maximum invalid output lines reported."""
_EXIT_MARGIN_SECONDS = 4.0
"""Seconds added to the close timeout, for terminating and killing the process."""
_CONNECTION_CLOSED_MESSAGE = "Connection closed"
"""The SDK's error message after the connection has ended."""
_SESSION_TERMINATED_MESSAGE = "Session terminated"
"""The SDK's error message after an HTTP server has dropped the session."""


@dataclass(frozen=True, slots=True)
class ConnectionFailure:
    """Why there is no connection."""

    message: str


class MCPConnection:
    def __init__(
        self, server: ToolServer, *, limits: MCPLimits, variables: Mapping[str, str], put_blob: PutBlob | None
    ) -> None:
        self.server, self._limits, self._variables, self._put_blob = server, limits, variables, put_blob
        self._tools: tuple[AgentTool, ...] = ()
        self._tools_stale = False
        self._consecutive_failures = 0
        self._problems: deque[str] = deque(maxlen=_MAX_REMEMBERED_PROBLEMS)
        self._skipped_tools: list[str] = []
        self._invalid_line_count = 0
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._client_future: asyncio.Future[Client | ConnectionFailure] | None = None
        self._monitor = TransportMonitor(self._skipped_tools.append, self._add_invalid_line)
        self._is_closing = False

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems, oldest first, and then the tools skipped in the latest list."""
        unlisted_count = len(self._skipped_tools) - _MAX_LISTED_SKIPPED_TOOLS
        unlisted = (f"{unlisted_count} more tools are skipped",) if unlisted_count > 0 else ()
        return (*self._problems, *self._skipped_tools[:_MAX_LISTED_SKIPPED_TOOLS], *unlisted)

    @property
    def is_given_up(self) -> bool:
        return self._consecutive_failures > self._limits.max_restarts

    async def list_tools(self) -> tuple[AgentTool, ...]:
        """Lists the server's tools. While the server restarts, these are the tools it listed last."""
        client = await self._get_client()
        if isinstance(client, Client) and self._tools_stale:
            await self._refresh_tools(client)
        return () if self.is_given_up else self._tools

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        client = await self._get_client()
        if isinstance(client, ConnectionFailure):
            return make_tool_error(f"{name} was not called: {client.message}")
        timeout = asyncio.timeout(self._limits.call_seconds)
        try:
            async with timeout:
                result = await client.call_tool(name, arguments)
        except Exception as exc:  # noqa: BLE001  a server or the SDK may raise anything; the turn continues
            return make_tool_error(
                self._describe_slow_call(name) if timeout.expired() else self._describe_failed_call(name, exc)
            )
        self._consecutive_failures = 0
        return await convert_mcp_result(result, max_chars=self._limits.max_result_chars, put_blob=self._put_blob)

    def reset_failures(self) -> None:
        """Lets a server that was given up be started again."""
        self._consecutive_failures = 0

    async def close(self) -> None:
        self._is_closing = True
        if self._task is None:
            return
        self._monitor.closed.set()
        if self._client_future is not None and not self._client_future.done():
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _get_client(self) -> Client | ConnectionFailure:
        async with self._lock:
            if self._task is not None and self._monitor.closed.is_set():
                await asyncio.wait([self._task])
                self._task = None
            if self._task is None:
                if self._is_closing:
                    return ConnectionFailure(f"the server {self.server.name} is closed.")
                if self.is_given_up:
                    return ConnectionFailure(self._describe_given_up())
                self._start()
            assert self._client_future is not None
            client_future = self._client_future
        # Shielded, so that cancelling one caller does not cancel the start that other callers wait for.
        return await asyncio.shield(client_future)

    def _start(self) -> None:
        self._client_future = asyncio.get_running_loop().create_future()
        self._monitor = TransportMonitor(self._skipped_tools.append, self._add_invalid_line)
        self._task = asyncio.create_task(
            self._run(self._client_future, self._monitor), name=f"MCP server {self.server.name}"
        )

    async def _run(
        self, client_future: "asyncio.Future[Client | ConnectionFailure]", monitor: TransportMonitor
    ) -> None:
        """Runs the whole lifecycle of one connection in one task."""
        problem = "it exited by itself"
        try:
            problem = await self._run_client(client_future, monitor) or problem
        finally:
            monitor.closed.set()
            if not self._is_closing:
                self._consecutive_failures += 1
                stderr = monitor.stderr_tail.text
                self._add_problem(f"{problem}{f'; its stderr ends with: {stderr}' if stderr else ''}")
            if not client_future.done():
                client_future.set_result(
                    ConnectionFailure(
                        self._describe_given_up() if self.is_given_up else self._describe_unavailable(problem)
                    )
                )

    async def _run_client(
        self, client_future: "asyncio.Future[Client | ConnectionFailure]", monitor: TransportMonitor
    ) -> str | None:
        """Opens the connection, loads the tools and waits for the end. Returns a description of the problem, if any."""
        phase, loop = "start", asyncio.get_running_loop()
        limits = self._limits
        timeout = asyncio.timeout(limits.start_seconds)
        try:
            async with timeout, self._build_client(monitor) as client:
                phase = "list its tools"
                timeout.reschedule(loop.time() + limits.list_seconds)
                subscription = asyncio.create_task(self._subscribe_to_tool_changes(client))
                try:
                    await self._load_tools(client)
                    timeout.reschedule(None)
                    client_future.set_result(client)
                    phase = "exit"
                    await monitor.closed.wait()
                finally:
                    monitor.closed.set()
                    subscription.cancel()
                    timeout.reschedule(loop.time() + limits.close_seconds + _EXIT_MARGIN_SECONDS)
        except Exception as exc:  # noqa: BLE001  processes and networks fail in many ways; the user reads which
            return self._describe_timeout(phase) if timeout.expired() else describe_mcp_error(exc)
        return None

    def _describe_timeout(self, phase: str) -> str:
        """Names the setting that gives a server more time, for the phases that have one."""
        seconds = {"start": self._limits.start_seconds, "list its tools": self._limits.list_seconds}.get(phase)
        return f"it took too long to {phase}" + (f": more than {seconds:g} s (`mcp_server_timeout`)" if seconds else "")

    def _build_client(self, monitor: TransportMonitor) -> Client:
        server = expand_variables(self.server, self._variables)
        env = build_environment(server.env, self._variables)
        return Client(
            open_transport(server, env=env, limits=self._limits, monitor=monitor),
            message_handler=self._handle_message,
            client_info=Implementation(name="quire", version=__version__),
            cache=None,
        )

    async def _handle_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._tools_stale = True
        await anyio.lowlevel.checkpoint()

    async def _subscribe_to_tool_changes(self, client: Client) -> None:
        """Subscribes to tool list changes. Newer protocol versions require it; older servers notify without it."""
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        with suppress(MCPError, RuntimeError, TimeoutError):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._tools_stale = True

    async def _refresh_tools(self, client: Client) -> None:
        async with self._lock:
            if not self._tools_stale:
                return
            try:
                async with asyncio.timeout(self._limits.list_seconds):
                    await self._load_tools(client)
            except Exception as exc:  # noqa: BLE001  as in `call_tool`; the previous list stays
                self._add_problem(f"its tools changed, but listing them failed: {describe_mcp_error(exc)}")

    async def _load_tools(self, client: Client) -> None:
        # Reset before the request: a change during it must mark the new list as stale.
        self._tools_stale = False
        self._skipped_tools.clear()
        tools = await _fetch_all_tools(client)
        listing = await asyncio.to_thread(build_tool_listing, self.server, tools)
        self._skipped_tools.extend(listing.problems)
        self._tools = listing.tools

    def _add_invalid_line(self, problem: str) -> None:
        """Reports only the first few: a server that logs to standard output must not displace other problems."""
        self._invalid_line_count += 1
        if self._invalid_line_count <= _MAX_REPORTED_INVALID_LINES:
            self._add_problem(problem)

    def _add_problem(self, problem: str) -> None:
        if problem not in self._problems:
            self._problems.append(problem)

    def _describe_slow_call(self, name: str) -> str:
        seconds = f"{self._limits.call_seconds:g} s"
        return f"{name} gave no result within {seconds} and was cancelled; try a smaller call, or continue without it."

    def _describe_failed_call(self, name: str, exc: Exception) -> str:
        message = exc.error.message if isinstance(exc, MCPError) else ""
        if message == _SESSION_TERMINATED_MESSAGE:
            self._monitor.closed.set()
        if self._monitor.closed.is_set() or message == _CONNECTION_CLOSED_MESSAGE:
            return f"{name} failed: its server {self.server.name} exited during the call and restarts at its next use."
        return f"{name} failed: {describe_mcp_error(exc)}"

    def _describe_unavailable(self, problem: str) -> str:
        return f"the server {self.server.name} is unavailable: {problem}."

    def _describe_given_up(self) -> str:
        last = self._problems[-1].partition(";")[0] if self._problems else "unknown"
        return (
            f"the server {self.server.name} is given up: it failed {self._consecutive_failures} times in a row; "
            f"last problem: {last}. Continue without its tools."
        )


async def _fetch_all_tools(client: Client) -> list[Tool]:
    """Fetches all pages of the tool list by cursor pagination. A server without tools may not know the method."""
    tools: list[Tool] = []
    cursor: str | None = None
    seen_cursors: set[str] = set()
    for _ in range(_MAX_TOOL_PAGES):
        try:
            page = await client.list_tools(cursor=cursor)
        except MCPError as exc:
            if exc.error.code == METHOD_NOT_FOUND:
                return tools
            raise
        tools += page.tools
        cursor = page.next_cursor
        if not cursor or cursor in seen_cursors:
            break
        seen_cursors.add(cursor)
    return tools


def describe_mcp_error(error: BaseException) -> str:
    """Describes the first cause in one line; the SDK's task groups wrap errors in exception groups."""
    return _describe_cause(next(_flatten_group(error)))[:_MAX_ERROR_CHARS]


def _flatten_group(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            yield from _flatten_group(inner)  # pyright: ignore[reportUnknownArgumentType]
    else:
        yield error


def _describe_cause(error: BaseException) -> str:
    match error:
        case MCPError():
            return error.error.message or "it returned an error without a message"
        case FileNotFoundError() | PermissionError() | NotADirectoryError():
            return f"it cannot be started: {error.strerror}: {error.filename}"
        case ValidationError():
            first = error.errors(include_input=False, include_url=False)[0]
            field = ".".join(str(step) for step in first["loc"])
            return f"it violates the protocol: `{field}`: {first['msg']}"
        case httpx2.HTTPStatusError():
            return f"it answered with HTTP status {error.response.status_code}"
        case TimeoutError():
            return "it took too long"
        case httpx2.HTTPError() | httpx2.InvalidURL():
            text = str(map_transport_error(error, url_name="its URL"))
            return f"{text[0].lower()}{text[1:].removesuffix('.')}"
        case _:
            return " ".join(str(error).split()) or type(error).__name__
