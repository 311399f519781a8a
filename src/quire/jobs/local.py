"""Runs jobs in this process: for SQLite, and for servers without workers.

Of the same job at most one waits and one runs at a time, as in the queue. Jobs that wait when the process ends are
lost, and the next sweep finds them. Those that run have the rest of the grace period.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

from quire.engine.background_jobs import TaskQueue
from quire.jobs.base import Job, TenantJobs, log_event
from quire.jobs.runner import JobCounts, JobRunner, RetryingRunner
from quire.jobs.sweeper import Sweeper

MAX_CONCURRENT_JOBS = 2
"""Jobs that run at the same time."""
GRACE_SECONDS = 20.0
"""Grace period for running jobs, from the end of the block if `begin_stop` was not called."""
CANCEL_SECONDS = 5.0
"""Seconds that a cancelled job has to end."""


class LocalJobs:
    """Runs jobs as asyncio tasks. With a sweeper, also the jobs that a periodic sweep finds."""

    def __init__(
        self,
        runner: JobRunner,
        sweeper: Sweeper | None = None,
        *,
        max_concurrent: int = MAX_CONCURRENT_JOBS,
        sweep_seconds: float = 60.0,
    ) -> None:
        self._runner, self._sweeper, self._sweep_seconds = RetryingRunner(runner), sweeper, sweep_seconds
        self._tasks = TaskQueue(max_concurrent=max_concurrent)
        # Apart from the others: a message must be found soon, however long a summary takes.
        self._indexing_tasks = TaskQueue(max_concurrent=1)
        self._retry_timers: set[asyncio.TimerHandle] = set()
        self._sweep_task: asyncio.Task[None] | None = None
        self._stops_at: float | None = None
        """Time of the event loop at which running jobs are cancelled."""

    @property
    def counts(self) -> JobCounts:
        return self._runner.counts

    async def __aenter__(self) -> Self:
        if self._sweeper is not None:
            self._sweep_task = asyncio.create_task(self._sweep_periodically(self._sweeper))
        return self

    def begin_stop(self, *, grace_seconds: float) -> None:
        """Drops the jobs that wait, and takes no more. Those that run have until the end of the grace period."""
        if self._stops_at is None:
            self._stops_at = asyncio.get_running_loop().time() + grace_seconds
        for timer in self._retry_timers:
            timer.cancel()
        for queue in self._queues:
            queue.drop_waiting()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sweep_task is not None:
            self._sweep_task.cancel()
            await asyncio.wait([self._sweep_task])
        self.begin_stop(grace_seconds=GRACE_SECONDS)
        rest = (self._stops_at or 0.0) - asyncio.get_running_loop().time()
        await asyncio.gather(*(queue.wait_for_running(timeout_seconds=max(0.0, rest)) for queue in self._queues))
        for queue in self._queues:
            queue.cancel()
        await asyncio.gather(*(queue.wait_for_running(timeout_seconds=CANCEL_SECONDS) for queue in self._queues))

    async def defer(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._enqueue(job, 1)

    def for_tenant(self, tenant: str) -> TenantJobs:
        """The background jobs of this tenant's engine."""
        return TenantJobs(self.defer, tenant)

    async def wait_until_idle(self) -> None:
        """Waits until no job is queued or running. Scheduled retries are not awaited."""
        await self._indexing_tasks.wait()
        await self._tasks.wait()

    @property
    def _queues(self) -> tuple[TaskQueue, ...]:
        return self._tasks, self._indexing_tasks

    def _enqueue(self, job: Job, attempt: int) -> None:
        if self._stops_at is not None:
            return
        queue = self._indexing_tasks if job.kind == "index_messages" else self._tasks
        queue.submit(job, partial(self._run, job, attempt))

    async def _run(self, job: Job, attempt: int) -> None:
        result = await self._runner.attempt(job, attempt)
        if result.retry_after_seconds is not None and self._stops_at is None:

            def retry() -> None:
                self._retry_timers.discard(timer)
                self._enqueue(job, attempt + 1)

            timer = asyncio.get_running_loop().call_later(result.retry_after_seconds, retry)
            self._retry_timers.add(timer)
        await self.defer(result.follow_ups)

    async def _sweep_periodically(self, sweeper: Sweeper) -> None:
        while True:
            try:
                await sweeper.sweep(self.defer)
            except Exception as error:  # noqa: BLE001 (the next sweep covers what this one missed)
                log_event("sweep_failed", error=error)
            await asyncio.sleep(self._sweep_seconds)
