"""`Database` protocol: read and write transactions, short inline reads, instrumentation, and error mapping."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from quire.db.notifications import Notifications
from quire.errors import (
    InvalidEntry,
    QuireError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

T = TypeVar("T")
Work = Callable[[Connection], T]

REQUEST_STATEMENT_SECONDS = 6.0
"""Maximum time of a statement that a request waits for."""
BULK_STATEMENT_SECONDS = 300.0
"""Maximum time of a statement of an import, an export, a purge or a verification."""

INLINE_READ_FLAG = "quire inline read"
"""Key in `Connection.info` that marks the connection of inline reads."""

_MAX_INLINE_ROWS = 1_000
"""Maximum rows of a statement in an inline read; a longer one moves to a thread."""


_MAX_INLINE_BYTES = 4_000_000
"""Maximum bytes of the texts of an inline read. Reading more takes longer than a change of threads."""


class PoolStats(NamedTuple):
    """Current number of connections in the pool."""

    in_use: int
    idle: int


class TransactionOptions(NamedTuple):
    """The tenant of a transaction, and how it runs."""

    tenant: str
    conversation: str | None = None
    """The conversation whose rows a write locks: of its transactions only a few take a connection at the same time."""
    inline: bool = False
    """A read of few rows, which may run on the event loop. Each of its statements may see newer commits."""
    statement_seconds: float = REQUEST_STATEMENT_SECONDS


LossCallback = Callable[[], object]
"""Called after a connection broke."""


class Database(Protocol):
    @property
    def notifications(self) -> Notifications:
        """Announces the conversations that transactions changed, to this process and to others."""
        ...

    async def read(self, work: Work[T], options: TransactionOptions) -> T:
        """Runs `work` on a consistent snapshot."""
        ...

    async def write(self, work: Work[T], options: TransactionOptions) -> T:
        """Runs `work` in a transaction, which is rolled back if `work` raises."""
        ...

    async def check_writable(self, *, max_age_seconds: float) -> None:
        """Raises `StoreUnavailable` unless the database accepts writes, as seen at most that long ago."""
        ...

    async def check_recordable(self) -> None:
        """Raises `StoreUnavailable` unless the database was just seen to accept writes. Called before a model is: an
        answer that cannot be recorded would be paid for in vain. Costs nothing after recent writes."""
        ...

    def on_connection_loss(self, callback: LossCallback) -> None:
        """Calls back when a connection broke. The database may then be another one, or in an earlier state."""
        ...

    def get_pool_stats(self) -> PoolStats: ...

    async def scrub(self) -> None:
        """Removes overwritten content from disk, as far as the database allows."""
        ...

    async def close(self) -> None: ...


class InlineReadTooLong(Exception):
    """The read has too many rows or bytes to run inline on the event loop."""


def check_inline_rows(connection: Connection, rows: int) -> None:
    """Raises `InlineReadTooLong` if an inline read is about to fetch too many rows, so that it moves to a thread."""
    if rows > _MAX_INLINE_ROWS and INLINE_READ_FLAG in connection.info:
        raise InlineReadTooLong


def fetch_all(connection: Connection, cursor: Any, *, text_column: int) -> list[Any]:
    """All rows of an open cursor. An inline read stops after a number of bytes in a column, and moves to a thread."""
    if INLINE_READ_FLAG not in connection.info:
        return cursor.fetchall()
    rows: list[Any] = []
    size = 0
    for row in cursor:
        rows.append(row)
        size += len(row[text_column])
        if size > _MAX_INLINE_BYTES:
            cursor.close()
            raise InlineReadTooLong
    return rows


TransactionKind = Literal["read", "write"]
TransactionObserver = Callable[[TransactionKind, float, StoreError | None], None]
"""Called after every transaction with its kind, its seconds (waiting for a connection included) and its error."""


class ObservedDatabase:
    """A database that reports every transaction to an observer."""

    def __init__(self, database: Database, observer: TransactionObserver) -> None:
        self._database, self._observer = database, observer

    @property
    def notifications(self) -> Notifications:
        return self._database.notifications

    async def read(self, work: Work[T], options: TransactionOptions) -> T:
        with self._observe("read"):
            return await self._database.read(work, options)

    async def write(self, work: Work[T], options: TransactionOptions) -> T:
        with self._observe("write"):
            return await self._database.write(work, options)

    @contextmanager
    def _observe(self, kind: TransactionKind) -> Generator[None]:
        started, failure = time.perf_counter(), None
        try:
            yield
        except StoreError as error:
            failure = error
            raise
        finally:
            self._observer(kind, time.perf_counter() - started, failure)

    async def check_writable(self, *, max_age_seconds: float) -> None:
        await self._database.check_writable(max_age_seconds=max_age_seconds)

    async def check_recordable(self) -> None:
        await self._database.check_recordable()

    def on_connection_loss(self, callback: LossCallback) -> None:
        self._database.on_connection_loss(callback)

    def get_pool_stats(self) -> PoolStats:
        return self._database.get_pool_stats()

    async def scrub(self) -> None:
        await self._database.scrub()

    async def close(self) -> None:
        await self._database.close()


@contextmanager
def map_database_errors() -> Generator[None]:
    try:
        yield
    except DBAPIError as error:
        raise _map_error(error.orig, broken=error.connection_invalidated) from error
    except PoolTimeout as error:
        raise StoreBusy(f"{StoreBusy.__doc__} (no connection of the pool became free)") from error
    except Exception as error:
        # Errors of the drivers from statements that bypass SQLAlchemy; all others pass unchanged.
        if type(error).__module__.partition(".")[0] not in ("sqlite3", "psycopg"):
            raise
        raise _map_error(error, broken=False) from error


_SQLITE_UNAVAILABLE_MESSAGES = ("unable to open", "disk I/O", "malformed")
_UNWRITABLE_ERRORS: dict[str, type[StoreUnavailable]] = {
    "ReadOnlySqlTransaction": StoreReadOnly,
    "attempt to write a readonly database": StoreReadOnly,
    "DiskFull": StoreFull,
    "database or disk is full": StoreFull,
}
"""Errors of a database that can be read but not written: class names of psycopg, messages of SQLite."""
_TRANSIENT_ERRORS = ("DeadlockDetected", "SerializationFailure", "LockNotAvailable", "QueryCanceled")


def _map_error(error: BaseException | None, *, broken: bool) -> QuireError:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    driver = type(error).__module__.partition(".")[0]
    if driver == "psycopg" and "DataError" in kinds:
        return InvalidEntry(f"The database cannot store this text or number: {error}.")
    for name in (*kinds, str(error)):
        if name in _UNWRITABLE_ERRORS:
            kind = _UNWRITABLE_ERRORS[name]
            return kind(f"{kind.__doc__} ({error})")
    if kinds.intersection(_TRANSIENT_ERRORS) or (driver == "sqlite3" and "locked" in str(error)):
        return StoreBusy(f"{StoreBusy.__doc__} ({error})")
    is_rejected = driver == "sqlite3" and not any(text in str(error) for text in _SQLITE_UNAVAILABLE_MESSAGES)
    if broken or (kinds & {"OperationalError", "InterfaceError"} and not is_rejected):
        return StoreUnavailable(f"{StoreUnavailable.__doc__} ({error})")
    return StoreError(f"The database rejected a statement: {error}")
