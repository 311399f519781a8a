"""Worker threads for computation that grows with what a caller sends: parsing, hashing, counting, assembling, ranking.

On the event loop such work would delay every request. In a thread it delays only its own caller's: Python runs one
thread at a time, so there are few threads, and each owner of work (a tenant) has at most one job in them.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from quire.model import Message, ToolCallPart

MAX_EVENT_LOOP_BYTES = 32_000
"""Work on more bytes runs in a worker thread. Below this size, a thread costs more than it saves."""
MIN_PART_BYTES = 100
"""Bytes that a part of a message counts as at least: many tiny messages are work, too."""
WORKER_THREADS = 2
"""Threads for the work of all owners."""

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")

_work_owner: ContextVar[str] = ContextVar("work_owner", default="")
_executor = ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="quire-worker")
_locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()


def set_work_owner(owner: str) -> None:
    """Sets the owner of the work that the current task, and tasks that it starts, give to the worker threads."""
    _work_owner.set(owner)


async def run_sized(
    size: int, function: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
) -> _Result:
    """Calls a function whose work grows with `size` bytes: in a worker thread if they are many, else directly."""
    if size <= MAX_EVENT_LOOP_BYTES:
        return function(*args, **kwargs)
    return await run_in_worker(function, *args, **kwargs)


async def run_in_worker(function: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
    """Calls a function in a worker thread, after other work of the same owner.

    A thread cannot be interrupted, so a cancelled caller waits for its end: otherwise a client that disconnects again
    and again would occupy all threads.
    """
    loop = asyncio.get_running_loop()
    async with _get_lock((id(loop), _work_owner.get())):
        future = loop.run_in_executor(_executor, partial(function, *args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            raise


def measure_messages(messages: Iterable[Message]) -> int:
    """Size of messages for `run_sized`, in about the bytes of their texts."""
    return sum(
        MIN_PART_BYTES + len(part.arguments if isinstance(part, ToolCallPart) else getattr(part, "text", ""))
        for message in messages
        for part in message.parts
    )


def _get_lock(key: tuple[int, str]) -> asyncio.Lock:
    lock = _locks.get(key)
    if lock is None:
        lock = _locks[key] = asyncio.Lock()
    return lock
