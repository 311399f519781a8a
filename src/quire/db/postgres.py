"""PostgreSQL: a connection pool of asynchronous psycopg; every transaction sets its tenant for row-level security.

No session state survives a transaction, so a pooler such as PgBouncer may assign another session to each of them.
Every wait is bounded: for a connection, for a lock, for a statement, and for a server that does not answer at all.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, cast
from weakref import WeakValueDictionary

from sqlalchemy import URL, Connection, Engine, Pool, event
from sqlalchemy.sql import ClauseElement

from quire.db import migrate
from quire.db.column_types import set_encrypts
from quire.db.database import (
    REQUEST_STATEMENT_SECONDS,
    LossCallback,
    PoolStats,
    T,
    TransactionOptions,
    Work,
    WriteConflict,
    map_database_errors,
)
from quire.db.notifications import Notifications, PostgresTransport, build_notify_sql, take_changes
from quire.db.raw_sql import (
    Statement,
    UnreadConnection,
    combine_statements,
    compile_with_literals,
    execute_text,
    fetch_last,
    get_driver,
)
from quire.errors import MissingExtra, StoreBusy, StoreFull, StoreReadOnly, StoreUnavailable

if TYPE_CHECKING:
    from quire.db.deadline_connection import DeadlineConnection

P = ParamSpec("P")

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


class BrokenConnection(Exception):
    """A transaction ended because its connection was broken. It may have been committed."""


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
        self._parked: list[tuple[Connection, Pool]] = []
        """Connections that stay checked out between short transactions, the last one used at the end."""
        self._waiting = 0
        """Transactions that wait for a connection of the pool."""

    @classmethod
    async def open(cls, url: URL, *, listen_url: URL | None = None, encrypts: bool = False) -> "PostgresDatabase":
        """Connects and checks the schema."""
        try:
            import_module("psycopg")
            from sqlalchemy.ext.asyncio import create_async_engine

            from quire.db.deadline_connection import CONNECT_SECONDS, DeadlineConnection
        except ImportError as missing:
            raise MissingExtra(extra="postgres", feature="PostgreSQL") from missing
        # Autocommit, because BEGIN is sent together with the tenant setting in one round trip.
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
            connect_args={"async_creator_fn": DeadlineConnection.connect, "connect_timeout": CONNECT_SECONDS},
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
        begin, seconds = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", options.statement_seconds
        begin_sql = f"{begin}; {_settings_sql(options.tenant, seconds)}"
        return await self._run(lambda connection, _: work(connection), begin_sql, "COMMIT", seconds)

    async def fetch(self, statement: ClauseElement, params: Mapping[str, Any], tenant: str) -> list[Any]:
        """Sends the query in one message with the settings, which PostgreSQL executes as one transaction."""
        await self._breaker.check(is_write=False)
        with map_database_errors():
            query = compile_with_literals(statement, params)
        sql = f"{_settings_sql(tenant, REQUEST_STATEMENT_SECONDS)}; {query}"

        async def run(driver: Any) -> list[Any]:
            cursor = await driver.execute(sql)
            while cursor.nextset():
                pass
            return await cursor.fetchall()

        try:
            return await self._run_natively(run, REQUEST_STATEMENT_SECONDS)
        except BrokenConnection:
            # Reconnects once.
            return await self._run(lambda _, cursor: fetch_last(cursor), sql, "", REQUEST_STATEMENT_SECONDS)

    async def write(self, work: Work[T], options: TransactionOptions) -> T:
        async with self._limit_writers(options.tenant, options.conversation):
            await self._breaker.check(is_write=True)
            begin_sql = f"BEGIN; {_settings_sql(options.tenant, options.statement_seconds)}"
            # A COMMIT that waits for a synchronous standby succeeds when `statement_timeout` ends it, although the
            # standby does not have the transaction.
            commit_sql = "SET LOCAL statement_timeout = 0; COMMIT"
            result = await self._run(
                lambda connection, _: work(connection), begin_sql, commit_sql, options.statement_seconds
            )
            self._breaker.confirm_write()
            return result

    async def write_unread(self, work: Work[T], options: TransactionOptions) -> T:
        """Sends all statements of `work` in one message, which PostgreSQL executes as one transaction."""
        from psycopg.errors import DivisionByZero, IntegrityError

        async with self._limit_writers(options.tenant, options.conversation):
            await self._breaker.check(is_write=True)
            unread = UnreadConnection()
            result = work(cast(Connection, unread))

            async def run(driver: Any) -> None:
                try:
                    await _execute_at_once(driver, options, unread.statements)
                except (DivisionByZero, IntegrityError) as error:
                    raise WriteConflict from error

            try:
                await self._run_natively(run, options.statement_seconds)
            except BrokenConnection as error:
                raise WriteConflict from error
            self.notifications.announce_changes(take_changes(cast(Connection, unread)))
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

    async def _run(
        self,
        work: Callable[[Connection, Any], T],
        begin_sql: str,
        commit_sql: str,
        statement_seconds: float,
    ) -> T:
        """Runs `work` between two messages of statements. Its second argument is the cursor of the first message."""
        return await self._spawn(self._run_transaction, work, begin_sql, commit_sql, statement_seconds)

    async def _spawn(self, run: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        from sqlalchemy.util import greenlet_spawn

        with self._count_transaction():
            return await greenlet_spawn(run, *args, **kwargs)

    @contextmanager
    def _count_transaction(self) -> Generator[None]:
        if self._is_closed:
            raise StoreUnavailable("The store is closed; open it again.")
        self._transactions += 1
        self._is_idle.clear()
        try:
            with map_database_errors():
                yield
        except StoreUnavailable as failure:
            self._breaker.trip(failure)
            self._report_connection_loss()
            raise
        finally:
            self._transactions -= 1
            if not self._transactions:
                self._is_idle.set()

    async def _run_natively(self, run: Callable[[Any], Awaitable[T]], statement_seconds: float) -> T:
        """Runs a short transaction on the driver's connection.

        SQLAlchemy would switch between greenlets at each wait, and check the connection out and in, which takes as long
        as the statement. So a few of the pool's connections stay checked out between these transactions. All others
        take them too. Raises `BrokenConnection` if the connection was broken before or is now.
        """
        from psycopg import OperationalError
        from sqlalchemy.util import greenlet_spawn

        with self._count_transaction():
            connection, pool = self._take_parked() or await greenlet_spawn(self._check_out)
            driver = get_driver(connection)
            driver.deadline_seconds = statement_seconds + _DEADLINE_MARGIN_SECONDS
            try:
                result = await run(driver)
            except BaseException as error:
                is_closed = driver.closed
                await self._discard(connection, pool)
                if is_closed and isinstance(error, OperationalError):
                    self._report_connection_loss()
                    raise BrokenConnection from error
                raise
            if self._is_closed or self._waiting or pool is not self._engine.sync_engine.pool:
                await self._discard(connection, pool)
            else:
                self._parked.append((connection, pool))
            return result

    def _run_transaction(
        self,
        work: Callable[[Connection, Any], T],
        begin_sql: str,
        commit_sql: str,
        statement_seconds: float,
    ) -> T:
        connection, cursor, pool = self._begin(begin_sql, statement_seconds)
        with self._use(connection, pool):
            result = work(connection, cursor)
            if commit_sql:
                execute_text(connection, commit_sql)
            self.notifications.announce_changes(take_changes(connection))
            return result

    def _take_parked(self) -> tuple[Connection, Pool] | None:
        """A connection that stayed checked out after its last transaction."""
        return self._parked.pop() if self._parked else None

    def _check_out(self) -> tuple[Connection, Pool]:
        """Checks a connection out, with its pool. While this waits for one, none is parked."""
        engine: Engine = self._engine.sync_engine
        # Another transaction may replace the pool before this one has its connection.
        pool = engine.pool
        self._waiting += 1
        try:
            return engine.connect(), pool
        finally:
            self._waiting -= 1

    async def _discard(self, connection: Connection, pool: Pool) -> None:
        """Returns a connection to the pool, or drops it if it is closed or its pool was replaced."""
        from sqlalchemy.util import greenlet_spawn

        def discard() -> None:
            if get_driver(connection).closed or self._is_closed or pool is not self._engine.sync_engine.pool:
                connection.invalidate()
            connection.close()

        await greenlet_spawn(discard)

    @contextmanager
    def _use(self, connection: Connection, pool: Pool) -> Generator[None]:
        """Returns the connection to its pool after the block, unless one of them is not to be used again."""
        take_changes(connection)
        try:
            yield
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

    def _begin(self, begin_sql: str, statement_seconds: float) -> tuple[Connection, Any, Pool]:
        """A connection in a transaction with its tenant set, the cursor of `begin_sql`, and the pool. If the pooled
        connection is dead, reconnects once."""
        from psycopg import OperationalError

        engine: Engine = self._engine.sync_engine
        connection, pool = self._take_parked() or self._check_out()
        driver = get_driver(connection)
        try:
            return *_begin_on(connection, begin_sql, statement_seconds), pool
        except OperationalError:
            if not driver.closed:
                raise
            # The other idle connections are as old as this one. A concurrent transaction may have replaced them.
            if engine.pool is pool:
                engine.dispose()
                self._drop_parked()
        self._report_connection_loss()
        connection, pool = self._check_out()
        return *_begin_on(connection, begin_sql, statement_seconds), pool

    def _drop_parked(self) -> None:
        parked, self._parked = self._parked, []
        for connection, _ in parked:
            connection.invalidate()
            connection.close()

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
        from quire.db.deadline_connection import DeadlineConnection

        _, url_arguments = self._engine.sync_engine.dialect.create_connect_args(url)
        # The limit of the URL is for the pool.
        arguments: dict[str, Any] = {**url_arguments, "prepare_threshold": None, "connect_timeout": connect_seconds}
        return await DeadlineConnection.connect(**arguments, autocommit=True)

    async def _notify(self, payloads: Sequence[str]) -> None:
        """Sends notifications in one statement, which is a transaction by itself: it needs no BEGIN and COMMIT."""
        await self._breaker.check(is_write=True)
        sql = build_notify_sql(payloads)
        with suppress(BrokenConnection):
            await self._run_natively(lambda driver: driver.execute(sql), REQUEST_STATEMENT_SECONDS)

    def on_connection_loss(self, callback: LossCallback) -> None:
        self._loss_callbacks.append(callback)

    def _report_connection_loss(self) -> None:
        for callback in self._loss_callbacks:
            callback()

    def get_pool_stats(self) -> PoolStats:
        pool = self._engine.sync_engine.pool
        parked = len(self._parked)
        return PoolStats(in_use=pool.checkedout() - parked, idle=pool.checkedin() + parked)

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
        from sqlalchemy.util import greenlet_spawn

        await greenlet_spawn(self._drop_parked)
        await self._engine.dispose()


async def _execute_at_once(driver: Any, options: TransactionOptions, statements: Sequence[Statement]) -> None:
    """Executes statements without a transaction around them: in a pipeline they are one, up to its end.

    A commit that waits for a synchronous standby is not subject to `statement_timeout`.
    """
    from psycopg import AsyncRawCursor

    async with driver.pipeline():
        await AsyncRawCursor(driver).execute(_SET_PARAMETERS, _list_settings(options.tenant, options.statement_seconds))
        await AsyncRawCursor(driver).execute(*combine_statements(statements))


def _begin_on(connection: Connection, begin_sql: str, statement_seconds: float) -> tuple[Connection, Any]:
    driver = get_driver(connection)
    driver.deadline_seconds = statement_seconds + _DEADLINE_MARGIN_SECONDS
    try:
        return connection, execute_text(connection, begin_sql)
    except BaseException:
        if driver.closed:
            connection.invalidate()
        connection.close()
        raise


_SETTINGS = ("quire.tenant", "statement_timeout", "lock_timeout")
_SET_PARAMETERS = b"SELECT " + b", ".join(
    f"set_config('{name}', ${number}, true)".encode() for number, name in enumerate(_SETTINGS, start=1)
)


def _list_settings(tenant: str, statement_seconds: float) -> tuple[str, str, str]:
    """The tenant of a transaction and the server's limits, as values of `_SETTINGS`."""
    lock_seconds = _LOCK_SECONDS if statement_seconds <= REQUEST_STATEMENT_SECONDS else _BULK_LOCK_SECONDS
    return tenant, f"{statement_seconds * 1000:.0f}", f"{lock_seconds * 1000:.0f}"


@lru_cache(maxsize=10_000)
def _settings_sql(tenant: str, statement_seconds: float) -> str:
    """The statement that sets the tenant of a transaction and the server's limits."""
    from psycopg.sql import Literal

    settings = zip(_SETTINGS, _list_settings(tenant, statement_seconds), strict=True)
    return "SELECT " + ", ".join(
        f"set_config('{name}', {Literal(value).as_string()}, true)" for name, value in settings
    )


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
