"""Jobs in this process: what SQLite needs, and what a server without workers can do.

Of each job one waits and one is done at a time, as in the queue. What waits when the process ends is lost, and found
by the next sweep.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

from quire.engine.core import Deferrer
from quire.jobs.carrying import deferrer_for
from quire.jobs.job import Job
from quire.jobs.sweeping import Sweeper
from quire.jobs.telling import tell
from quire.jobs.trying import Attempts, Tally
from quire.jobs.workshop import Workshop

AT_ONCE = 2


class LocalJobs:
    """Does jobs in the background of this process; with a sweeper, also those that nobody asked for."""

    def __init__(
        self, workshop: Workshop, sweeper: Sweeper | None = None, *, at_once: int = AT_ONCE, every: float = 60.0
    ) -> None:
        self._attempts, self._sweeper = Attempts(workshop), sweeper
        self._at_once, self._every = at_once, every
        self._waiting: dict[Job, int] = {}
        self._doing: dict[Job, asyncio.Task[None]] = {}
        self._delayed: set[asyncio.TimerHandle] = set()
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def tally(self) -> Tally:
        return self._attempts.tally

    async def __aenter__(self) -> Self:
        if self._sweeper is not None:
            self._sweeping = asyncio.create_task(self._sweep_again_and_again(self._sweeper))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await self.settle()
        for timer in self._delayed:
            timer.cancel()

    async def defer(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._put(job, 1)

    def deferrer(self, tenant: str) -> Deferrer:
        """What an engine of this tenant hands its background work to."""
        return deferrer_for(self.defer, tenant)

    async def settle(self) -> None:
        """Waits until everything is done that is to be done now; what is to be tried again later is not."""
        while self._doing:
            await asyncio.wait(self._doing.values())

    def _put(self, job: Job, attempt: int) -> None:
        self._waiting.setdefault(job, attempt)
        self._begin()

    def _begin(self) -> None:
        free = [job for job in self._waiting if job not in self._doing]
        for job in free[: max(0, self._at_once - len(self._doing))]:
            task = asyncio.get_running_loop().create_task(self._do(job, self._waiting.pop(job)))
            self._doing[job] = task
            task.add_done_callback(partial(self._ended, job))

    def _ended(self, job: Job, _task: asyncio.Task[None]) -> None:
        del self._doing[job]
        self._begin()

    async def _do(self, job: Job, attempt: int) -> None:
        tried = await self._attempts.attempt(job, attempt)
        if tried.again_in is not None:
            self._put_later(job, attempt + 1, tried.again_in)
        await self.defer(tried.then)

    def _put_later(self, job: Job, attempt: int, seconds: float) -> None:
        def due() -> None:
            self._delayed.discard(timer)
            self._put(job, attempt)

        timer = asyncio.get_running_loop().call_later(seconds, due)
        self._delayed.add(timer)

    async def _sweep_again_and_again(self, sweeper: Sweeper) -> None:
        while True:
            try:
                await sweeper.sweep(self.defer)
            except Exception as error:  # noqa: BLE001 (the next sweep finds what this one did not)
                tell("sweep_failed", error=error)
            await asyncio.sleep(self._every)
