"""How work reaches a connection, whichever database it is, and how a read says that it is not a brief one."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy import Connection

T = TypeVar("T")
Work = Callable[[Connection], T]

BRIEF = "quire brief"
_BRIEF_ROWS = 1_000


class Database(Protocol):
    async def read(self, work: Work[T], *, tenant: str, brief: bool = False) -> T:
        """Runs `work`, on one consistent state of the database unless it is brief: then it may see appends come in."""
        ...

    async def write(self, work: Work[T], *, tenant: str) -> T:
        """Runs `work` in a transaction: all of it is kept, or, if it raises, nothing."""
        ...

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
