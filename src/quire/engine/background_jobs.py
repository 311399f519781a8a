"""Background jobs of an engine: compactions, indexes and counting that no request waits for.

`BackgroundJobs` is the interface, `InProcessJobs` the default. A server with workers passes an implementation that
enqueues the job's ids for them (`quire.jobs`). Any job may be lost or repeated: it checks what is missing first.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Protocol

from quire.errors import QuireError

MAX_CONCURRENT_JOBS = 8
"""Jobs of one engine that run in this process at the same time."""

EngineJobKind = Literal["compact", "index_messages", "index_topics", "count_usage"]
Work = Callable[[], Coroutine[Any, Any, object]]
"""Does the work of a job in this process."""


class BackgroundJobs(Protocol):
    """Accepts the jobs of one engine and its variants."""

    def enqueue(
        self, kind: EngineJobKind, conversation: str, branch: int, work: Work, *, delay_seconds: float = 0.0
    ) -> None:
        """Enqueues a job unless the same one waits already. It starts after the delay (debounce).

        An implementation with workers ignores `work`. `conversation` is empty for a job on the whole tenant.
        """
        ...

    async def wait(self) -> None:
        """Waits until every job is done or handed over, and raises the first unexpected error."""
        ...


class TaskQueue:
    """Runs work as asyncio tasks. Of the same key at most one waits and one runs at a time."""

    def __init__(self, *, max_concurrent: int) -> None:
        self._max_concurrent = max_concurrent
        self._waiting: dict[Hashable, Work] = {}
        self._running: dict[Hashable, asyncio.Task[object]] = {}
        self._failures: list[BaseException] = []
        self._no_delays = asyncio.Event()

    def submit(self, key: Hashable, work: Work, *, delay_seconds: float = 0.0) -> None:
        """Runs work after a delay; the same key in the meantime joins it."""
        self._waiting.setdefault(key, partial(self._run_later, delay_seconds, work) if delay_seconds else work)
        self._start_waiting()

    async def _run_later(self, seconds: float, work: Work) -> object:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._no_delays.wait(), seconds)
        return await work()

    async def wait(self) -> None:
        """Waits until nothing waits or runs, and raises the first unexpected error since the last call.

        Delays end at once. A `QuireError` is expected: the state of the log or of a model, which the next request meets
        itself.
        """
        self._no_delays.set()
        while self._running:
            await asyncio.wait(self._running.values())
        self._no_delays.clear()
        failures, self._failures = self._failures, []
        if failures:
            raise failures[0]

    async def wait_for_running(self, *, timeout_seconds: float) -> None:
        """Waits until nothing runs, at most this long."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=timeout_seconds)

    def drop_waiting(self) -> None:
        """Drops what waits. What runs continues."""
        self._waiting.clear()

    def cancel(self) -> None:
        """Drops what waits and cancels what runs; `wait` waits for its end."""
        self.drop_waiting()
        for task in self._running.values():
            task.cancel()

    def _start_waiting(self) -> None:
        ready = [key for key in self._waiting if key not in self._running]
        for key in ready[: max(0, self._max_concurrent - len(self._running))]:
            task = asyncio.get_running_loop().create_task(self._waiting.pop(key)())
            self._running[key] = task
            task.add_done_callback(partial(self._on_done, key))

    def _on_done(self, key: Hashable, task: asyncio.Task[object]) -> None:
        del self._running[key]
        if task.cancelled():
            # The event loop is closing: what waits would be destroyed before it runs.
            self._waiting.clear()
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, QuireError):
            self._failures.append(failure)
        self._start_waiting()


class InProcessJobs:
    """Runs jobs as asyncio tasks of this process."""

    def __init__(self) -> None:
        self._tasks = TaskQueue(max_concurrent=MAX_CONCURRENT_JOBS)

    def enqueue(
        self, kind: EngineJobKind, conversation: str, branch: int, work: Work, *, delay_seconds: float = 0.0
    ) -> None:
        self._tasks.submit((kind, conversation, branch), work, delay_seconds=delay_seconds)

    async def wait(self) -> None:
        await self._tasks.wait()
