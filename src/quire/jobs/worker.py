"""A worker: takes jobs out of the queue and does them, until it is told to stop.

It goes on by itself when the database comes back, and takes over what a worker left that ended without a word.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from quire.errors import StoreError
from quire.jobs.job import KINDS, Job, Kind
from quire.jobs.queue import QUEUE, Queue, mapped_errors, task_name
from quire.jobs.sweeping import Sweeper
from quire.jobs.telling import tell
from quire.jobs.trying import ATTEMPTS, Attempts, Tally
from quire.jobs.workshop import Workshop

if TYPE_CHECKING:
    from procrastinate.jobs import Job as QueuedJob

SWEEP = "sweep"
LONGEST_WAIT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a worker goes about it. Times are in seconds."""

    concurrency: int = 4
    poll: float = 5.0
    """How often it looks for jobs; where PostgreSQL can tell it of them, it also does so at once."""
    grace: float = 30.0
    """How long a job may go on when the worker is to stop; then it is given back."""
    heartbeat: float = 10.0
    stalled: float = 30.0
    """Who has not been heard of for so long is dead, and its jobs are another's."""
    sweeps: str = "* * * * *"
    """When to sweep, as cron writes it; of all workers one does."""


class Worker:
    def __init__(self, queue: Queue, workshop: Workshop, sweeper: Sweeper, habits: Habits | None = None) -> None:
        self._queue, self._sweeper, self._habits = queue, sweeper, habits or Habits()
        self._attempts = Attempts(workshop)
        self._stop = asyncio.Event()
        for kind in KINDS:
            self._add(task_name(kind), self._performing(kind))

    @property
    def tally(self) -> Tally:
        return self._attempts.tally

    def stop(self) -> None:
        """Takes no more jobs; those under way are finished, or given back when they take too long."""
        self._stop.set()

    async def run(self) -> None:
        """Works until it is stopped."""
        self._sweep_regularly()
        tell("worker_started", concurrency=self._habits.concurrency)
        wait = 1.0
        while not self._stop.is_set():
            began = asyncio.get_running_loop().time()
            await self._work_while_it_goes_well()
            if not self._stop.is_set():
                wait = 1.0 if asyncio.get_running_loop().time() - began > LONGEST_WAIT else min(2 * wait, LONGEST_WAIT)
                tell("worker_restarts", wait=wait)
                await _unless(self._stop, wait)
        tell("worker_stopped", done=self.tally.done.total(), failed=self.tally.failed.total())

    async def once(self) -> Tally:
        """Sweeps, and works until the queue has nothing that could be done now."""
        await self._take_over()
        await self._sweeper.sweep(self._queue.defer)
        before = -1
        while before != self.tally.total and not self._stop.is_set():
            before = self.tally.total
            await self._until_stopped(self._working(wait=False))
        return self.tally

    async def _work_while_it_goes_well(self) -> None:
        """Ends when it is stopped or something fails: the connection to the database, as a rule."""
        looking = asyncio.create_task(self._look_after_others())
        try:
            await self._until_stopped(self._working(wait=True))
        except StoreError as error:
            tell("worker_failed", error=error)
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Cancelling a worker of Procrastinate's is how it is asked to come to an end in its own time."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            working.cancel()
            await asyncio.wait([working])
        if not working.cancelled():
            working.result()

    async def _working(self, *, wait: bool) -> None:
        habits = self._habits
        with mapped_errors():
            await self._queue.app.run_worker_async(
                queues=[QUEUE],
                wait=wait,
                concurrency=habits.concurrency,
                fetch_job_polling_interval=habits.poll,
                abort_job_polling_interval=60.0,
                shutdown_graceful_timeout=habits.grace,
                listen_notify=wait and not await self._queue.is_pooled(),
                delete_jobs="always",
                install_signal_handlers=False,
                update_heartbeat_interval=habits.heartbeat,
                stalled_worker_timeout=habits.stalled,
            )

    async def _look_after_others(self) -> None:
        while True:
            try:
                await self._take_over()
            except StoreError as error:
                tell("take_over_failed", error=error)
            await asyncio.sleep(self._habits.stalled / 2)

    async def _take_over(self) -> None:
        """Puts back what dead workers had begun."""
        manager = self._queue.app.job_manager
        with mapped_errors():
            stalled = await manager.get_stalled_jobs(queue=QUEUE, seconds_since_heartbeat=self._habits.stalled)
        for job in stalled:
            await self._put_back(job)

    async def _put_back(self, job: "QueuedJob") -> None:
        from procrastinate.exceptions import ConnectorException, UniqueViolation
        from procrastinate.jobs import Status

        manager = self._queue.app.job_manager
        given_up = job.attempts + 1 >= ATTEMPTS
        try:
            if not given_up:
                await manager.retry_job(job)
        except UniqueViolation:
            # The same job waits already: it does for both.
            given_up = True
        except ConnectorException:
            # Another worker was quicker, or the database is gone, which the next step will notice.
            return
        if given_up:
            with mapped_errors():
                await manager.finish_job(job, status=Status.FAILED, delete_job=True)
        tell("job_taken_over", name=job.task_name, given_up=given_up)

    def _performing(self, kind: Kind) -> Callable[..., Coroutine[Any, Any, None]]:
        async def perform(tenant: str, conversation: str, branch: int, attempt: int = 1) -> None:
            job = Job(kind, tenant, conversation, branch)
            tried = await self._attempts.attempt(job, attempt)
            if tried.again_in is not None:
                await self._queue.put(job, attempt=attempt + 1, after=tried.again_in)
            await self._queue.defer(tried.then)

        return perform

    def _sweep_regularly(self) -> None:
        async def sweep(timestamp: int) -> None:
            try:
                tell("sweep_done", found=await self._sweeper.sweep(self._queue.defer))
            except Exception as error:  # noqa: BLE001 (the next sweep finds what this one did not)
                tell("sweep_failed", error=error)

        task = self._add(task_name(SWEEP), sweep, queueing_lock=SWEEP)
        self._queue.app.periodic(cron=self._habits.sweeps)(task)

    def _add(self, name: str, perform: Callable[..., Coroutine[Any, Any, None]], **options: Any) -> Any:
        from procrastinate.retry import BaseRetryStrategy, RetryDecision

        class GiveBack(BaseRetryStrategy):
            """A job that is broken off because the worker stops is another worker's, at once."""

            def get_retry_decision(self, *, exception: BaseException, job: "QueuedJob") -> RetryDecision | None:
                return RetryDecision() if isinstance(exception, asyncio.CancelledError) else None

        app = cast("Any", self._queue.app)
        return app.task(name=name, queue=QUEUE, retry=GiveBack(), **options)(perform)


async def _unless(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
