"""Worker threads for computation that grows with what a caller sends: parsing, hashing, counting, assembling, ranking.

On the event loop such work would delay every request. In a thread it delays only its own caller's: Python runs one
thread at a time, so there are few threads, and each owner of work (a tenant) has at most one job in them. Long jobs of
all owners together have one thread, in the order of their arrival, so that a short one never waits for them. A long job
ends at a deadline. In a server, long jobs that can be pickled run in a process instead (`use_worker_process`). Imports
have threads of their own, because the author of a file decides how long reading it takes.
"""

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from math import ceil
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from cachetools import LRUCache

from quire.concurrency.worker_process import IDLE_SECONDS, Outcome, WorkerProcess
from quire.errors import WorkTimeout
from quire.model import Entry, Message, ToolCallPart

MAX_EVENT_LOOP_BYTES = 32_000
"""Work on more bytes runs in a worker thread. Below this size, a thread costs more than it saves."""
MIN_PART_BYTES = 100
"""Bytes that a part of a message counts as at least: many tiny messages are work, too."""
LONG_WORK_BYTES = 1_000_000
"""Work on more bytes is long."""
MAX_WORK_SECONDS = 60.0
"""Seconds after which a long job is stopped. Work on the longest body takes a few."""
MAX_METERED_OWNERS = 10_000
"""Maximum owners whose use is measured, evicted least recently used first."""
WORKER_THREADS = 2
"""Threads for the work of all owners. Long jobs use at most one of them."""
IMPORT_THREADS = 4
"""Threads that read files, one for each import that runs."""
_STOP_SECONDS = 0.1
"""Seconds between two attempts to stop a job."""

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")

_work_owner: ContextVar[str] = ContextVar("work_owner", default="")
_executor = ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="quire-worker")
_import_executor = ThreadPoolExecutor(IMPORT_THREADS, thread_name_prefix="quire-import")
_locks: WeakValueDictionary[tuple[int, str | None], asyncio.Lock] = WeakValueDictionary()
"""Locks of each event loop by owner, and by None the one of long jobs."""


class _ProcessJobs:
    """The worker process of a server, which ends after a while without work."""

    def __init__(self) -> None:
        self.process = WorkerProcess()
        self._idle_timer: asyncio.TimerHandle | None = None

    async def run(self, function: Callable[[], Any]) -> Any:
        """Called by one task at a time."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        loop = asyncio.get_running_loop()
        try:
            outcome: Outcome = await _run_in_thread(
                partial(self.process.call, function, timeout_seconds=MAX_WORK_SECONDS)
            )
        finally:
            self._idle_timer = loop.call_later(IDLE_SECONDS, self.process.stop)
        work_meter.add(_work_owner.get(), outcome.seconds)
        return outcome.get()


_process_jobs: _ProcessJobs | None = None


@contextmanager
def use_worker_process() -> Generator[None]:
    """Has `run_portable` use a process within the block.

    A server enters it. A program that embeds the engine has threads only: a new process would import its main module.
    """
    global _process_jobs
    _process_jobs = jobs = _ProcessJobs()
    try:
        yield
    finally:
        _process_jobs = None
        jobs.process.kill()


def set_work_owner(owner: str) -> None:
    """Sets the owner of the work that the current task, and tasks that it starts, give to the worker threads."""
    _work_owner.set(owner)


class WorkMeter:
    """CPU seconds that owners used of the worker threads of this process.

    A leaky bucket for each owner whose use is read: it drains its quota in a minute, and work waits while it holds
    more. Other owners are not measured.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._used: LRUCache[str, tuple[float, float]] = LRUCache(MAX_METERED_OWNERS)

    def add(self, owner: str, seconds: float) -> None:
        """Called by the worker threads."""
        with self._lock:
            if (measured := self._used.get(owner)) is not None:
                self._used[owner] = measured[0] + seconds, measured[1]

    def measure_wait(self, owner: str, per_minute: float) -> int:
        """Seconds until the owner may begin more work, or 0 if it may now."""
        current = self._clock()
        with self._lock:
            used, measured_at = self._used.get(owner, (0.0, current))
            used = max(0.0, used - (current - measured_at) * per_minute / 60)
            self._used[owner] = used, current
        return ceil((used - per_minute) * 60 / per_minute) if used > per_minute else 0


work_meter = WorkMeter()


