"""SQL that differs between SQLite and PostgreSQL: upserts, bulk inserts, path look-up, pgvector; and opening a URL."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Insert, Table

from quire.db.column_types import Sealed, current_cipher
from quire.db.database import Database, check_inline_rows
from quire.db.database_url import parse_database_url
from quire.db.raw_sql import execute_sql, set_local, yield_to_event_loop
from quire.errors import StoreError
from quire.model.base import replace_lone_surrogates

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
    from sqlalchemy.dialects.sqlite import Insert as SqliteInsert

PathMatch = tuple[int, str, int, int]
"""Index in the list of paths, conversation, branch, seq."""

MAX_INSERT_ROWS = 200
"""Maximum rows of one statement: the driver encodes them on the event loop."""


async def open_database(url: str, *, listen_url: str | None = None, encrypts: bool = False) -> Database:
    """Opens the database at a URL. With `encrypts`, tenants may be encrypted: see `quire.db.column_types`."""
    parsed = parse_database_url(url)
    match parsed.get_backend_name():
        # Imported here so that a command loads only the driver it needs and starts faster.
        case "sqlite":
            from quire.db.sqlite import SqliteDatabase

            return await SqliteDatabase.open(parsed, encrypts=encrypts)
        case "postgresql":
            from quire.db.postgres import PostgresDatabase

            listen_at = parse_database_url(listen_url) if listen_url is not None else None
            return await PostgresDatabase.open(parsed, listen_url=listen_at, encrypts=encrypts)
        case other:
            raise StoreError(f"Quire stores its log in SQLite or PostgreSQL, not in {other!r}; check the database URL.")


def sanitize_text(text: str) -> str:
    """Replaces what a text column cannot store: lone surrogates, and NUL, which PostgreSQL alone rejects."""
    return replace_lone_surrogates(text.replace("\x00", "\ufffd"))


def allow_key_lookup(connection: Connection, key_id: str) -> None:
    """Lets this transaction see the key with this id, whose tenant is not known yet (row-level security)."""
    if connection.dialect.name == "postgresql":
        execute_sql(connection, set_local("quire.key_id", key_id))


def insert_or_ignore(connection: Connection, table: Table) -> Insert:
    """INSERT that skips rows whose key exists (ON CONFLICT DO NOTHING)."""
    return _insert(table, connection.dialect.name).on_conflict_do_nothing()


def _insert(table: Table, backend: str) -> "PostgresInsert | SqliteInsert":
    """The dialect's own INSERT, which supports ON CONFLICT."""
    if backend == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert
    return insert(table)


def upsert(
    connection: Connection, table: Table, *, replace: Sequence[str] = (), increment: Sequence[str] = ()
) -> Insert:
    """INSERT that, if the key exists, replaces some columns and adds to others."""
    return _upsert(table, connection.dialect.name, tuple(replace), tuple(increment))


@cache
def _upsert(table: Table, backend: str, replace: tuple[str, ...], increment: tuple[str, ...]) -> Insert:
    key = [column.name for column in table.primary_key]
    new = _insert(table, backend)
    changes = {name: new.excluded[name] for name in replace}
    sums = {name: table.c[name] + new.excluded[name] for name in increment}
    return new.on_conflict_do_update(index_elements=key, set_=changes | sums)


def insert_rows(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, ignore_existing: bool = False
) -> int:
    """Inserts many rows, all with the columns of the first; returns the number of inserted rows.

    With `ignore_existing`, rows whose key exists are skipped.
    """
    names = tuple(rows[0])
    suffix = " ON CONFLICT DO NOTHING" if ignore_existing else ""
    return _insert_values(connection, table, names, [tuple([row[name] for name in names]) for row in rows], suffix)


def insert_tuples(
    connection: Connection, table: Table, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Inserts many rows like `insert_rows`, each given as the values of these columns: without a dictionary per row."""
    _insert_values(connection, table, names, rows, "")


def append_bytes(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], column: str) -> None:
    """Inserts many rows. Where the key exists, appends the bytes of this column to the stored ones."""
    key = ", ".join(each.name for each in table.primary_key)
    concatenated = f"{table.name}.{column} || excluded.{column}"
    if connection.dialect.name == "sqlite":
        # In SQLite `||` of two blobs returns TEXT with the same bytes.
        concatenated = f"CAST({concatenated} AS BLOB)"
    names = tuple(rows[0])
    suffix = f" ON CONFLICT ({key}) DO UPDATE SET {column} = {concatenated}"
    _insert_values(connection, table, names, [tuple([row[name] for name in names]) for row in rows], suffix)


def _insert_values(
    connection: Connection, table: Table, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]], suffix: str
) -> int:
    """Inserts rows as `INSERT … VALUES`, which a distributed PostgreSQL routes to the shard of each row."""
    if (cipher := current_cipher.get()) is not None:
        sealed = [table.c[name].type for name in names]
        seals = [each.seal if isinstance(each, Sealed) else None for each in sealed]
        rows = [
            tuple([seal(cipher, value) if seal and value else value for seal, value in zip(seals, row, strict=True)])
            for row in rows
        ]
    is_sqlite = connection.dialect.name == "sqlite"
    values = f"({', '.join('?' if is_sqlite else '%s' for _ in names)})"
    statement = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES "  # noqa: S608 (our names)
    if is_sqlite:
        with closing(connection.connection.cursor()) as cursor:
            cursor.executemany(f"{statement}{values}{suffix}", rows)
            return cursor.rowcount
    inserted = 0
    for start in range(0, len(rows), MAX_INSERT_ROWS):
        if start:
            yield_to_event_loop(connection)
        some = rows[start : start + MAX_INSERT_ROWS]
        several = statement + ", ".join([values] * len(some)) + suffix
        inserted += execute_sql(connection, several, [value for row in some for value in row]).rowcount
    return inserted


def find_longest_path_sqlite(
    connection: Connection,
    candidates: Sequence[bytes],
    *,
    tenant: str,
    conversation: str | None = None,
    among: Sequence[str] | None = None,
) -> PathMatch | None:
    """Probes from the longest path down: in-process a probe costs microseconds, and the first hit is the result.

    `among` lists the conversations to search.
    """
    check_inline_rows(connection, len(candidates))
    condition = "" if conversation is None else "AND conversation = :conversation"
    condition = condition if among is None else "AND conversation IN (SELECT value FROM json_each(:among))"
    probe = _PROBE.format(condition=condition)
    known = {"tenant": tenant, "conversation": conversation, "among": json.dumps(among)}
    for index in range(len(candidates) - 1, -1, -1):
        row = execute_sql(connection, probe, {**known, "path": candidates[index]}).fetchone()
        if row is not None:
            return (index, *row)
    return None


_PROBE = """
    SELECT conversation, branch, seq FROM quire_paths WHERE tenant = :tenant AND path = :path {condition}
    ORDER BY conversation DESC, branch DESC LIMIT 1
"""
