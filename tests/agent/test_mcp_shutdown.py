"""However the `async with` block ends, no server process is left behind."""

import asyncio
import time
from collections.abc import Callable

import anyio
import pytest
from mcp_fixtures import FAST_MCP_LIMITS, ServerLog, assert_processes_exit, make_mcp_servers

from quire.model.agents import ToolServer


async def test_nothing_is_left_when_the_block_ends_in_an_exception(
    make_tool_server: Callable[..., ToolServer], server_log: ServerLog
):
    async def turn() -> None:
        async with make_mcp_servers(make_tool_server("sdk_server", "stdio")) as servers:
            await servers.list_tools()
            raise ZeroDivisionError

    with assert_processes_exit(server_log), pytest.raises(ZeroDivisionError):
        await turn()


@pytest.mark.parametrize("how", ["stubborn", "deaf"])
@pytest.mark.parametrize("cancels", [1, 2])
async def test_nothing_is_left_when_the_block_is_cancelled(
    how: str, cancels: int, make_tool_server: Callable[..., ToolServer], server_log: ServerLog
):
    limits = FAST_MCP_LIMITS.model_copy(update={"close_seconds": 0.1})

    async def turn() -> None:
        async with make_mcp_servers(make_tool_server("misbehaving_server", how), limits=limits) as servers:
            await servers.list_tools()
            await asyncio.sleep(600)

    with assert_processes_exit(server_log):
        task = asyncio.create_task(turn())
        await server_log.wait_for_starts(2 if how == "stubborn" else 1)
        await asyncio.sleep(0.3)
        started_at = time.monotonic()
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0.05)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started_at < 10


async def test_nothing_is_left_when_a_cancel_scope_of_anyio_ends_the_block(
    make_tool_server: Callable[..., ToolServer], server_log: ServerLog
):
    limits = FAST_MCP_LIMITS.model_copy(update={"close_seconds": 0.1})
    cpu_seconds = 0.0
    with assert_processes_exit(server_log), anyio.move_on_after(600) as scope:
        async with make_mcp_servers(make_tool_server("misbehaving_server", "stubborn"), limits=limits) as servers:
            await servers.list_tools()
            cpu_seconds = time.process_time()
            scope.cancel()
            await asyncio.sleep(600)
    assert scope.cancelled_caught
    assert time.process_time() - cpu_seconds < 0.5  # it waited without busy looping


def test_nothing_is_left_when_the_loop_is_torn_down(make_tool_server: Callable[..., ToolServer], server_log: ServerLog):
    async def abandoned() -> None:
        servers = await make_mcp_servers(make_tool_server("misbehaving_server", "plain")).__aenter__()
        await servers.list_tools()

    with assert_processes_exit(server_log):
        asyncio.run(abandoned())
