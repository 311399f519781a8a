"""One MCP server: started when it is first needed, kept, started again when it has ended, given up after a few times.

A task of its own opens the connection, waits and closes it, because the SDK's contexts must be left by the task that
entered them; calls run in the task of whoever makes them, so cancelling that one cancels the call. Nothing here raises
for what a server does: there is a client or a `Fault`, an `Outcome` with the result or with an error.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import anyio
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.types import METHOD_NOT_FOUND, Implementation, Tool, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from quire.agent.faults import described
from quire.agent.limits import ServerLimits
from quire.agent.offers import offers
from quire.agent.outcomes import Outcome, failure
from quire.agent.results import Keep, outcome_of
from quire.agent.stdio import environment
from quire.agent.transports import Watch, watched
from quire.context.servers import expanded
from quire.model.agents import OfferedTool, ToolServer

_MOST_PAGES = 500
_REMEMBERED = 20
_LISTED = 50
_RUBBISH = 3
_LEAVING_SECONDS = 4.0
_CONNECTION_GONE = "Connection closed"
_SESSION_GONE = "Session terminated"
"""How the SDK says that the connection is over, and that an HTTP server no longer knows the session."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why there is no connection."""

    problem: str


class Connection:
    def __init__(
        self, server: ToolServer, *, limits: ServerLimits, variables: Mapping[str, str], keep: Keep | None
    ) -> None:
        self.server, self._limits, self._variables, self._keep = server, limits, variables, keep
        self._tools: tuple[OfferedTool, ...] = ()
        self._stale = False
        self._failures = 0
        self._faults: deque[str] = deque(maxlen=_REMEMBERED)
        self._left_out: list[str] = []
        self._rubbish = 0
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._opening: asyncio.Future[Client | Fault] | None = None
        self._watch = Watch(self._left_out.append, self._note_rubbish)
        self._closing = False

    @property
    def problems(self) -> tuple[str, ...]:
        """What went wrong, oldest first, and what was left out of the latest list of tools."""
        more = len(self._left_out) - _LISTED
        rest = (f"{more} more tools are left out",) if more > 0 else ()
        return (*self._faults, *self._left_out[:_LISTED], *rest)

    @property
    def gone(self) -> bool:
        return self._failures > self._limits.restarts

    async def tools(self) -> tuple[OfferedTool, ...]:
        """The tools that it offers now; those that it last offered, while it is being started again."""
        opened = await self._opened()
        if isinstance(opened, Client) and self._stale:
            await self._list_again(opened)
        return () if self.gone else self._tools

    async def call(self, name: str, arguments: dict[str, Any]) -> Outcome:
        opened = await self._opened()
        if isinstance(opened, Fault):
            return failure(f"{name} was not called: {opened.problem}")
        clock = asyncio.timeout(self._limits.call_seconds)
        try:
            async with clock:
                result = await opened.call_tool(name, arguments)
        except Exception as exc:  # noqa: BLE001  whatever a server answers and however the SDK takes it, the turn goes on
            return failure(self._slow(name) if clock.expired() else self._failed(name, exc))
        self._failures = 0
        return await outcome_of(result, largest=self._limits.largest_result, keep=self._keep)

    def forgive(self) -> None:
        """Lets a server that was given up be started again."""
        self._failures = 0

    async def close(self) -> None:
        self._closing = True
        if self._task is None:
            return
        self._watch.over.set()
        if self._opening is not None and not self._opening.done():
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _opened(self) -> Client | Fault:
        async with self._lock:
            if self._task is not None and self._watch.over.is_set():
                await asyncio.wait([self._task])
                self._task = None
            if self._task is None:
                if self._closing:
                    return Fault(f"the server {self.server.name} is closed.")
                if self.gone:
                    return Fault(self._gone())
                self._open()
            assert self._opening is not None
            opening = self._opening
        return await asyncio.shield(opening)

    def _open(self) -> None:
        self._opening = asyncio.get_running_loop().create_future()
        self._watch = Watch(self._left_out.append, self._note_rubbish)
        self._task = asyncio.create_task(
            self._keep_open(self._opening, self._watch), name=f"MCP server {self.server.name}"
        )

    async def _keep_open(self, opening: "asyncio.Future[Client | Fault]", watch: Watch) -> None:
        """The whole life of one connection, in one task."""
        problem = "it ended by itself"
        try:
            problem = await self._connected(opening, watch) or problem
        finally:
            watch.over.set()
            if not self._closing:
                self._failures += 1
                words = watch.last_words.text
                self._note(f"{problem}{f'; its last words: {words}' if words else ''}")
            if not opening.done():
                opening.set_result(Fault(self._gone() if self.gone else self._not_there(problem)))

    async def _connected(self, opening: "asyncio.Future[Client | Fault]", watch: Watch) -> str | None:
        """Opens the connection, lists the tools, waits until it is over; says what went wrong, where something did."""
        doing, loop = "start", asyncio.get_running_loop()
        limits = self._limits
        clock = asyncio.timeout(limits.start_seconds)
        try:
            async with clock, self._client(watch) as client:
                doing = "list its tools"
                clock.reschedule(loop.time() + limits.list_seconds)
                following = asyncio.create_task(self._follow(client))
                try:
                    await self._list(client)
                    clock.reschedule(None)
                    opening.set_result(client)
                    doing = "end"
                    await watch.over.wait()
                finally:
                    watch.over.set()
                    following.cancel()
                    clock.reschedule(loop.time() + limits.close_seconds + _LEAVING_SECONDS)
        except Exception as exc:  # noqa: BLE001  a process and a network fail in every way, which is for the user to read
            return self._overdue(doing) if clock.expired() else described(exc)
        return None

    def _overdue(self, doing: str) -> str:
        """With the setting that gives a server more time, where it is short of that."""
        seconds = {"start": self._limits.start_seconds, "list its tools": self._limits.list_seconds}.get(doing)
        return f"it took too long to {doing}" + (f": more than {seconds:g} s (`server_timeout`)" if seconds else "")

    def _client(self, watch: Watch) -> Client:
        server = expanded(self.server, self._variables)
        env = environment(server.env, self._variables)
        return Client(
            watched(server, env=env, limits=self._limits, watch=watch),
            message_handler=self._heard,
            client_info=Implementation(name="quire", version=version("quire")),
            cache=None,
        )

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._stale = True
        await anyio.lowlevel.checkpoint()

    async def _follow(self, client: Client) -> None:
        """Asks to be told of changes, as servers of the newer protocol want to be asked; older ones tell unasked."""
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        with suppress(MCPError, RuntimeError, TimeoutError):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._stale = True

    async def _list_again(self, client: Client) -> None:
        async with self._lock:
            if not self._stale:
                return
            try:
                async with asyncio.timeout(self._limits.list_seconds):
                    await self._list(client)
            except Exception as exc:  # noqa: BLE001  as in `call`; the list that there was stays
                self._note(f"its tools changed and could not be listed again: {described(exc)}")

    async def _list(self, client: Client) -> None:
        # What changes from here on is in a later list.
        self._stale = False
        self._left_out.clear()
        listed = await _all_tools(client)
        found = await asyncio.to_thread(offers, self.server, listed)
        self._left_out.extend(found.problems)
        self._tools = found.tools

    def _note_rubbish(self, problem: str) -> None:
        """The first few lines of it: a server that logs to its output must not push out what else is known."""
        self._rubbish += 1
        if self._rubbish <= _RUBBISH:
            self._note(problem)

    def _note(self, problem: str) -> None:
        if problem not in self._faults:
            self._faults.append(problem)

    def _slow(self, name: str) -> str:
        seconds = f"{self._limits.call_seconds:g} s"
        return f"{name} gave no result within {seconds} and was cancelled; try something smaller, or do without it."

    def _failed(self, name: str, exc: Exception) -> str:
        message = exc.error.message if isinstance(exc, MCPError) else ""
        if message == _SESSION_GONE:
            self._watch.over.set()
        if self._watch.over.is_set() or message == _CONNECTION_GONE:
            return (
                f"{name} failed: its server {self.server.name} ended during the call. It is started again when needed."
            )
        return f"{name} failed: {described(exc)}"

    def _not_there(self, problem: str) -> str:
        return f"the server {self.server.name} cannot be used now: {problem}."

    def _gone(self) -> str:
        last = self._faults[-1].partition(";")[0] if self._faults else "no reason is known"
        return (
            f"the server {self.server.name} is gone: it failed {self._failures} times in a row, lastly: {last}. "
            "Do without its tools."
        )


async def _all_tools(client: Client) -> list[Tool]:
    """Page by page; a server that has no tools may not know what is asked."""
    tools: list[Tool] = []
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(_MOST_PAGES):
        try:
            page = await client.list_tools(cursor=cursor)
        except MCPError as exc:
            if exc.error.code == METHOD_NOT_FOUND:
                return tools
            raise
        tools += page.tools
        cursor = page.next_cursor
        if not cursor or cursor in seen:
            break
        seen.add(cursor)
    return tools
