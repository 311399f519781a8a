"""`Database` protocol: read and write transactions, short inline reads, and instrumentation."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol, TypeVar

from sqlalchemy import Connection

from quire.errors import StoreError
from quire.log.notifications import Notifications

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
    """A read of few rows, which may run on the event loop; each of its statements may see newer commits."""
    statement_seconds: float = REQUEST_STATEMENT_SECONDS


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

    async def check_known_outage(self) -> None:
        """Raises `StoreUnavailable` if the database is known to be unavailable; costs nothing while it works."""
        ...

    def on_connection_loss(self, callback: Callable[[], None]) -> None:
        """Calls back when a connection broke. The database may then be another one, or in an earlier state."""
        ...

    def get_pool_stats(self) -> PoolStats: ...

    async def scrub(self) -> None:
        """Removes overwritten content from disk, as far as the database allows."""
        ...

    async def close(self) -> None: ...


class InlineReadTooLong(Exception):
    """The read has too many rows to run inline on the event loop."""


def check_inline_rows(connection: Connection, rows: int) -> None:
    """Raises `InlineReadTooLong` if an inline read is about to fetch too many rows, so that it moves to a thread."""
    if rows > _MAX_INLINE_ROWS and INLINE_READ_FLAG in connection.info:
        raise InlineReadTooLong


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

    async def check_known_outage(self) -> None:
        await self._database.check_known_outage()

    def on_connection_loss(self, callback: Callable[[], None]) -> None:
        self._database.on_connection_loss(callback)

    def get_pool_stats(self) -> PoolStats:
        return self._database.get_pool_stats()

    async def scrub(self) -> None:
        await self._database.scrub()

    async def close(self) -> None:
        await self._database.close()
