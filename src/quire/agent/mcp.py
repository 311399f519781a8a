"""The MCP servers of an agent: their tools, and calls of them.

Servers start when they are first asked for something, all at once; one that hangs or dies leaves the others alone. What
a server does wrong is kept as `Trouble` for a person to read, and as an error in the result for the model; it raises
nothing. On leaving, no process stays. The SDK (the `mcp` extra) is imported on entering.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydantic_core import from_json

from quire.agent.limits import ServerLimits
from quire.agent.outcomes import Outcome, failure
from quire.errors import InvalidConfiguration, MissingExtra
from quire.model import ContextItem
from quire.model.agents import OfferedTool, ToolServer
from quire.model.value import Value
from quire.view.shapes.fields import is_object

if TYPE_CHECKING:
    from quire.agent.connection import Connection
    from quire.agent.results import Keep


class Trouble(Value):
    """Something that a person should know of a server."""

    server: str
    problem: str


class Servers:
    """`async with Servers(agent.servers, variables=os.environ) as servers`.

    `variables` fill the placeholders in the servers' configuration; of them a process gets only the few that every
    process needs, besides what is configured for it. `own_limits` are for single servers, by name. `keep` is
    the store's `put_blob`, for pictures and files; without it they stand in the result as data URLs.
    """

    def __init__(
        self,
        servers: Sequence[ToolServer],
        *,
        variables: Mapping[str, str],
        limits: ServerLimits | None = None,
        own_limits: Mapping[str, ServerLimits] | None = None,
        keep: "Keep | None" = None,
    ) -> None:
        self._servers = tuple(server for server in servers if server.enabled)
        self._variables, self._keep = variables, keep
        self._limits, self._own_limits = limits or ServerLimits(), own_limits or {}
        self._connections: dict[str, Connection] | None = None

    async def __aenter__(self) -> Self:
        try:
            from quire.agent.connection import Connection
        except ImportError as exc:
            raise MissingExtra(extra="mcp", needed_for="Using MCP servers") from exc
        self._connections = {
            server.name: Connection(
                server,
                limits=self._own_limits.get(server.name, self._limits),
                variables=self._variables,
                keep=self._keep,
            )
            for server in self._servers
        }
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closing = [asyncio.create_task(connection.close()) for connection in self._open.values()]
        await _finished(closing)

    async def tools(self) -> tuple[OfferedTool, ...]:
        """All tools of all servers that can be reached, in the order of the servers.

        It waits for the slowest server, for as long as that one may take; a server that failed is tried again here,
        until it is given up.
        """
        lists = await asyncio.gather(*(connection.tools() for connection in self._open.values()))
        return tuple(tool for tools in lists for tool in tools)

    async def call(self, item: ContextItem, arguments: str) -> Outcome:
        """Calls a tool with the arguments as the model wrote them. Cancelling this tells the server to stop."""
        connection = self._open.get(item.server or "")
        if connection is None:
            return failure(f"{item.name} was not called: there is no server {item.server or 'for it'}.")
        given = _object_in(arguments)
        if isinstance(given, str):
            return failure(f"{item.name} was not called: its arguments are no JSON object ({given}). Write them again.")
        return await connection.call(item.name, given)

    def forgive(self, server: str) -> None:
        """Lets a server that was given up be started again, at its next use."""
        if server in self._open:
            self._open[server].forgive()

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        return tuple(
            Trouble(server=name, problem=problem)
            for name, connection in self._open.items()
            for problem in connection.problems
        )

    @property
    def _open(self) -> "dict[str, Connection]":
        if self._connections is None:
            raise InvalidConfiguration("The servers are not open; use them within `async with`.")
        return self._connections


async def _finished(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Waits for all, also when told to stop meanwhile: what is left undone here would be a process left behind."""
    import anyio

    stopped: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while any(not task.done() for task in tasks):
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError as exc:
                stopped = exc
    if stopped is not None:
        raise stopped


def _object_in(arguments: str) -> dict[str, Any] | str:
    """The arguments, or what is wrong with them. Nothing at all stands for no arguments, as some models write it."""
    try:
        given = from_json(arguments.strip() or "{}", allow_inf_nan=False)
    except (ValueError, TypeError) as exc:
        return str(exc)
    return given if is_object(given) else f"it is a JSON {type(given).__name__}"
