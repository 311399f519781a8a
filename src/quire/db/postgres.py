"""PostgreSQL: a connection pool of asynchronous psycopg; every transaction sets its tenant for row-level security.

No session state survives a transaction, so a pooler such as PgBouncer may assign another session to each of them.
Every wait is bounded: for a connection, for a lock, for a statement, and for a server that does not answer at all.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from sqlalchemy import URL, Connection, Engine, Pool, event

from quire.db import migrate
from quire.db.column_types import set_encrypts
from quire.db.database import (
    REQUEST_STATEMENT_SECONDS,
    LossCallback,
    PoolStats,
    T,
    TransactionOptions,
    Work,
    map_database_errors,
)
from quire.db.notifications import Notifications, PostgresTransport, build_notify_sql, take_changes
from quire.db.raw_sql import execute_sql, get_driver, set_local
from quire.errors import MissingExtra, StoreBusy, StoreFull, StoreReadOnly, StoreUnavailable

if TYPE_CHECKING:
    from quire.db.deadline_connection import DeadlineConnection

WRITE_PROOF_SECONDS = 1.0
"""Seconds for which a write shows that the next one succeeds too."""
PROBE_INTERVAL_SECONDS = 0.2
"""Time after a failed probe in which callers are refused without another one."""


class CircuitBreaker:
    """Refuses transactions while the database is known to be unavailable, until a probe succeeds.

    Callers share one probe, so that an outage costs one connection attempt at a time, and no request waits for more
    than one. `probe` raises `StoreUnavailable` unless the database accepts writes.
    """

    def __init__(self, probe: Callable[[], Awaitable[None]]) -> None:
        self._probe = probe
        self._failure: StoreUnavailable | None = None
        self._probed_at = -math.inf
        self._running_probe: asyncio.Task[None] | None = None

    def trip(self, failure: StoreUnavailable) -> None:
        """Opens the circuit; the next caller probes the database."""
        self._failure, self._probed_at = failure, -math.inf

    def confirm_write(self) -> None:
        """A write succeeded, so that a probe now would find nothing else."""
        if self._failure is None:
            self._probed_at = asyncio.get_running_loop().time()

    async def check(self, *, is_write: bool) -> None:
        """Raises `StoreUnavailable` if the circuit is open and a probe fails. Reads need no writable database."""
        if self._failure is None or (not is_write and isinstance(self._failure, StoreReadOnly | StoreFull)):
            return
        await self.probe(max_age_seconds=PROBE_INTERVAL_SECONDS)

    async def probe(self, *, max_age_seconds: float) -> None:
        """Raises what the last probe raised. Runs one unless the last is recent."""
        loop = asyncio.get_running_loop()
        if self._running_probe is None and loop.time() - self._probed_at >= max_age_seconds:
            self._running_probe = loop.create_task(self._run_probe())
        if self._running_probe is not None:
            # Shielded: the probe serves other callers too.
            await asyncio.shield(self._running_probe)
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))

    async def _run_probe(self) -> None:
        try:
            await self._probe()
            self._failure = None
        except StoreUnavailable as failure:
            self._failure = failure
        finally:
            self._probed_at = asyncio.get_running_loop().time()
            self._running_probe = None

    async def close(self) -> None:
        """Waits for a running probe."""
        if self._running_probe is not None:
            await asyncio.wait([self._running_probe])


_POOL_SIZE = 32
"""Maximum connections per process."""
_POOL_WAIT_SECONDS = 3.0
"""Maximum wait for a connection of the pool."""
_MAX_CONVERSATION_WRITERS = 4
"""Maximum connections that write to one conversation at the same time: each waits for the same row lock."""
_CONVERSATION_WAIT_SECONDS = 7.0
"""Maximum wait for the other writers of a conversation in this process."""
_LOCK_SECONDS = 5.0
"""Maximum wait for a lock of the database."""
_BULK_LOCK_SECONDS = 30.0
_DEADLINE_MARGIN_SECONDS = 0.5
"""Time after `statement_timeout` in which the server has to report it."""
_CLOSE_SECONDS = 10.0
"""Time that running transactions have to end when the database is closed."""
_PROBE_SECONDS = 2.0
"""Maximum time of each step of a probe: connecting to one host, each statement."""
_IS_READ_ONLY = "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean"
# A sort that does not fit in memory needs space on the disk; the message is a record in the write-ahead log, for whose
# commit a synchronous standby must answer.
_TEST_WRITE = """
    BEGIN; SET LOCAL work_mem = '64kB';
    SELECT count(*) FROM (SELECT repeat(md5(n::text), 4) FROM generate_series(1, 2000) AS n ORDER BY 1) AS sorted;
    SELECT pg_logical_emit_message(true, 'quire', ''); COMMIT
