"""SQLite: one writer thread, several reader threads, and short inline reads on the caller's thread."""

import asyncio
import math
import random
import shutil
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from sqlalchemy import URL, Connection, Engine, create_engine, delete, event, insert
from sqlalchemy.pool import QueuePool, StaticPool

from quire.db import migrate
from quire.db.column_types import set_encrypts
from quire.db.database import (
    INLINE_READ_FLAG,
    InlineReadTooLong,
    LossCallback,
    PoolStats,
    T,
    TransactionOptions,
    Work,
    map_database_errors,
)
from quire.db.database_url import create_private_files
from quire.db.notifications import ConversationKey, Notifications, take_changes
from quire.db.raw_sql import execute_sql, get_driver
from quire.db.schema import calibrations
from quire.errors import StoreFull, StoreUnavailable

BUSY_TIMEOUT_SECONDS = 60
"""Maximum wait for the write lock of another process."""

CHECKPOINT_WAIT_SECONDS = 10.0
"""Maximum wait of a purge for readers whose snapshots prevent the checkpoint. Later writes then retry it."""

MIN_FREE_BYTES = 4_000_000
"""Free bytes of the disk below which no model is called: a reply needs room in the file and in the write-ahead log."""
WRITE_PROOF_SECONDS = 1.0
"""Seconds for which a write shows that the next one succeeds too, as long as the disk has room."""
HEALTH_PROOF_SECONDS = 60.0
"""The same for health checks, which must not write all the time."""
PROBE_BYTES = 64_000
"""Bytes that a test of the file writes, and removes in the same transaction."""

_CHECKPOINT_RETRY_SECONDS = 0.01
_READER_THREADS = 4
# synchronous FULL: an acknowledged append survives a power cut. secure_delete: purged content is overwritten.
_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "secure_delete = ON",
    "foreign_keys = ON",
    "cache_size = -8000",
)
_BEGIN_WRITE = "BEGIN IMMEDIATE"


