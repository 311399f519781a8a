"""The MCP server through pipes, for the user of this machine.

The engine is opened by the first request that needs it, so that the server answers `initialize` at once.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from quire.mcp_server.server import RequestContext, build_server

if TYPE_CHECKING:
    from quire.engine.context import EngineContext
    from quire.mcp_server.access import HistoryAccess

EngineOpener = Callable[[], AbstractAsyncContextManager["EngineContext"]]


async def serve_stdio(open_engine: EngineOpener, *, writes_memories: bool) -> None:
    """Serves until standard input ends."""
    server = build_local_server(open_engine, writes_memories=writes_memories)
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


def build_local_server(open_engine: EngineOpener, *, writes_memories: bool) -> Server[Any]:
    """A server for one user, who may read everything and pays for the summarizer."""
    local = _LocalAccess(open_engine, writes_memories=writes_memories)

    async def resolve_access(_: RequestContext) -> "HistoryAccess":
        return await local.load()

    return build_server(resolve_access, writes_memories=lambda _: writes_memories, lifespan=local.run)


class _LocalAccess:
    """Opens the engine once, and closes it with the server."""

    def __init__(self, open_engine: EngineOpener, *, writes_memories: bool) -> None:
        self._open_engine, self._writes_memories = open_engine, writes_memories
        self._stack, self._lock = AsyncExitStack(), asyncio.Lock()
        self._access: HistoryAccess | None = None

    @asynccontextmanager
    async def run(self, _: Server[Any]) -> AsyncGenerator[None]:
        async with self._stack:
            yield

    async def load(self) -> "HistoryAccess":
        from quire.mcp_server.access import HistoryAccess

        async with self._lock:
            if self._access is None:
                engine = await self._stack.enter_async_context(self._open_engine())
                self._access = HistoryAccess(
                    engine=engine,
                    writes_memories=self._writes_memories,
                    calls_model=True,
                    masks_secrets=engine.settings.mask_secrets,
                )
        return self._access
