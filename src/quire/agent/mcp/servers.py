"""The MCP servers of an agent: lists and calls their tools.

Servers start concurrently on first use; one that hangs or dies does not affect the others. A problem raises nothing: it
is recorded as a `ServerProblem` for people and returned as an error result to the model. Leaving the `async with` block
ends every process. The SDK (the `mcp` extra) is imported on entering it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pydantic_core import from_json

from quire.agent.limits import MCPLimits
from quire.agent.tool_results import ToolResult, make_tool_error
from quire.concurrency.cancellation import run_shielded
from quire.context.items import index_by_wire_name
from quire.errors import InvalidConfiguration, MissingExtra
from quire.model import ContextItem, Message, ToolCallPart
from quire.model.agents import AgentTool, ToolServer
from quire.model.base import FrozenModel
from quire.model.json_values import is_object

if TYPE_CHECKING:
    from quire.agent.mcp.connection import MCPConnection
    from quire.agent.mcp.payloads import PutBlob


class ServerProblem(FrozenModel):
    """A problem of a server, for people to read."""

    server: str
    message: str


class MCPServers:
    """Connections to MCP servers: `async with MCPServers(agent.servers, variables=os.environ) as servers`.

    `variables` fill the placeholders in the servers' configuration. A process inherits only the few of them that every
    process needs, plus those configured for it. `limits_by_server` overrides `limits` by server name. `put_blob` stores
    images and files, usually in the store; without it results contain them as data URLs.
    """

    def __init__(
        self,
        servers: Sequence[ToolServer],
        *,
        variables: Mapping[str, str],
        limits: MCPLimits | None = None,
        limits_by_server: Mapping[str, MCPLimits] | None = None,
        put_blob: "PutBlob | None" = None,
    ) -> None:
        self._servers = tuple(server for server in servers if server.enabled)
        self._variables, self._put_blob = variables, put_blob
        self._limits, self._limits_by_server = limits or MCPLimits(), limits_by_server or {}
        self._connections: dict[str, MCPConnection] | None = None

    async def __aenter__(self) -> Self:
        try:
            from quire.agent.mcp.connection import MCPConnection
        except ImportError as exc:
            raise MissingExtra(extra="mcp", feature="Using MCP servers") from exc
        self._connections = {
            server.name: MCPConnection(
                server,
                limits=self._limits_by_server.get(server.name, self._limits),
                variables=self._variables,
                put_blob=self._put_blob,
            )
            for server in self._servers
        }
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import anyio

        closing = [asyncio.create_task(connection.close()) for connection in self._open_connections.values()]
        if closing:
            # Waits for all even if cancelled meanwhile: a close that is interrupted would orphan a process.
            with anyio.CancelScope(shield=True):
                await run_shielded(asyncio.wait(closing))

    async def list_tools(self) -> tuple[AgentTool, ...]:
        """Lists the tools of all reachable servers, in the order of the servers.

        It waits for the slowest server, within its limits, and restarts failed servers until they are given up.
        """
        listings = await asyncio.gather(*(connection.list_tools() for connection in self._open_connections.values()))
        return tuple(tool for tools in listings for tool in tools)

    async def call_tool(self, item: ContextItem, arguments: str) -> ToolResult:
        """Calls a tool with JSON arguments as the model wrote them. Cancellation reaches the server."""
        connection = self._open_connections.get(item.server or "")
        if connection is None:
            return make_tool_error(f"{item.name} was not called: there is no server {item.server or 'for it'}.")
        try:
            # An empty text means no arguments: some models send that.
            parsed = from_json(arguments.strip() or "{}", allow_inf_nan=False)
            problem = f"it is a JSON {type(parsed).__name__}"
        except (ValueError, TypeError) as exc:
            parsed, problem = None, str(exc)
        if not is_object(parsed):
            return make_tool_error(
                f"{item.name} was not called: its arguments are not a JSON object ({problem}). Correct them and retry."
            )
        return await connection.call_tool(item.name, parsed)

    def reset_failures(self, server: str) -> None:
        """Lets a server that was given up start again at its next use."""
        if server in self._open_connections:
            self._open_connections[server].reset_failures()

    @property
    def problems(self) -> tuple[ServerProblem, ...]:
        return tuple(
            ServerProblem(server=name, message=problem)
            for name, connection in self._open_connections.items()
            for problem in connection.problems
        )

    @property
    def _open_connections(self) -> "dict[str, MCPConnection]":
        if self._connections is None:
            raise InvalidConfiguration("The MCP servers are not open; use them within `async with`.")
        return self._connections


class MCPToolRunner:
    """Runs tools of MCP servers, by the names that models call. `tools` are the tools that the servers listed.

    The effects of a server's tool are unknown here, so each call needs approval.
    """

    def __init__(self, servers: MCPServers, tools: Sequence[AgentTool]) -> None:
        self._servers = servers
        self._items = index_by_wire_name(tool.item for tool in tools if tool.server is not None)

    def handles(self, call: ToolCallPart) -> bool:
        return call.name in self._items

    def needs_approval(self, call: ToolCallPart) -> bool:
        return True

    async def run(self, call: ToolCallPart) -> Message:
        result = await self._servers.call_tool(self._items[call.name], call.arguments)
        return Message(role="tool", parts=(result.to_part(call.id),))
