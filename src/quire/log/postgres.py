"""PostgreSQL: a connection pool of asynchronous psycopg; every transaction sets its tenant for row-level security.

No session state survives a transaction, so a pooler such as PgBouncer may assign another session to each of them.
"""

import asyncio
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any, cast

from sqlalchemy import URL, Connection, Engine, event

from quire.errors import MissingExtra, StoreUnavailable
from quire.log import migrate
from quire.log.database import PoolStats, T, Work
from quire.log.error_mapping import map_database_errors
from quire.log.raw_sql import execute_text

_POOL_SIZE = 32
"""Maximum connections per process."""
_CLOSE_SECONDS = 10.0
"""Time that running transactions have to end when the database is closed."""


class PostgresDatabase:
    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._is_closed = False
        self._transactions = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @classmethod
    async def open(cls, url: URL) -> "PostgresDatabase":
        try:
            import_module("psycopg")
            from sqlalchemy.ext.asyncio import create_async_engine
        except ImportError as missing:
            raise MissingExtra(extra="postgres", feature="PostgreSQL") from missing
        # Autocommit, because BEGIN is sent together with the tenant setting in one round trip.
        engine = create_async_engine(
            url.set(drivername="postgresql+psycopg"),
            isolation_level="AUTOCOMMIT",
            # No overflow: SQLAlchemy closes overflow connections after each use and reconnects under the highest load.
            pool_size=_POOL_SIZE,
            max_overflow=0,
            pool_pre_ping=False,
        )
        event.listen(engine.sync_engine, "connect", _disable_prepared_statements_behind_pooler)
        database = cls(engine)
        try:
            await database.read(migrate.check_version, tenant="")
        except BaseException:
            await database.close()
            raise
        return database

    async def read(self, work: Work[T], *, tenant: str, inline: bool = False) -> T:
        return await self._run(work, begin="BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", tenant=tenant)

    async def write(self, work: Work[T], *, tenant: str) -> T:
        return await self._run(work, begin="BEGIN", tenant=tenant)

    async def _run(self, work: Work[T], *, begin: str, tenant: str) -> T:
        from sqlalchemy.util import greenlet_spawn

        self._transactions += 1
        self._is_idle.clear()
        try:
            with map_database_errors():
                return await greenlet_spawn(self._run_transaction, work, _begin_sql(begin, tenant))
        finally:
            self._transactions -= 1
            if not self._transactions:
                self._is_idle.set()

    def _run_transaction(self, work: Work[T], begin_sql: str) -> T:
        connection = self._begin(begin_sql)
        try:
            result = work(connection)
            execute_text(connection, "COMMIT")
            return result
        except BaseException:
            # SQLAlchemy may have invalidated the connection already; accessing it would then raise another error.
            if not connection.invalidated and cast(Any, connection.connection.driver_connection).closed:
                connection.invalidate()
            raise
        finally:
            if self._is_closed and not connection.invalidated:
                # A background job was still running: the pool is gone, so nothing else would close the connection.
                connection.invalidate()
            # Returns the connection to the pool, which rolls back uncommitted work.
            connection.close()

    def _begin(self, begin_sql: str) -> Connection:
        """A connection in a transaction with its tenant set. If the pooled one is dead, reconnects once."""
        from psycopg import OperationalError

        if self._is_closed:
            raise StoreUnavailable("The store is closed; open it again.")
        engine: Engine = self._engine.sync_engine
        connection = engine.connect()
        try:
            execute_text(connection, begin_sql)
        except OperationalError:
            connection.invalidate()
            connection.close()
            engine.dispose()
        except BaseException:
            connection.close()
            raise
        else:
            return connection
        connection = engine.connect()
        execute_text(connection, begin_sql)
        return connection

    def get_pool_stats(self) -> PoolStats:
        pool = self._engine.sync_engine.pool
        return PoolStats(in_use=pool.checkedout(), idle=pool.checkedin())

    async def scrub(self) -> None:
        """Does nothing: autovacuum removes dead rows, and only the owner may force a vacuum."""

    async def close(self) -> None:
        """Closes the pool once the transactions of background jobs have ended; later ones are refused."""
        self._is_closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._is_idle.wait()
        await self._engine.dispose()


@lru_cache(maxsize=10_000)
def _begin_sql(begin: str, tenant: str) -> str:
    from psycopg.sql import Literal

    return f"{begin}; SELECT set_config('quire.tenant', {Literal(tenant).as_string()}, true)"


def _disable_prepared_statements_behind_pooler(connection: Any, _record: object) -> None:
    """Disables prepared statements behind a pooler, whose next session may not have them, or has others by that name.

    A pooler is detected by the backend PID in its greeting, which differs from that of the server process.
    """
    driver = connection.driver_connection
    cursor = connection.cursor()
    try:
        cursor.execute("SELECT pg_backend_pid()")
        (server_pid,) = cursor.fetchone()
    finally:
        cursor.close()
    if server_pid != driver.info.backend_pid:
        driver.prepare_threshold = None
