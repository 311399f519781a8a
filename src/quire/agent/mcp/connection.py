"""Connection to one MCP server: starts it on first use, lists and calls its tools, and restarts it after a failure.

After too many failures in a row the server is given up. Problems are described in one line for people and models,
without tracebacks and without URLs, which may contain API keys.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import httpx2
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.types import METHOD_NOT_FOUND, Implementation, Tool, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from quire.agent.limits import MCPLimits
from quire.agent.mcp.payloads import PutBlob, build_agent_tools, convert_mcp_result
from quire.agent.mcp.transports import TransportMonitor, open_transport
from quire.agent.tool_results import ToolResult, make_tool_error
from quire.context.mcp_config import expand_variables
from quire.llm.error_mapping import map_transport_error
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
        self._client_future: asyncio.Future[Client | str] | None = None
        """The client once it is connected, or a description of why there is none."""
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
            async with self._lock:
                try:
                    async with asyncio.timeout(self._limits.list_seconds):
                        # Another caller may have loaded them while this one waited for the lock.
                        if self._tools_stale:
                            await self._load_tools(client)
                except Exception as exc:  # noqa: BLE001  as in `call_tool`; the previous list stays
                    self._add_problem(f"its tools changed, but listing them failed: {describe_mcp_error(exc)}")
        return () if self.is_given_up else self._tools

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        client = await self._get_client()
        if isinstance(client, str):
            return make_tool_error(f"{name} was not called: {client}")
        timeout = asyncio.timeout(self._limits.call_seconds)
        try:
            async with timeout:
                result = await client.call_tool(name, arguments)
        except Exception as exc:  # noqa: BLE001  a server or the SDK may raise anything; the turn continues
            if timeout.expired():
                return make_tool_error(
                    f"{name} gave no result within {self._limits.call_seconds:g} s and was cancelled; "
                    "try a smaller call, or continue without it."
                )
            message = exc.error.message if isinstance(exc, MCPError) else ""
            if message == _SESSION_TERMINATED_MESSAGE:
                self._monitor.closed.set()
            if self._monitor.closed.is_set() or message == _CONNECTION_CLOSED_MESSAGE:
                problem = f"its server {self.server.name} exited during the call and restarts at its next use."
            else:
                problem = describe_mcp_error(exc)
            return make_tool_error(f"{name} failed: {problem}")
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

    async def _get_client(self) -> Client | str:
        """Starts the server if it is not running. Returns its client, or a description of why there is none."""
        async with self._lock:
            if self._task is not None and self._monitor.closed.is_set():
                await asyncio.wait([self._task])
                self._task = None
            if self._task is None:
                if self._is_closing:
                    return f"the server {self.server.name} is closed."
                if self.is_given_up:
                    return self._describe_given_up()
                self._client_future = asyncio.get_running_loop().create_future()
                self._monitor = TransportMonitor(self._skipped_tools.append, self._add_invalid_line)
                self._task = asyncio.create_task(
                    self._run(self._client_future, self._monitor), name=f"MCP server {self.server.name}"
                )
            assert self._client_future is not None
            client_future = self._client_future
        # Shielded, so that cancelling one caller does not cancel the start that other callers wait for.
        return await asyncio.shield(client_future)

    async def _run(self, client_future: "asyncio.Future[Client | str]", monitor: TransportMonitor) -> None:
        """Runs the whole lifecycle of one connection in one task: connects, loads the tools, waits for the end."""
        loop, limits = asyncio.get_running_loop(), self._limits
        problem = "it exited by itself"
        # The phase, and its time limit where a setting (`mcp_server_timeout`) can raise it.
        phase, phase_seconds = "start", limits.start_seconds
        timeout = asyncio.timeout(limits.start_seconds)
        try:
            server = expand_variables(self.server, self._variables)
            client_context = Client(
                open_transport(server, variables=self._variables, limits=limits, monitor=monitor),
                message_handler=self._handle_message,
                client_info=Implementation(name="quire", version=__version__),
                cache=None,
            )
            async with timeout, client_context as client:
                phase, phase_seconds = "list its tools", limits.list_seconds
                timeout.reschedule(loop.time() + limits.list_seconds)
                subscription = asyncio.create_task(self._subscribe_to_tool_changes(client))
                try:
                    await self._load_tools(client)
                    timeout.reschedule(None)
                    client_future.set_result(client)
                    phase, phase_seconds = "exit", None
                    await monitor.closed.wait()
                finally:
                    monitor.closed.set()
                    subscription.cancel()
                    timeout.reschedule(loop.time() + limits.close_seconds + _EXIT_MARGIN_SECONDS)
        except Exception as exc:  # noqa: BLE001  processes and networks fail in many ways; the user reads which
            if not timeout.expired():
                problem = describe_mcp_error(exc)
            else:
                limit = f": more than {phase_seconds:g} s (`mcp_server_timeout`)" if phase_seconds is not None else ""
                problem = f"it took too long to {phase}{limit}"
        finally:
            monitor.closed.set()
            if not self._is_closing:
                self._consecutive_failures += 1
                stderr = monitor.stderr_tail
                self._add_problem(f"{problem}{f'; its stderr ends with: {stderr}' if stderr else ''}")
            if not client_future.done():
                unavailable = f"the server {self.server.name} is unavailable: {problem}."
                client_future.set_result(self._describe_given_up() if self.is_given_up else unavailable)

    async def _handle_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._tools_stale = True

    async def _subscribe_to_tool_changes(self, client: Client) -> None:
        """Subscribes to tool list changes. Newer protocol versions require it; older servers notify without it."""
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        with suppress(MCPError, RuntimeError, TimeoutError):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._tools_stale = True

    async def _load_tools(self, client: Client) -> None:
        """Fetches all pages of the tool list. A server without tools may not know the method."""
        # Reset before the request: a change during it must mark the new list as stale.
        self._tools_stale = False
        self._skipped_tools.clear()
        tools: list[Tool] = []
        cursor: str | None = None
        seen_cursors: set[str] = set()
        for _ in range(_MAX_TOOL_PAGES):
            try:
                page = await client.list_tools(cursor=cursor)
            except MCPError as exc:
                if exc.error.code == METHOD_NOT_FOUND:
                    break
                raise
            tools += page.tools
            cursor = page.next_cursor
            if not cursor or cursor in seen_cursors:
                break
            seen_cursors.add(cursor)
        self._tools, problems = await asyncio.to_thread(build_agent_tools, self.server, tools)
        self._skipped_tools.extend(problems)

    def _add_invalid_line(self, problem: str) -> None:
        """Reports only the first few: a server that logs to standard output must not displace other problems."""
        self._invalid_line_count += 1
        if self._invalid_line_count <= _MAX_REPORTED_INVALID_LINES:
            self._add_problem(problem)

    def _add_problem(self, problem: str) -> None:
        if problem not in self._problems:
            self._problems.append(problem)

    def _describe_given_up(self) -> str:
        last = self._problems[-1].partition(";")[0] if self._problems else "unknown"
        return (
            f"the server {self.server.name} is given up: it failed {self._consecutive_failures} times in a row; "
            f"last problem: {last}. Continue without its tools."
        )


def describe_mcp_error(error: BaseException) -> str:
    """Describes the first cause in one line; the SDK's task groups wrap errors in exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    match error:
        case MCPError():
            text = error.error.message or "it returned an error without a message"
        case FileNotFoundError() | PermissionError() | NotADirectoryError():
            text = f"it cannot be started: {error.strerror}: {error.filename}"
        case ValidationError():
            first = error.errors(include_input=False, include_url=False)[0]
            field = ".".join(str(step) for step in first["loc"])
            text = f"it violates the protocol: `{field}`: {first['msg']}"
        case httpx2.HTTPStatusError():
            text = f"it answered with HTTP status {error.response.status_code}"
        case TimeoutError():
            text = "it took too long"
        case httpx2.HTTPError() | httpx2.InvalidURL():
            text = str(map_transport_error(error, url_name="its URL"))
            text = f"{text[0].lower()}{text[1:].removesuffix('.')}"
        case _:
            text = " ".join(str(error).split()) or type(error).__name__
    return text[:_MAX_ERROR_CHARS]
