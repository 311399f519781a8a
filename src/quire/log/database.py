"""How work reaches a connection, whichever database it is; how a read says that it is not a brief one; who looks on."""

import time
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, TypeVar

from sqlalchemy import Connection

from quire.errors import StoreError

T = TypeVar("T")
Work = Callable[[Connection], T]

BRIEF = "quire brief"
_BRIEF_ROWS = 1_000


class Connections(NamedTuple):
    """How many connections there are at the moment."""

    in_use: int
    idle: int


class Database(Protocol):
    async def read(self, work: Work[T], *, tenant: str, brief: bool = False) -> T:
        """Runs `work`, on one consistent state of the database unless it is brief: then it may see appends come in."""
        ...

    async def write(self, work: Work[T], *, tenant: str) -> T:
        """Runs `work` in a transaction: all of it is kept, or, if it raises, nothing."""
        ...

    def connections(self) -> Connections: ...

    async def scrub(self) -> None:
        """Takes what was overwritten off the disk, as far as a program may."""
        ...

    async def close(self) -> None: ...


class NotBrief(Exception):
    """The read turned out to be too long to run where it was called."""


def expect_rows(connection: Connection, rows: int) -> None:
    """Says how many rows come next, so that a read that was taken for a brief one can move to a thread."""
    if rows > _BRIEF_ROWS and BRIEF in connection.info:
        raise NotBrief


Watcher = Callable[[Literal["read", "write"], float, StoreError | None], None]
"""Told of every transaction: its kind, its seconds, waiting for a connection included, and how it failed."""


class WatchedDatabase:
    """A database whose every transaction somebody is told of."""

    def __init__(self, database: Database, watcher: Watcher) -> None:
        self._database, self._watcher = database, watcher

    async def read(self, work: Work[T], *, tenant: str, brief: bool = False) -> T:
        began, failed = time.perf_counter(), None
        try:
            return await self._database.read(work, tenant=tenant, brief=brief)
        except StoreError as error:
            failed = error
            raise
        finally:
            self._watcher("read", time.perf_counter() - began, failed)

    async def write(self, work: Work[T], *, tenant: str) -> T:
        began, failed = time.perf_counter(), None
        try:
            return await self._database.write(work, tenant=tenant)
        except StoreError as error:
            failed = error
            raise
        finally:
            self._watcher("write", time.perf_counter() - began, failed)

    def connections(self) -> Connections:
        return self._database.connections()

    async def scrub(self) -> None:
        await self._database.scrub()

    async def close(self) -> None:
        await self._database.close()
