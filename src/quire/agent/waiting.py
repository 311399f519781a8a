"""How a turn waits: for what must be done whole, although it is cancelled meanwhile, and for what may never end."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Late(Exception):
    """The work was not done in time."""


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that must be done whole. A cancellation that comes meanwhile is put off: it is raised where
    the caller waits next."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    caller = asyncio.current_task()
    if cancelled and caller is not None:
        caller.cancel()
    return task.result()


async def within(seconds: float | None, work: Coroutine[Any, Any, T], *, grace: float) -> T:
    """The result of work, or `Late`. Work that is late or no longer wanted is cancelled; if that does not end it
    within `grace`, nobody waits for it any more."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise Late
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_unheard)
            await asyncio.wait([task], timeout=grace)


def _unheard(task: asyncio.Future[Any]) -> None:
    """Takes note of an error that nobody waits for, so that it is not reported as forgotten."""
    if not task.cancelled():
        task.exception()
