"""`Database` protocol: read and write transactions, short inline reads, and instrumentation."""

import time
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, TypeVar

from sqlalchemy import Connection

from quire.errors import StoreError

T = TypeVar("T")
Work = Callable[[Connection], T]

INLINE_READ_FLAG = "quire inline read"
"""Key in `Connection.info` that marks the connection of inline reads."""

_MAX_INLINE_ROWS = 1_000
"""Maximum rows of a statement in an inline read; a longer one moves to a thread."""


class PoolStats(NamedTuple):
    """Current number of connections in the pool."""

    in_use: int
    idle: int


class Database(Protocol):
    async def read(self, work: Work[T], *, tenant: str, inline: bool = False) -> T:
        """Runs `work` on a consistent snapshot; with `inline`, each statement may see newer commits."""
        ...

    async def write(self, work: Work[T], *, tenant: str) -> T:
        """Runs `work` in a transaction, which is rolled back if `work` raises."""
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


TransactionObserver = Callable[[Literal["read", "write"], float, StoreError | None], None]
"""Called after every transaction with its kind, its seconds (waiting for a connection included) and its error."""


class ObservedDatabase:
    """A database that reports every transaction to an observer."""

    def __init__(self, database: Database, observer: TransactionObserver) -> None:
        self._database, self._observer = database, observer

    async def read(self, work: Work[T], *, tenant: str, inline: bool = False) -> T:
        started, failure = time.perf_counter(), None
        try:
            return await self._database.read(work, tenant=tenant, inline=inline)
        except StoreError as error:
            failure = error
            raise
        finally:
            self._observer("read", time.perf_counter() - started, failure)

    async def write(self, work: Work[T], *, tenant: str) -> T:
        started, failure = time.perf_counter(), None
        try:
            return await self._database.write(work, tenant=tenant)
        except StoreError as error:
            failure = error
            raise
        finally:
            self._observer("write", time.perf_counter() - started, failure)

    def get_pool_stats(self) -> PoolStats:
        return self._database.get_pool_stats()

    async def scrub(self) -> None:
        await self._database.scrub()

    async def close(self) -> None:
        await self._database.close()
