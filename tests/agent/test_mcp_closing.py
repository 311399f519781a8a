"""However the block is left, no process of a server stays behind."""

import asyncio
import time
from collections.abc import Callable

import anyio
import pytest
from support_mcp import QUICK, Notes, all_gone, opened

from quire.model.agents import ToolServer


async def test_nothing_is_left_when_the_block_ends_in_an_exception(program: Callable[..., ToolServer], notes: Notes):
    async def turn() -> None:
        async with opened(program("workshop", "stdio")) as servers:
            await servers.tools()
            raise ZeroDivisionError

    with all_gone(notes), pytest.raises(ZeroDivisionError):
        await turn()


@pytest.mark.parametrize("how", ["stubborn", "deaf"])
@pytest.mark.parametrize("cancels", [1, 2])
async def test_nothing_is_left_when_the_block_is_cancelled(
    how: str, cancels: int, program: Callable[..., ToolServer], notes: Notes
):
    limits = QUICK.model_copy(update={"close_seconds": 0.1})

    async def turn() -> None:
        async with opened(program("hostile", how), limits=limits) as servers:
            await servers.tools()
            await asyncio.sleep(600)

    with all_gone(notes):
        task = asyncio.create_task(turn())
        await notes.started(2 if how == "stubborn" else 1)
        await asyncio.sleep(0.3)
        began = time.monotonic()
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0.05)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - began < 10


async def test_nothing_is_left_when_a_cancel_scope_of_anyio_ends_the_block(
    program: Callable[..., ToolServer], notes: Notes
):
    limits = QUICK.model_copy(update={"close_seconds": 0.1})
    spent = 0.0
    with all_gone(notes), anyio.move_on_after(600) as scope:
        async with opened(program("hostile", "stubborn"), limits=limits) as servers:
            await servers.tools()
            spent = time.process_time()
            scope.cancel()
            await asyncio.sleep(600)
    assert scope.cancelled_caught
    assert time.process_time() - spent < 0.5  # it waited, and did not turn in circles


def test_nothing_is_left_when_the_loop_is_torn_down(program: Callable[..., ToolServer], notes: Notes):
    async def abandoned() -> None:
        servers = await opened(program("hostile", "plain")).__aenter__()
        await servers.tools()

    with all_gone(notes):
        asyncio.run(abandoned())
