"""Which carrier a database has: its queue where there is one, else this process."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from quire.jobs import schema
from quire.jobs.carrying import Jobs
from quire.jobs.engines import Engines
from quire.jobs.local import LocalJobs
from quire.jobs.queue import Queue
from quire.jobs.sweeping import Sweeper
from quire.jobs.workshop import Workshop
from quire.log import SqlStore


@asynccontextmanager
async def open_jobs(url: str, store: SqlStore, engines: Engines) -> AsyncGenerator[Jobs]:
    """For a server: hands jobs to the workers of its database where that has a queue, else does them here.

    Here, it also sweeps, and on leaving it waits for what is under way. The engines get their `deferrer` from it:
    `engine.deferrer = jobs.deferrer(tenant)`.
    """
    if await asyncio.to_thread(schema.is_there, url):
        async with Queue.opened(url) as queue:
            yield queue
    else:
        async with LocalJobs(Workshop(store, engines), Sweeper(store, engines)) as here:
            yield here
