"""Calls of the application's functions: async ones on the event loop, blocking ones in a thread of their own."""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast


async def call_function(function: Callable[..., Any], *args: Any, **kwargs: Any) -> object:
    """Calls a function, async or blocking, and returns its result."""
    if _is_async(function):
        return await function(*args, **kwargs)
    result = await _run_in_thread(lambda: function(*args, **kwargs))
    return await cast("Awaitable[object]", result) if inspect.isawaitable(result) else result


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  the question is whether its `__call__` is async


async def _run_in_thread(run: Callable[[], object]) -> object:
    """Runs in a new thread, not in the pool: a function that hangs would occupy a pool thread and block shutdown."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def set_outcome(result: object, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((result, error))

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(run)
        except BaseException as exc:  # noqa: BLE001  raised again in the caller
            error = exc
        try:
            loop.call_soon_threadsafe(set_outcome, result, error)
        except RuntimeError:
            # The loop is closed, so no caller waits for the result.
            return

    threading.Thread(target=work, name="tool", daemon=True).start()
    result, error = await done
    if error is not None:
        raise error
    return result
