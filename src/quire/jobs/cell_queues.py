"""Job queues of several cells: a server enqueues a job in the cell of its tenant.

A queue is opened when a job needs it, so that a server starts while a cell is lost. The jobs of that time are lost too,
and the sweep of the cell finds them when it is back.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from quire.errors import StoreUnavailable
from quire.jobs import queue_schema
from quire.jobs.base import Job, TenantJobs
from quire.jobs.queue import JobQueue
from quire.store import SqlStore

_RETRY_SECONDS = 5.0
"""Time after a failure to open a queue in which its jobs are refused without another attempt."""


class CellQueues:
    """Enqueues jobs for the workers of each cell."""

    def __init__(self, store: SqlStore, urls: Mapping[str, str]) -> None:
        self._store, self._urls = store, urls
        self._queues: dict[str, JobQueue] = {}
        self._failed_at: dict[str, float] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def defer(self, jobs: Sequence[Job]) -> None:
        """Enqueues these jobs, except those that wait already."""
        for job in jobs:
            await (await self._find_queue(job.tenant)).enqueue(job)

    def for_tenant(self, tenant: str) -> TenantJobs:
        """The background jobs of this tenant's engine."""

        async def defer_in_cell(jobs: Sequence[Job]) -> None:
            await (await self._find_queue(tenant)).defer_deduplicated(jobs)

        return TenantJobs(defer_in_cell, tenant)

    async def _find_queue(self, tenant: str) -> JobQueue:
        cell, loop = await self._store.find_cell(tenant) or "", asyncio.get_running_loop()
        async with self._locks[cell]:
            if cell not in self._queues:
                if loop.time() - self._failed_at.get(cell, -_RETRY_SECONDS) < _RETRY_SECONDS:
                    raise StoreUnavailable(f"The job queue of the cell {cell!r} cannot be reached.")
                self._failed_at[cell] = loop.time()
                await asyncio.to_thread(queue_schema.check_queue, self._urls[cell])
                self._queues[cell] = await self._stack.enter_async_context(JobQueue.open(self._urls[cell]))
            return self._queues[cell]
