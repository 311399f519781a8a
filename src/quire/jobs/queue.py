"""Jobs in PostgreSQL, by Procrastinate: put there by servers, done by workers.

The queue holds what is to be done, and nothing else: a job that is done is deleted, and one that failed is put there
anew. Procrastinate's own retry is not used: it cannot put a job back while another one of the same waits.
"""

import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import make_url

from quire.engine.core import Deferrer
from quire.errors import StoreUnavailable
from quire.jobs import schema
from quire.jobs.carrying import deferrer_for
from quire.jobs.job import Job

if TYPE_CHECKING:
    from procrastinate import App, PsycopgConnector

QUEUE = "quire"
"""So that a database can have other applications' jobs beside ours."""
LATELY = 5.0
"""Seconds in which an engine's requests for the same job are one: it asks after every reply."""
_REMEMBERED = 10_000


class Queue:
    """Puts jobs into the queue of one database. Make one with `opened`."""

    def __init__(self, app: "App", connector: "PsycopgConnector") -> None:
        self.app, self._connector = app, connector
        self._lately: dict[Job, float] = {}

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, *, connections: int = 4) -> AsyncGenerator["Queue"]:
        schema.require()
        from procrastinate import App, PsycopgConnector

        connector = PsycopgConnector(
            conninfo=make_url(url).set(drivername="postgresql").render_as_string(hide_password=False),
            # A pooler may give each transaction another session, which knows none of our prepared statements.
            kwargs={"prepare_threshold": None, "connect_timeout": 10},
            min_size=1,
            max_size=connections,
            timeout=10.0,
        )
        app = App(connector=connector)
        with mapped_errors():
            await app.open_async()
        try:
            yield cls(app, connector)
        finally:
            await app.close_async()

    async def defer(self, jobs: Sequence[Job]) -> None:
        """Puts these jobs into the queue, but for those that wait there already."""
        for job in jobs:
            await self.put(job)

    def deferrer(self, tenant: str) -> Deferrer:
        """What an engine of this tenant hands its background work to."""
        return deferrer_for(self._defer_once, tenant)

    async def is_pooled(self) -> bool:
        """Whether a pooler stands between: then PostgreSQL cannot tell us of jobs, and we must look for them.

        It shows by the process that it greets with, which is not the one that serves us.
        """
        with mapped_errors():
            async with self._connector.pool.connection() as connection:
                found = await connection.execute("SELECT pg_backend_pid()")
                return await found.fetchone() != (connection.info.backend_pid,)

    async def put(self, job: Job, *, attempt: int = 1, after: float | None = None) -> None:
        from procrastinate.exceptions import AlreadyEnqueued

        deferred = self.app.configure_task(
            task_name(job.kind),
            queue=QUEUE,
            lock=job.lock,
            queueing_lock=job.lock,
            schedule_in=None if after is None else {"seconds": int(after)},
        )
        with mapped_errors(), suppress(AlreadyEnqueued):
            await deferred.defer_async(**job.ids(), attempt=attempt)

    async def _defer_once(self, jobs: Sequence[Job]) -> None:
        at = time.monotonic()
        for job in jobs:
            if at - self._lately.get(job, -LATELY) >= LATELY:
                await self.put(job)
                if len(self._lately) >= _REMEMBERED:
                    self._lately.clear()
                self._lately[job] = at


def task_name(kind: str) -> str:
    return f"quire.{kind}"


@contextmanager
def mapped_errors() -> Generator[None]:
    """The queue's errors as Quire's; what a job is already waiting for is none."""
    from procrastinate.exceptions import ConnectorException
    from psycopg import Error

    try:
        yield
    except (ConnectorException, Error) as error:
        cause: Any = error.__cause__ or error
        raise StoreUnavailable(f"The queue of jobs cannot be reached, or refused a job: {cause}") from error
