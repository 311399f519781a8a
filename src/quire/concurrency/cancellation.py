"""Cancellation helpers: work shielded from cancellation, and work with a timeout and a grace period."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ToolTimeout(Exception):
    """The work did not finish within its timeout."""


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Runs work to its end even if the caller is cancelled meanwhile. The cancellation is deferred: it is raised at
    the caller's next await."""
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


async def run_with_timeout(timeout_seconds: float | None, work: Coroutine[Any, Any, T], *, grace_seconds: float) -> T:
    """Returns the result of work, or raises `ToolTimeout`. On timeout or cancellation the work is cancelled; if it
    ignores that for `grace_seconds`, it is abandoned."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=timeout_seconds)
        if not task.done():
            raise ToolTimeout
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_retrieve_exception)
            await asyncio.wait([task], timeout=grace_seconds)


def _retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Retrieves the exception so that asyncio does not log "exception was never retrieved"."""
    if not task.cancelled():
        task.exception()
