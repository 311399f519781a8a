"""A worker process: fetches jobs from the queue and runs them until its graceful shutdown.

It reconnects when the database comes back, and requeues the jobs of workers that died without a heartbeat.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from quire.errors import StoreError
from quire.jobs.base import JOB_KINDS, Job, JobKind, log_event
from quire.jobs.queue import QUEUE_NAME, JobQueue, map_errors, task_name
from quire.jobs.runner import MAX_ATTEMPTS, JobCounts, JobRunner, RetryingRunner
from quire.jobs.sweeper import Sweeper

if TYPE_CHECKING:
    from procrastinate.jobs import Job as QueuedJob

SWEEP_TASK = "sweep"
MAX_RESTART_SECONDS = 30.0
"""Maximum wait before reconnecting. A worker that ran longer than this starts again at one second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of a worker."""

    concurrency: int = 4
    poll_seconds: float = 5.0
    """Polling interval. Without a connection pooler, LISTEN/NOTIFY also announces new jobs at once."""
    shutdown_seconds: float = 30.0
    """Grace period: jobs that still run this long after a stop are returned to the queue."""
    heartbeat_seconds: float = 10.0
    """Interval of the heartbeat."""
    stalled_seconds: float = 30.0
    """A worker without a heartbeat for this long is considered dead. Its jobs are requeued."""
    sweep_cron: str = "* * * * *"
    """When to sweep, in cron syntax. One of all workers does it."""


class Worker:
    """Runs jobs from one queue."""

    def __init__(
        self, queue: JobQueue, runner: JobRunner, sweeper: Sweeper, options: WorkerOptions | None = None
    ) -> None:
        self._queue, self._sweeper, self._options = queue, sweeper, options or WorkerOptions()
        self._runner = RetryingRunner(runner)
        self._stop = asyncio.Event()
        for kind in JOB_KINDS:
            self._register_task(task_name(kind), self._make_task(kind))

    @property
    def counts(self) -> JobCounts:
        return self._runner.counts

    def stop(self) -> None:
        """Starts the graceful shutdown: fetches no more jobs. Running ones finish, or are requeued after the grace
        period."""
        self._stop.set()

    async def run(self) -> None:
        """Runs jobs until `stop` is called, and reconnects after failures, with exponential backoff."""

        async def sweep(timestamp: int) -> None:
            try:
                log_event("sweep_done", found=await self._sweeper.sweep(self._queue.defer))
            except Exception as error:  # noqa: BLE001 (the next sweep covers what this one missed)
                log_event("sweep_failed", error=error)

        task = self._register_task(task_name(SWEEP_TASK), sweep, queueing_lock=SWEEP_TASK)
        self._queue.app.periodic(cron=self._options.sweep_cron)(task)
        log_event("worker_started", concurrency=self._options.concurrency)
        delay = 1.0
        while not self._stop.is_set():
            started = asyncio.get_running_loop().time()
            recovery = asyncio.create_task(self._recover_periodically())
            try:
                await self._run_until_stopped(self._run_worker(wait=True))
            except StoreError as error:
                log_event("worker_failed", error=error)
            finally:
                recovery.cancel()
                await asyncio.wait([recovery])
            if not self._stop.is_set():
                was_stable = asyncio.get_running_loop().time() - started > MAX_RESTART_SECONDS
                delay = 1.0 if was_stable else min(2 * delay, MAX_RESTART_SECONDS)
                log_event("worker_restarting", wait_seconds=delay)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), delay)
        log_event("worker_stopped", done=self.counts.done.total(), failed=self.counts.failed.total())

    async def run_once(self) -> JobCounts:
        """Sweeps, and runs jobs until none is ready."""
        await self._recover_stalled_jobs()
        await self._sweeper.sweep(self._queue.defer)
        before = -1
        while before != self.counts.total and not self._stop.is_set():
            before = self.counts.total
            await self._run_until_stopped(self._run_worker(wait=False))
        return self.counts

    async def _run_until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Cancels the work when `stop` is called: Procrastinate treats cancellation as the start of a graceful
        shutdown."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            working.cancel()
            await asyncio.wait([working])
        if not working.cancelled():
            working.result()

    async def _run_worker(self, *, wait: bool) -> None:
        options = self._options
        with map_errors():
            await self._queue.app.run_worker_async(
                queues=[QUEUE_NAME],
                wait=wait,
                concurrency=options.concurrency,
                fetch_job_polling_interval=options.poll_seconds,
                abort_job_polling_interval=60.0,
                shutdown_graceful_timeout=options.shutdown_seconds,
                listen_notify=wait and not await self._queue.is_pooled(),
                delete_jobs="always",
                install_signal_handlers=False,
                update_heartbeat_interval=options.heartbeat_seconds,
                stalled_worker_timeout=options.stalled_seconds,
            )

    async def _recover_periodically(self) -> None:
        while True:
            try:
                await self._recover_stalled_jobs()
            except StoreError as error:
                log_event("recovery_failed", error=error)
            await asyncio.sleep(self._options.stalled_seconds / 2)

    async def _recover_stalled_jobs(self) -> None:
        """Requeues the jobs of workers whose heartbeat stopped."""
        from procrastinate.exceptions import ConnectorException, UniqueViolation
        from procrastinate.jobs import Status

        manager = self._queue.app.job_manager
        with map_errors():
            stalled = await manager.get_stalled_jobs(
                queue=QUEUE_NAME, seconds_since_heartbeat=self._options.stalled_seconds
            )
        for job in stalled:
            is_dropped = job.attempts + 1 >= MAX_ATTEMPTS
            try:
                if not is_dropped:
                    await manager.retry_job(job)
            except UniqueViolation:
                # A job with the same lock waits already and replaces this one.
                is_dropped = True
            except ConnectorException:
                # Another worker requeued it first, or the database is gone, which the next query reports.
                continue
            if is_dropped:
                with map_errors():
                    await manager.finish_job(job, status=Status.FAILED, delete_job=True)
            log_event("job_recovered", name=job.task_name, abandoned=is_dropped)

    def _make_task(self, kind: JobKind) -> Callable[..., Coroutine[Any, Any, None]]:
        async def perform(tenant: str, conversation: str, branch: int, attempt: int = 1) -> None:
            job = Job(kind, tenant, conversation, branch)
            result = await self._runner.attempt(job, attempt)
            if result.retry_after_seconds is not None:
                await self._queue.enqueue(job, attempt=attempt + 1, delay_seconds=result.retry_after_seconds)
            await self._queue.defer(result.follow_ups)

        return perform

    def _register_task(self, name: str, function: Callable[..., Coroutine[Any, Any, None]], **options: Any) -> Any:
        from procrastinate.retry import BaseRetryStrategy, RetryDecision

        class RequeueOnCancel(BaseRetryStrategy):
            """Requeues a job that the worker's shutdown cancelled; `RetryingRunner` handles all other errors."""

            def get_retry_decision(self, *, exception: BaseException, job: "QueuedJob") -> RetryDecision | None:
                return RetryDecision() if isinstance(exception, asyncio.CancelledError) else None

        app = cast("Any", self._queue.app)
        return app.task(name=name, queue=QUEUE_NAME, retry=RequeueOnCancel(), **options)(function)
