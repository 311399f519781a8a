"""Opens the `Jobs` of a database: its queue if it has one, else jobs in this process."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from quire.jobs import queue_schema
from quire.jobs.base import EngineProvider, Jobs
from quire.jobs.local import LocalJobs
from quire.jobs.queue import JobQueue
from quire.jobs.runner import JobRunner
from quire.jobs.sweeper import Sweeper
from quire.log import SqlStore


@asynccontextmanager
async def open_jobs(url: str, store: SqlStore, engines: EngineProvider) -> AsyncGenerator[Jobs]:
    """For a server: enqueues jobs for the workers if the database has a queue, else runs them in this process.

    In this process it also sweeps, and waits for running jobs on exit. An engine takes them as its background jobs:
    `EngineRuntime(jobs=jobs.for_tenant(tenant))`.
    """
    if await asyncio.to_thread(queue_schema.has_queue, url):
        async with JobQueue.open(url) as queue:
            yield queue
    else:
        async with LocalJobs(JobRunner(store, engines), Sweeper(store, engines)) as local_jobs:
            yield local_jobs