async def run_sized(
    size: int, function: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
) -> _Result:
    """Calls a function whose work grows with `size` bytes: in a worker thread if they are many, else directly.

    Raises `WorkTimeout` if long work does not end in time.
    """
    if size <= MAX_EVENT_LOOP_BYTES:
        return function(*args, **kwargs)
    if size <= LONG_WORK_BYTES:
        return await run_in_worker(function, *args, **kwargs)
    loop, job = asyncio.get_running_loop(), _LongJob(partial(function, *args, **kwargs))
    async with _get_lock((id(loop), _work_owner.get())), _get_lock((id(loop), None)):
        timer = loop.call_later(MAX_WORK_SECONDS, job.stop)
        try:
            return await _run_in_thread(job.run)
        finally:
            timer.cancel()


async def run_portable(
    size: int, function: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
) -> _Result:
    """Like `run_sized`, for a function of a module whose arguments and result can be pickled: long work of a server
    runs in its worker process."""
    if size <= LONG_WORK_BYTES or _process_jobs is None:
        return await run_sized(size, function, *args, **kwargs)
    loop = asyncio.get_running_loop()
    async with _get_lock((id(loop), _work_owner.get())), _get_lock((id(loop), None)):
        return await _process_jobs.run(partial(function, *args, **kwargs))


def pause_long_work() -> asyncio.Lock:
    """A context in which no long work of the event loop runs elsewhere. Entered when the current one ends."""
    return _get_lock((id(asyncio.get_running_loop()), None))


async def run_in_worker(function: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
    """Calls a function in a worker thread, after other work of the same owner."""
    async with _get_lock((id(asyncio.get_running_loop()), _work_owner.get())):
        return await _run_in_thread(partial(function, *args, **kwargs))


async def run_import(function: Callable[[], _Result], *, timeout_seconds: float | None) -> _Result:
    """Calls a function that reads files, in a thread apart from all other work.

    Raises `WorkTimeout` if it takes longer. A cancelled caller stops it.
    """
    loop, job = asyncio.get_running_loop(), _LongJob(function)
    timer = loop.call_later(timeout_seconds, job.stop) if timeout_seconds is not None else None
    future = loop.run_in_executor(_import_executor, _measure_work(job.run))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            # Again and again: a reader may take the error for one of its file, and go on with the next.
            job.stop()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future], timeout=_STOP_SECONDS)
        raise
    finally:
        if timer is not None:
            timer.cancel()


def _measure_work(function: Callable[[], _Result]) -> Callable[[], _Result]:
    """The function, whose CPU time counts as the current owner's."""
    owner = _work_owner.get()

    def run() -> _Result:
        started = time.thread_time()
        try:
            return function()
        finally:
            work_meter.add(owner, time.thread_time() - started)

    return run


async def _run_in_thread(function: Callable[[], _Result]) -> _Result:
    """A cancelled caller waits for the end of its thread: otherwise a client that disconnects again and again would
    occupy all threads."""
    future = asyncio.get_running_loop().run_in_executor(_executor, _measure_work(function))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise


class _LongJob(Generic[_Result]):
    """Work that another thread can stop, by an exception that Python raises between two of its steps."""

    def __init__(self, function: Callable[[], _Result]) -> None:
        self._function, self._lock = function, threading.Lock()
        self._thread: int | None = None
        self._is_stopped = False

    def run(self) -> _Result:
        self._thread = threading.get_ident()
        try:
            return self._function()
        finally:
            with self._lock:
                self._thread = None
            if self._is_stopped:
                _receive_late_timeout()

    def stop(self) -> None:
        with self._lock:
            if self._thread is not None:
                self._is_stopped = True
                _raise_in_thread(self._thread, WorkTimeout)


def _raise_in_thread(thread: int, error: type[BaseException]) -> None:
    """Raises an error in a thread before its next step."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _receive_late_timeout() -> None:
    """Takes an error that was not raised yet, and would end the thread after its job.

    It is raised at one of these jumps. Withdrawing it would leave the interpreter looking for it at every jump, of all
    threads.
    """
    with suppress(WorkTimeout):
        for _ in range(100):
            pass


def measure_entries(entries: Iterable[Entry]) -> int:
    """Size of stored entries for `run_sized`."""
    return sum([len(entry.raw) for entry in entries])


def measure_messages(messages: Iterable[Message]) -> int:
    """Size of messages for `run_sized`, in about the bytes of their texts."""
    return sum(
        MIN_PART_BYTES + len(part.arguments if isinstance(part, ToolCallPart) else getattr(part, "text", ""))
        for message in messages
        for part in message.parts
    )


def _get_lock(key: tuple[int, str | None]) -> asyncio.Lock:
    lock = _locks.get(key)
    if lock is None:
        lock = _locks[key] = asyncio.Lock()
    return lock
