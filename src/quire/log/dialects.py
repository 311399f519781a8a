"""All that differs between SQLite and PostgreSQL: how work reaches a connection, and three statements.

The store hands over functions on a SQLAlchemy `Connection`. SQLite runs each in one hop to a thread, with
one write path; PostgreSQL runs it on psycopg's asynchronous connection, inside a transaction that knows its tenant.
"""

import asyncio
import random
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Insert,
    Table,
    bindparam,
    create_engine,
    event,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, registry, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.pool import StaticPool
from sqlalchemy.sql import ClauseElement

from quire.errors import MissingExtra, StoreError
from quire.log import migrate
from quire.log.foreign import mapped_errors
from quire.log.schema import paths

T = TypeVar("T")
Work = Callable[[Connection], T]
Found = tuple[int, str, int, int]
"""Index in the list of paths, conversation, branch, seq."""

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
_BRIEF = "quire brief"
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


async def connect(url: str) -> Database:
    parsed = make_url(url)
    match parsed.get_backend_name():
        case "sqlite":
            return await SqliteDatabase.open(parsed)
        case "postgresql":
            return await PostgresDatabase.open(parsed)
        case other:
            raise StoreError(f"Quire keeps its log in SQLite or PostgreSQL, not in {other!r}; check the URL.")


def find_longest(
    connection: Connection, candidates: Sequence[bytes], *, tenant: str, conversation: str | None
) -> Found | None:
    """The last of these paths that is stored, in this conversation or else in the newest that has it."""
    postgres = connection.dialect.name == "postgresql"
    find = _find_longest_postgres if postgres else _find_longest_sqlite
    return find(connection, candidates, tenant, conversation)


def insert_new(connection: Connection, table: Table) -> Insert:
    """An insert that leaves a row alone that is there already."""
    postgres = connection.dialect.name == "postgresql"
    return (
        postgresql.insert(table).on_conflict_do_nothing() if postgres else sqlite.insert(table).on_conflict_do_nothing()
    )


def upsert(connection: Connection, table: Table, *, changing: Sequence[str]) -> Insert:
    """An insert that changes these columns of a row that is there already."""
    key = [column.name for column in table.primary_key]
    if connection.dialect.name == "postgresql":
        row = postgresql.insert(table)
        return row.on_conflict_do_update(index_elements=key, set_={name: row.excluded[name] for name in changing})
    new = sqlite.insert(table)
    return new.on_conflict_do_update(index_elements=key, set_={name: new.excluded[name] for name in changing})


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Inserts many rows in one statement and, on PostgreSQL, one round trip."""
    with _cursor(connection) as cursor:
        if connection.dialect.name == "sqlite":
            cursor.executemany(_plain_insert(table), rows)
        else:
            columns = {column.name: [row.get(column.name) for row in rows] for column in table.columns}
            cursor.execute(_unnested_insert(table), columns)


@cache
def _plain_insert(table: Table) -> str:
    return compiled(table.insert(), "sqlite")


@cache
def _unnested_insert(table: Table) -> str:
    types = {column.name: _ARRAYS[str(column.type)] for column in table.columns}
    arrays = ", ".join(f"%({name})s::{array}" for name, array in types.items())
    return f"INSERT INTO {table.name} ({', '.join(types)}) SELECT * FROM unnest({arrays})"  # noqa: S608 (our names)


_ARRAYS = {"TEXT": "text[]", "BIGINT": "bigint[]", "INTEGER": "integer[]", "BLOB": "bytea[]"}


def fetch(connection: Connection, statement: ClauseElement, known: Mapping[str, Any]) -> list[Any]:
    """The driver's own rows for a statement that never changes: what is done on every request should cost no more.

    No column of ours needs converting, and SQLAlchemy's result and row objects would double the time.
    """
    with _cursor(connection) as cursor:
        cursor.execute(compiled(statement, connection.dialect.name), known)
        return cast(list[Any], cursor.fetchall())


def execute(connection: Connection, statement: ClauseElement, known: Mapping[str, Any]) -> None:
    """The same for a statement that gives no rows."""
    with _cursor(connection) as cursor:
        cursor.execute(compiled(statement, connection.dialect.name), known)


@cache
def compiled(statement: ClauseElement, backend: str) -> str:
    driver = {"sqlite": "sqlite.pysqlite", "postgresql": "postgresql.psycopg"}[backend]
    paramstyle = {"sqlite": "named", "postgresql": "pyformat"}[backend]
    return str(statement.compile(dialect=registry.load(driver)(paramstyle=paramstyle)))


def _cursor(connection: Connection) -> closing[Any]:
    return closing(connection.connection.cursor())


def _send(connection: Connection, statement: str) -> None:
    with _cursor(connection) as cursor:
        cursor.execute(statement)


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

    async def scrub(self) -> None:
        """Old pages also stand in the write-ahead log until it is folded into the file."""
        checkpoint = partial(_checkpoint, self._writer)
        await asyncio.get_running_loop().run_in_executor(self._write_thread, checkpoint)

    def _read_here(self, engine: Engine, work: Work[T]) -> T:
        """Without a transaction around them: each statement sees what is committed when it starts."""
        with mapped_errors():
            if self._brief is None:
                self._brief = engine.connect()
                self._brief.info[_BRIEF] = True
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


class NotBrief(Exception):
    """The read turned out to be too long to run where it was called."""


def expect_rows(connection: Connection, rows: int) -> None:
    """Says how many rows come next, so that a read that was taken for a brief one can move to a thread."""
    if rows > _BRIEF_ROWS and _BRIEF in connection.info:
        raise NotBrief


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
            _send(connection, begin)

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)
    return engine


def _wait_for_turn(connection: Connection) -> None:
    """Asks for the write lock every few milliseconds: SQLite's own waits grow to a tenth of a second and starve."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return _send(connection, _WRITE)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.003))  # noqa: S311 (only to keep writers out of step)


