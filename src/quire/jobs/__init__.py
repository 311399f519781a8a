"""Background jobs: compaction, message index, topics, usage roll-up, embeddings, vault index, document summaries,
retention.

One interface, `Jobs`, and two implementations: a queue in PostgreSQL with workers, and this process. A job does the
same in both. Any job may be lost: the sweep finds in the log what is missing and enqueues it again.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from quire.jobs.base import JOB_KINDS, EngineProvider, Job, JobKind, JobOutcome, Jobs
from quire.jobs.local import LocalJobs
from quire.jobs.queue import JobQueue
from quire.jobs.queue_schema import has_queue
from quire.jobs.runner import JobCounts, JobRunner
from quire.jobs.sweeper import Sweeper
from quire.jobs.worker import Worker, WorkerOptions
from quire.store import SqlStore

__all__ = [
    "JOB_KINDS",
    "EngineProvider",
    "Job",
    "JobCounts",
    "JobKind",
    "JobOutcome",
    "JobQueue",
    "JobRunner",
    "Jobs",
    "LocalJobs",
    "Sweeper",
    "Worker",
    "WorkerOptions",
    "open_jobs",
]


@asynccontextmanager
async def open_jobs(url: str, store: SqlStore, engines: EngineProvider) -> AsyncGenerator[Jobs]:
    """For a server: enqueues jobs for the workers if the database has a queue, else runs them in this process.

    In this process it also sweeps, and waits for running jobs on exit. An engine takes them as its background jobs:
    `EngineRuntime(jobs=jobs.for_tenant(tenant))`.
    """
    if await asyncio.to_thread(has_queue, url):
        async with JobQueue.open(url) as queue:
            yield queue
    else:
        async with LocalJobs(JobRunner(store, engines), Sweeper(store, engines)) as local_jobs:
            yield local_jobs
