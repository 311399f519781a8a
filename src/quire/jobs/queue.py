"""Job queue in PostgreSQL, by Procrastinate: servers enqueue jobs, workers run them.

The queue holds only open jobs: a finished job is deleted, and a failed one is enqueued again. Procrastinate's own retry
is not used, because it cannot requeue a job while another with the same lock waits.
"""

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from cachetools import TTLCache

from quire.db.database_url import build_conninfo, parse_database_url
from quire.errors import StoreUnavailable
from quire.jobs import queue_schema
from quire.jobs.base import Job, TenantJobs

if TYPE_CHECKING:
    from procrastinate import App, PsycopgConnector

QUEUE_NAME = "quire"
"""Procrastinate's queue name, so that other applications can share the database."""
DEDUPLICATION_SECONDS = 5.0
"""Seconds in which an engine's repeated requests for the same job are deduplicated: it defers after every reply."""
"""Lower than the priority of all other jobs, which conversations wait for."""
_MAX_RECENT_JOBS = 10_000
"""Jobs in the cache for deduplication."""


class JobQueue:
    """Enqueues jobs in the queue of one database. Create one with `open`."""

    def __init__(self, app: "App", connector: "PsycopgConnector") -> None:
        self.app, self._connector = app, connector
        self._recent_jobs: TTLCache[Job, None] = TTLCache(_MAX_RECENT_JOBS, ttl=DEDUPLICATION_SECONDS)

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, connections: int = 4) -> AsyncGenerator["JobQueue"]:
        queue_schema.require_procrastinate()
        from procrastinate import App, PsycopgConnector

        from quire.db.deadline_connection import DeadlineConnection, list_time_limits

        connector = PsycopgConnector(
            conninfo=build_conninfo(url),
            # A frozen database would otherwise block the queue for as long as it is frozen.
            connection_class=DeadlineConnection,
            # A connection pooler may run each transaction in another session, which lacks our prepared statements.
            kwargs={"prepare_threshold": None, **list_time_limits(parse_database_url(url))},
            min_size=1,
            max_size=connections,
            timeout=10.0,
        )
        app = App(connector=connector)
        with map_errors():
            await app.open_async()
        try:
            yield cls(app, connector)
        finally:
            await app.close_async()

    async def defer(self, jobs: Sequence[Job]) -> None:
        """Enqueues these jobs, except those that wait already."""
        for job in jobs:
            await self.enqueue(job)

    def for_tenant(self, tenant: str) -> TenantJobs:
        """The background jobs of this tenant's engine."""

        return TenantJobs(self.defer_deduplicated, tenant)

    async def defer_deduplicated(self, jobs: Sequence[Job]) -> None:
        """Enqueues jobs of an engine, except those that it requested a moment ago."""
        for job in jobs:
            # An engine delays its indexing jobs itself, and the last of them must not be dropped.
            if job.kind == "index_messages" or job not in self._recent_jobs:
                await self.enqueue(job)
                self._recent_jobs[job] = None

    async def is_pooled(self) -> bool:
        """Whether a connection pooler is in between. Then LISTEN/NOTIFY does not work, and the worker must poll.

        The query then runs in another backend than the one whose process id the connection got when it started.
        """
        with map_errors():
            async with self._connector.pool.connection() as connection:
                cursor = await connection.execute("SELECT pg_backend_pid()")
                return await cursor.fetchone() != (connection.info.backend_pid,)

    async def enqueue(self, job: Job, *, attempt: int = 1, delay_seconds: float | None = None) -> None:
        from procrastinate.exceptions import AlreadyEnqueued

        task = self.app.configure_task(
            task_name(job.kind),
            queue=QUEUE_NAME,
            lock=job.lock,
            queueing_lock=job.lock,
            schedule_in=None if delay_seconds is None else {"seconds": int(delay_seconds)},
        )
        with map_errors(), suppress(AlreadyEnqueued):
            await task.defer_async(**job.to_args(), attempt=attempt)


def task_name(kind: str) -> str:
    return f"quire.{kind}"


@contextmanager
def map_errors() -> Generator[None]:
    """Maps errors of Procrastinate and psycopg to `StoreUnavailable`."""
    from procrastinate.exceptions import ConnectorException
    from psycopg import Error

    try:
        yield
    except (ConnectorException, Error) as error:
        cause: Any = error.__cause__ or error
        raise StoreUnavailable(f"The job queue cannot be reached, or rejected a job: {cause}") from error