def _find_longest_sqlite(
    connection: Connection, candidates: Sequence[bytes], tenant: str, conversation: str | None
) -> Found | None:
    """Probes from the longest on: in the process a probe costs microseconds, and the first hit is the answer."""
    statement = _path_probe(conversation)
    for index in range(len(candidates) - 1, -1, -1):
        known = {"tenant": tenant, "path": candidates[index], "conversation": conversation}
        if row := connection.execute(statement, known).first():
            return (index, *row)
    return None


def _path_probe(conversation: str | None) -> Any:
    probe = select(paths.c.conversation, paths.c.branch, paths.c.seq).where(
        paths.c.tenant == bindparam("tenant"), paths.c.path == bindparam("path")
    )
    if conversation is not None:
        probe = probe.where(paths.c.conversation == bindparam("conversation"))
    return probe.order_by(paths.c.conversation.desc(), paths.c.branch.desc()).limit(1)


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
            pool_size=16,
            max_overflow=16,
            pool_pre_ping=False,
        )
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
        from psycopg.sql import Literal
        from sqlalchemy.util import greenlet_spawn

        opening = f"{begin}; SELECT set_config('quire.tenant', {Literal(tenant).as_string()}, true)"
        with mapped_errors():
            return await greenlet_spawn(self._transact, work, opening)

    def _transact(self, work: Work[T], opening: str) -> T:
        connection = self._begun(opening)
        try:
            result = work(connection)
            _send(connection, "COMMIT")
            return result
        except BaseException:
            if cast(Any, connection.connection.driver_connection).closed:
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
            _send(connection, opening)
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
        _send(connection, opening)
        return connection

    async def scrub(self) -> None:
        """Dead rows go with the server's own vacuum; to force it is the owner's right, not the application's."""

    async def close(self) -> None:
        await self._engine.dispose()


def _find_longest_postgres(
    connection: Connection, candidates: Sequence[bytes], tenant: str, conversation: str | None
) -> Found | None:
    """One statement that walks the list from its end and stops at the first path that is stored."""
    here = "AND stored.conversation = :conversation" if conversation is not None else ""
    statement = text(f"""
        SELECT given.place - 1, found.conversation, found.branch, found.seq
        FROM (
            SELECT path, place FROM unnest(CAST(:candidates AS bytea[])) WITH ORDINALITY AS list (path, place)
            ORDER BY place DESC
        ) AS given
        CROSS JOIN LATERAL (
            SELECT stored.conversation, stored.branch, stored.seq FROM quire_paths AS stored
            WHERE stored.tenant = :tenant AND stored.path = given.path {here}
            ORDER BY stored.conversation DESC, stored.branch DESC LIMIT 1
        ) AS found
        ORDER BY given.place DESC LIMIT 1
    """)  # noqa: S608 (the only inserted text is the constant above)
    known = {"candidates": list(candidates), "tenant": tenant, "conversation": conversation}
    if conversation is None:
        del known["conversation"]
    row = connection.execute(statement, known).first()
    return None if row is None else tuple(row)
