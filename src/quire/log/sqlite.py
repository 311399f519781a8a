"""SQLite: one thread and connection that writes, a few that only read, and brief reads where they are called."""

import asyncio
import random
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import StaticPool

from quire.log import migrate
from quire.log.database import BRIEF, Connections, NotBrief, T, Work
from quire.log.driver import send
from quire.log.foreign import mapped_errors

BUSY_SECONDS = 60
_READERS = 4
# FULL: an acknowledged append outlives a power cut, not only the process. Secure: what is purged is overwritten.
_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "secure_delete = ON",
    "foreign_keys = ON",
    "cache_size = -16000",
)
_WRITE = "BEGIN IMMEDIATE"


class SqliteDatabase:
    """One thread and connection that writes; a few that only read, which in WAL mode wait for nobody.

    Brief reads run where they are called: the hop to a thread and back takes longer than they do.
    """

    def __init__(self, writer: Engine, reader: Engine, here: Engine | None) -> None:
        self._writer, self._reader, self._here = writer, reader, here
        self._brief: Connection | None = None
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="quire-write")
        self._read_threads = (
            self._write_thread if writer is reader else ThreadPoolExecutor(_READERS, thread_name_prefix="quire-read")
        )

    @classmethod
    async def open(cls, url: URL) -> "SqliteDatabase":
        if url.database in (None, "", ":memory:"):
            writer = reader = _sqlite_engine(url, begin=_WRITE, poolclass=StaticPool)
            here = None
        else:
            await asyncio.to_thread(lambda: Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True))
            writer = _sqlite_engine(url, begin=_WRITE, pool_size=1, max_overflow=0)
            reader = _sqlite_engine(url, begin="BEGIN", pool_size=_READERS, max_overflow=0)
            here = _sqlite_engine(url, begin=None, pool_size=1, max_overflow=0)
        database = cls(writer, reader, here)
        try:
            await database.write(_migrate_if_needed, tenant="")
        except BaseException:
            await database.close()
            raise
        return database

    async def read(self, work: Work[T], *, tenant: str, brief: bool = False) -> T:
        if brief and self._here is not None:
            try:
                return self._read_here(self._here, work)
            except NotBrief:
                pass
        return await self._hop(self._read_threads, self._reader, work)

    async def write(self, work: Work[T], *, tenant: str) -> T:
        return await self._hop(self._write_thread, self._writer, work)

    def connections(self) -> Connections:
        pools: list[Any] = [engine.pool for engine in {self._writer, self._reader}]
        busy = sum(pool.checkedout() for pool in pools if hasattr(pool, "checkedout"))
        return Connections(in_use=busy, idle=sum(pool.checkedin() for pool in pools if hasattr(pool, "checkedin")))

    async def scrub(self) -> None:
        """Old pages also stand in the write-ahead log until it is folded into the file."""
        checkpoint = partial(_checkpoint, self._writer)
        await asyncio.get_running_loop().run_in_executor(self._write_thread, checkpoint)

    def _read_here(self, engine: Engine, work: Work[T]) -> T:
        """Without a transaction around them: each statement sees what is committed when it starts."""
        with mapped_errors():
            if self._brief is None:
                self._brief = engine.connect()
                self._brief.info[BRIEF] = True
            return work(self._brief)

    async def _hop(self, threads: ThreadPoolExecutor, engine: Engine, work: Work[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, partial(_in_transaction, engine, work))

    async def close(self) -> None:
        for threads in {self._write_thread, self._read_threads}:
            await asyncio.to_thread(threads.shutdown)
        if self._brief is not None:
            self._brief.close()
        for engine in {self._writer, self._reader, self._here} - {None}:
            cast(Engine, engine).dispose()


def _in_transaction(engine: Engine, work: Work[T]) -> T:
    with mapped_errors(), engine.begin() as connection:
        return work(connection)


def _checkpoint(engine: Engine) -> None:
    with mapped_errors(), closing(engine.raw_connection()) as connection:
        connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _migrate_if_needed(connection: Connection) -> None:
    if migrate.version(connection) != migrate.HEAD:
        migrate.migrate(connection)


def _sqlite_engine(url: URL, *, begin: str | None, **pool: Any) -> Engine:
    engine = create_engine(
        url.set(drivername="sqlite+pysqlite"),
        connect_args={"check_same_thread": False, "isolation_level": None, "timeout": BUSY_SECONDS},
        **pool,
    )

    def on_connect(connection: Any, _record: object) -> None:
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        if begin == _WRITE:
            connection.execute("PRAGMA busy_timeout = 0")

    def on_begin(connection: Connection) -> None:
        if begin == _WRITE:
            _wait_for_turn(connection)
        elif begin is not None:
            send(connection, begin)

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)
    return engine


def _wait_for_turn(connection: Connection) -> None:
    """Asks for the write lock every few milliseconds: SQLite's own waits grow to a tenth of a second and starve."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return send(connection, _WRITE)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.003))  # noqa: S311 (only to keep writers out of step)