"""


class PostgresDatabase:
    def __init__(self, engine: Any, *, listen_url: URL | None = None) -> None:
        self._engine, self._listen_url = engine, listen_url
        self.notifications = Notifications(PostgresTransport(self._notify, self._connect_listener))
        self._is_closed = False
        self._transactions = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._breaker = CircuitBreaker(self._probe)
        self._writers: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()
        self._loss_callbacks: list[LossCallback] = []

    @classmethod
    async def open(cls, url: URL, *, listen_url: URL | None = None, encrypts: bool = False) -> "PostgresDatabase":
        """Connects and checks the schema."""
        try:
            import_module("psycopg")
            from sqlalchemy.ext.asyncio import create_async_engine

            from quire.db.deadline_connection import DeadlineConnection, list_time_limits
        except ImportError as missing:
            raise MissingExtra(extra="postgres", feature="PostgreSQL") from missing
        # Autocommit, because BEGIN is sent in one round trip with what sets the tenant.
        engine = create_async_engine(
            url.set(drivername="postgresql+psycopg"),
            isolation_level="AUTOCOMMIT",
            # No overflow: SQLAlchemy closes overflow connections after each use and reconnects under the highest load.
            pool_size=_POOL_SIZE,
            max_overflow=0,
            # The connection used last has the caches and prepared statements.
            pool_use_lifo=True,
            pool_timeout=_POOL_WAIT_SECONDS,
            pool_pre_ping=False,
            connect_args={"async_creator_fn": DeadlineConnection.connect, **list_time_limits(url)},
        )
        set_encrypts(engine.sync_engine.dialect, value=encrypts)
        event.listen(engine.sync_engine, "connect", _set_up_connection)
        database = cls(engine, listen_url=listen_url)
        try:
            await database.read(migrate.check_version, TransactionOptions(tenant=""))
        except BaseException:
            await database.close()
            raise
        return database

    async def read(self, work: Work[T], options: TransactionOptions) -> T:
        await self._breaker.check(is_write=False)
        return await self._run(work, options, writes=False)

    async def write(self, work: Work[T], options: TransactionOptions) -> T:
        async with self._limit_writers(options.tenant, options.conversation):
            await self._breaker.check(is_write=True)
            result = await self._run(work, options, writes=True)
            self._breaker.confirm_write()
            return result

    @asynccontextmanager
    async def _limit_writers(self, tenant: str, conversation: str | None) -> AsyncGenerator[None]:
        """Lets the other writers of a conversation wait without a connection, which other conversations need."""
        if conversation is None:
            yield
            return
        writers = self._writers.setdefault((tenant, conversation), asyncio.Semaphore(_MAX_CONVERSATION_WRITERS))
        if not writers.locked():
            # At once, and without a timer.
            await writers.acquire()
        else:
            try:
                async with asyncio.timeout(_CONVERSATION_WAIT_SECONDS):
                    await writers.acquire()
            except TimeoutError:
                raise StoreBusy(f"{StoreBusy.__doc__} (other writers of conversation {conversation!r})") from None
        try:
            yield
        finally:
            writers.release()

    async def _run(self, work: Work[T], options: TransactionOptions, *, writes: bool) -> T:
        from sqlalchemy.util import greenlet_spawn

        if self._is_closed:
            raise StoreUnavailable("The store is closed; open it again.")
        self._transactions += 1
        self._is_idle.clear()
        try:
            with map_database_errors():
                return await greenlet_spawn(self._run_transaction, work, options, writes)
        except StoreUnavailable as failure:
            self._breaker.trip(failure)
            self._report_connection_loss()
            raise
        finally:
            self._transactions -= 1
            if not self._transactions:
                self._is_idle.set()

    def _run_transaction(self, work: Work[T], options: TransactionOptions, writes: bool) -> T:  # noqa: FBT001 (greenlet_spawn takes positions only)
        connection, pool = self._begin(options, writes=writes)
        take_changes(connection)
        try:
            result = work(connection)
            execute_sql(connection, _COMMIT_WRITE if writes else "COMMIT")
            self.notifications.announce_changes(take_changes(connection))
            return result
        except BaseException:
            # SQLAlchemy may have invalidated the connection already; accessing it would then raise another error.
            if not connection.invalidated and get_driver(connection).closed:
                connection.invalidate()
            raise
        finally:
            if (self._is_closed or pool is not self._engine.sync_engine.pool) and not connection.invalidated:
                # Its pool was replaced, or closed while a background job was running: nothing else would close it.
                connection.invalidate()
            # Returns the connection to the pool, which rolls back uncommitted work.
            connection.close()

    def _begin(self, options: TransactionOptions, *, writes: bool) -> tuple[Connection, Pool]:
        """A connection in a transaction with its tenant set, and its pool. If the pooled connection is dead, reconnects
        once."""
        from psycopg import OperationalError
        from sqlalchemy.util import await_only

        engine: Engine = self._engine.sync_engine
        for is_retry in (False, True):
            # Another transaction may replace the pool before this one has its connection.
            pool = engine.pool
            connection = engine.connect()
            driver = get_driver(connection)
            try:
                await_only(_begin_on(driver, options, writes=writes))
                return connection, pool
            except BaseException as error:
                is_dead = driver.closed
                if is_dead:
                    connection.invalidate()
                connection.close()
                if is_retry or not (is_dead and isinstance(error, OperationalError)):
                    raise
            # The other idle connections are as old as this one. A concurrent transaction may have replaced them.
            if engine.pool is pool:
                engine.dispose()
            self._report_connection_loss()
        raise AssertionError

    async def check_writable(self, *, max_age_seconds: float) -> None:
        await self._breaker.probe(max_age_seconds=max_age_seconds)

    async def check_recordable(self) -> None:
        await self._breaker.probe(max_age_seconds=WRITE_PROOF_SECONDS)

    async def _probe(self) -> None:
        """Connects, and tests that the database accepts writes."""
        with map_database_errors():
            connection = await self._connect(self._engine.url, connect_seconds=int(_PROBE_SECONDS))
            try:
                connection.deadline_seconds = _PROBE_SECONDS
                if await (await connection.execute(_IS_READ_ONLY)).fetchone() == (True,):
                    raise StoreReadOnly
                await connection.execute(_TEST_WRITE)
            finally:
                await connection.close()

    async def _connect_listener(self) -> "DeadlineConnection":
        from quire.db.deadline_connection import CONNECT_SECONDS

        connection = await self._connect(self._listen_url or self._engine.url, connect_seconds=CONNECT_SECONDS)
        connection.deadline_seconds = REQUEST_STATEMENT_SECONDS
        return connection

    async def _connect(self, url: URL, *, connect_seconds: int) -> "DeadlineConnection":
        """A connection that is not of the pool, whose connections may be busy."""
        from quire.db.deadline_connection import DeadlineConnection, list_time_limits

        _, url_arguments = self._engine.sync_engine.dialect.create_connect_args(url)
        # The limit of the URL is for the pool.
        limits = {**list_time_limits(url), "connect_timeout": connect_seconds, "prepare_threshold": None}
        arguments: dict[str, Any] = {**url_arguments, **limits}
        return await DeadlineConnection.connect(**arguments, autocommit=True)

    async def _notify(self, payloads: Sequence[str]) -> None:
        await self._breaker.check(is_write=True)
        sql = build_notify_sql(payloads)
        await self._run(lambda connection: execute_sql(connection, sql), TransactionOptions(""), writes=True)

    def on_connection_loss(self, callback: LossCallback) -> None:
        self._loss_callbacks.append(callback)

    def _report_connection_loss(self) -> None:
        for callback in self._loss_callbacks:
            callback()

    def get_pool_stats(self) -> PoolStats:
        pool = self._engine.sync_engine.pool
        return PoolStats(in_use=pool.checkedout(), idle=pool.checkedin())

    async def scrub(self) -> None:
        """Does nothing: autovacuum removes dead rows, and only the owner may force a vacuum."""

    async def close(self) -> None:
        """Closes the pool once the transactions of background jobs have ended. Later ones are refused."""
        await self.notifications.close()
        self._is_closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._is_idle.wait()
        await self._breaker.close()
        await self._engine.dispose()


_SET_LIMITS = "SELECT set_config('statement_timeout', '{:.0f}', true), set_config('lock_timeout', '{:.0f}', true)"
_COMMIT_WRITE = "SELECT set_config('statement_timeout', '0', true); COMMIT"
"""A COMMIT that waits for a synchronous standby succeeds when `statement_timeout` ends it, although the standby does
not have the transaction."""


async def _begin_on(driver: Any, options: TransactionOptions, *, writes: bool) -> None:
    """Begins a transaction, and sets the server's limits and its tenant.

    The tenant is a message of its own: Citus passes a message with SET LOCAL on to the shards as it is, and
    `set_config` not at all. Two messages take a third of the CPU time of a pipeline.
    """
    seconds = options.statement_seconds
    lock_seconds = _LOCK_SECONDS if seconds <= REQUEST_STATEMENT_SECONDS else _BULK_LOCK_SECONDS
    driver.deadline_seconds = seconds + _DEADLINE_MARGIN_SECONDS
    begin = "BEGIN" if writes else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    limits = _SET_LIMITS.format(seconds * 1000, lock_seconds * 1000)
    await driver.execute(f"{begin}; {limits}", prepare=False)
    await driver.execute(set_local("quire.tenant", options.tenant), prepare=False)


def _set_up_connection(connection: Any, _record: object) -> None:
    from psycopg.types.array import ListBinaryDumper

    driver = connection.driver_connection
    # As text, every quote in a list of messages would be escaped by itself.
    driver.adapters.register_dumper(list, ListBinaryDumper)
    # Behind a pooler, the next session may not have a prepared statement, or have another one by that name. The backend
    # PID in a pooler's greeting differs from the PID of the server process.
    cursor = connection.cursor()
    try:
        cursor.execute("SELECT pg_backend_pid()")
        (server_pid,) = cursor.fetchone()
    finally:
        cursor.close()
    if server_pid != driver.info.backend_pid:
        driver.prepare_threshold = None
