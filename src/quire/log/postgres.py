"""PostgreSQL: psycopg's asynchronous connections, each piece of work in a transaction that knows its tenant.

Nothing is kept in the session between transactions, so that a pooler may give each of them another session.
"""

from functools import lru_cache
from importlib import import_module
from typing import Any, cast

from sqlalchemy import URL, Connection, Engine, event

from quire.errors import MissingExtra
from quire.log import migrate
from quire.log.database import Connections, T, Work
from quire.log.driver import send
from quire.log.foreign import mapped_errors


class PostgresDatabase:
    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @classmethod
    async def open(cls, url: URL) -> "PostgresDatabase":
        try:
            import_module("psycopg")
            from sqlalchemy.ext.asyncio import create_async_engine
        except ImportError as missing:
            raise MissingExtra(extra="postgres", needed_for="PostgreSQL") from missing
        # Autocommit, because the transaction's BEGIN travels with the tenant's name in one round trip.
        engine = create_async_engine(
            url.set(drivername="postgresql+psycopg"),
            isolation_level="AUTOCOMMIT",
            # No overflow: what exceeds a pool is closed after each use and made anew for the next, when it hurts most.
            pool_size=32,
            max_overflow=0,
            pool_pre_ping=False,
        )
        event.listen(engine.sync_engine, "connect", _prepare_nothing_through_a_pooler)
        database = cls(engine)
        try:
            await database.read(migrate.check, tenant="")
        except BaseException:
            await database.close()
            raise
        return database

    async def read(self, work: Work[T], *, tenant: str, brief: bool = False) -> T:
        return await self._run(work, begin="BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", tenant=tenant)

    async def write(self, work: Work[T], *, tenant: str) -> T:
        return await self._run(work, begin="BEGIN", tenant=tenant)

    async def _run(self, work: Work[T], *, begin: str, tenant: str) -> T:
        from sqlalchemy.util import greenlet_spawn

        with mapped_errors():
            return await greenlet_spawn(self._transact, work, _opening(begin, tenant))

    def _transact(self, work: Work[T], opening: str) -> T:
        connection = self._begun(opening)
        try:
            result = work(connection)
            send(connection, "COMMIT")
            return result
        except BaseException:
            # SQLAlchemy may have given the connection up already, and then asking for it would raise another error.
            if not connection.invalidated and cast(Any, connection.connection.driver_connection).closed:
                connection.invalidate()
            raise
        finally:
            # Gives the connection back; what was not committed, the pool rolls back.
            connection.close()

    def _begun(self, opening: str) -> Connection:
        """A connection in a transaction that knows its tenant. Those that died in the pool are replaced, once."""
        from psycopg import OperationalError

        engine: Engine = self._engine.sync_engine
        connection = engine.connect()
        try:
            send(connection, opening)
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
        send(connection, opening)
        return connection

    def connections(self) -> Connections:
        pool = self._engine.sync_engine.pool
        return Connections(in_use=pool.checkedout(), idle=pool.checkedin())

    async def scrub(self) -> None:
        """Dead rows go with the server's own vacuum; to force it is the owner's right, not the application's."""

    async def close(self) -> None:
        await self._engine.dispose()


@lru_cache(maxsize=10_000)
def _opening(begin: str, tenant: str) -> str:
    from psycopg.sql import Literal

    return f"{begin}; SELECT set_config('quire.tenant', {Literal(tenant).as_string()}, true)"


def _prepare_nothing_through_a_pooler(connection: Any, _record: object) -> None:
    """A statement prepared in one session is unknown, or another one, in the next that the pooler gives us.

    A pooler shows itself by the process number that it greets with, which is not the one of the server's process.
    """
    driver = connection.driver_connection
    cursor = connection.cursor()
    try:
        cursor.execute("SELECT pg_backend_pid()")
        (serving,) = cursor.fetchone()
    finally:
        cursor.close()
    if serving != driver.info.backend_pid:
        driver.prepare_threshold = None