class SqliteDatabase:
    """One thread and connection for writes. Several for reads, which never block in WAL mode.

    Inline reads run on the caller's thread, because a round trip to another thread takes longer than the read.
    """

    def __init__(self, writer: Engine, reader: Engine, inline: Engine | None) -> None:
        self._writer, self._reader, self._inline_engine = writer, reader, inline
        self.notifications = Notifications()
        self._inline_connection: Connection | None = None
        self._write_connection: Connection | None = None
        """Of the write thread, which opens it. One from the pool for each write would take a fifth of an append."""
        self._needs_checkpoint = False
        self._is_closed = False
        name = writer.url.database
        self._folder = Path(name).absolute().parent if name not in (None, "", ":memory:") else None
        self._written_at = -math.inf
        """Time of the last write, if none has failed since because the file cannot be written."""
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="quire-write")
        self._read_threads = (
            self._write_thread
            if writer is reader
            else ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="quire-read")
        )

    @classmethod
    async def open(cls, url: URL, *, encrypts: bool = False) -> "SqliteDatabase":
        if url.database in (None, "", ":memory:"):
            writer = reader = _build_engine(url, begin=_BEGIN_WRITE, poolclass=StaticPool)
            inline = None
        else:
            await asyncio.to_thread(create_private_files, url)
            writer = _build_engine(url, begin=_BEGIN_WRITE, pool_size=1, max_overflow=0)
            reader = _build_engine(url, begin="BEGIN", pool_size=_READER_THREADS, max_overflow=0)
            inline = _build_engine(url, begin=None, pool_size=1, max_overflow=0)
        for engine in (writer, reader, inline):
            if engine is not None:
                set_encrypts(engine.dialect, value=encrypts)
        database = cls(writer, reader, inline)

        def migrate_if_needed(connection: Connection) -> None:
            if migrate.needs_upgrade(connection):
                migrate.run_migrations(connection)

        try:
            await database.write(migrate_if_needed, TransactionOptions(tenant=""))
        except BaseException:
            await database.close()
            raise
        return database

    async def read(self, work: Work[T], options: TransactionOptions) -> T:
        self._check_open()
        if options.inline and self._inline_engine is not None:
            # Without a transaction: each statement sees what is committed when it starts.
            try:
                with map_database_errors():
                    if self._inline_connection is None:
                        self._inline_connection = self._inline_engine.connect()
                        self._inline_connection.info[INLINE_READ_FLAG] = True
                    return work(self._inline_connection)
            except InlineReadTooLong:
                pass

        def run() -> T:
            with map_database_errors(), self._reader.begin() as connection:
                return _run_work(connection, work)[0]

        return await asyncio.get_running_loop().run_in_executor(self._read_threads, run)

    async def write(self, work: Work[T], options: TransactionOptions) -> T:
        del options
        self._check_open()

        def run() -> tuple[T, set[ConversationKey]]:
            try:
                with map_database_errors():
                    connection = self._open_write_connection()
                    with connection.begin():
                        found = _run_work(connection, work)
            except StoreUnavailable:
                self._written_at = -math.inf
                raise
            self._written_at = time.monotonic()
            return found

        result, changes = await asyncio.get_running_loop().run_in_executor(self._write_thread, run)
        self.notifications.announce_changes(changes)
        if self._needs_checkpoint:
            await self._try_checkpoint()
        return result

    async def check_writable(self, *, max_age_seconds: float) -> None:
        await self._prove_write(max_age_seconds=max(max_age_seconds, HEALTH_PROOF_SECONDS))

    async def check_recordable(self) -> None:
        await self._prove_write(max_age_seconds=WRITE_PROOF_SECONDS)

    async def _prove_write(self, *, max_age_seconds: float) -> None:
        """Raises `StoreUnavailable` unless the disk has room, and a write succeeded lately or does now."""
        self._check_open()
        if self._folder is None:
            return
        if shutil.disk_usage(self._folder).free < MIN_FREE_BYTES:
            raise StoreFull(f"The disk of {self._folder} has less than {MIN_FREE_BYTES:,} bytes left; free some.")
        if time.monotonic() - self._written_at > max_age_seconds:
            await self.write(_write_probe, TransactionOptions(tenant=""))

    def on_connection_loss(self, callback: LossCallback) -> None:
        """Does nothing: there is no connection to lose."""

    def get_pool_stats(self) -> PoolStats:
        readers, writer = cast(Any, self._reader.pool), self._write_connection
        is_writing = writer is not None and writer.in_transaction()
        in_use, idle = (readers.checkedout(), readers.checkedin()) if isinstance(readers, QueuePool) else (0, 0)
        return PoolStats(in_use + is_writing, idle + (writer is not None and not is_writing))

    async def scrub(self) -> None:
        """Checkpoints the write-ahead log, which retains old pages until then.

        A reader with an older snapshot prevents that. This waits for it up to `CHECKPOINT_WAIT_SECONDS`, without
        blocking other writes. After that every write tries again, and closing the last connection checkpoints too.
        """
        self._needs_checkpoint = True
        deadline = time.monotonic() + CHECKPOINT_WAIT_SECONDS
        # Polling, because readers may be in other processes.
        while not await self._try_checkpoint() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_CHECKPOINT_RETRY_SECONDS)

    async def _try_checkpoint(self) -> bool:
        """Moves the write-ahead log into the database file and truncates it. Returns whether no reader prevented it."""

        def checkpoint() -> bool:
            with map_database_errors():
                driver = get_driver(self._open_write_connection())
                try:
                    [is_busy, *_] = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error):
                        raise
                    return False
                return not is_busy

        is_complete = await asyncio.get_running_loop().run_in_executor(self._write_thread, checkpoint)
        if is_complete:
            self._needs_checkpoint = False
        return is_complete

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("The store is closed; open it again.")

    def _open_write_connection(self) -> Connection:
        if self._write_connection is None:
            self._write_connection = self._writer.connect()
        return self._write_connection

    async def close(self) -> None:
        self._is_closed = True
        for threads in {self._write_thread, self._read_threads}:
            await asyncio.to_thread(threads.shutdown)
        for connection in (self._inline_connection, self._write_connection):
            if connection is not None:
                connection.close()
        for engine in {self._writer, self._reader, self._inline_engine} - {None}:
            cast(Engine, engine).dispose()


def _write_probe(connection: Connection) -> None:
    """Writes pages of the file and of the write-ahead log, as a reply does: removed content is overwritten."""
    row = {"tenant": "", "model": "", "calibration": " " * PROBE_BYTES, "row_digest": b""}
    connection.execute(insert(calibrations), row)
    connection.execute(delete(calibrations).where(calibrations.c.tenant == "", calibrations.c.model == ""))


def _run_work(connection: Connection, work: Work[T]) -> tuple[T, set[ConversationKey]]:
    """Runs the work of a transaction. Returns its result, and the conversations that it changed."""
    take_changes(connection)
    return work(connection), take_changes(connection)


def _build_engine(url: URL, *, begin: str | None, **pool: Any) -> Engine:
    engine = create_engine(
        url.set(drivername="sqlite+pysqlite"),
        connect_args={"check_same_thread": False, "isolation_level": None, "timeout": BUSY_TIMEOUT_SECONDS},
        **pool,
    )

    def on_connect(connection: Any, _record: object) -> None:
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        if begin == _BEGIN_WRITE:
            connection.execute("PRAGMA busy_timeout = 0")

    def on_begin(connection: Connection) -> None:
        if begin == _BEGIN_WRITE:
            _acquire_write_lock(connection)
        elif begin is not None:
            execute_sql(connection, begin)

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)
    return engine


def _acquire_write_lock(connection: Connection) -> None:
    """Polls for the write lock every 1 to 3 ms: SQLite's own backoff grows to 100 ms and starves a writer."""
    deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
    while True:
        try:
            return execute_sql(connection, _BEGIN_WRITE)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.003))  # noqa: S311 (jitter)
