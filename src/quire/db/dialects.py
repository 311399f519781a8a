"""SQL that differs between SQLite and PostgreSQL: upserts, bulk inserts, path look-up, pgvector; and opening a URL."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Insert, Table, bindparam, select, text

from quire.db.column_types import Converter, Sealed, current_cipher
from quire.db.database import Database, check_inline_rows
from quire.db.database_url import parse_database_url
from quire.db.raw_sql import execute_sql, fetch, get_driver, is_unread, open_cursor, yield_to_event_loop
from quire.db.schema import paths
from quire.errors import StoreError
from quire.model.base import replace_lone_surrogates

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
    from sqlalchemy.dialects.sqlite import Insert as SqliteInsert

PathMatch = tuple[int, str, int, int]
"""Index in the list of paths, conversation, branch, seq."""

MAX_VALUES_ROWS = 4
"""Maximum rows of a VALUES insert on PostgreSQL, which avoids the driver's slow encoding of JSON in arrays."""
MAX_INSERT_ROWS = 200
"""Maximum rows of one statement: the driver encodes them on the event loop."""

_POSTGRES_ARRAY_TYPES = {
    "TEXT": "text[]",
    "BIGINT": "bigint[]",
    "INTEGER": "integer[]",
    "DOUBLE": "double precision[]",
    "BLOB": "bytea[]",
}


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
        connection.execute(text("SELECT set_config('quire.key_id', :id, true)"), {"id": key_id})


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
    """Inserts many rows, `MAX_INSERT_ROWS` in one statement; returns the number of inserted rows.

    All rows have the columns of the first. With `ignore_existing`, rows whose key exists are skipped.
    """
    rows = _seal_rows(table, rows)
    use_values = connection.dialect.name == "postgresql" and len(rows) <= MAX_VALUES_ROWS
    if use_values:
        statement = _values_statement(table, tuple(rows[0]), len(rows))
    else:
        statement = _insert_statement(table, tuple(rows[0]), connection.dialect.name)
    if ignore_existing:
        statement = f"{statement} ON CONFLICT DO NOTHING"
    if use_values:
        params = {f"{name}_{index}": value for index, row in enumerate(rows) for name, value in row.items()}
        return execute_sql(connection, statement, params)
    inserted = 0
    for start in range(0, len(rows), MAX_INSERT_ROWS):
        if start:
            yield_to_event_loop(connection)
        inserted += _execute_rows(connection, statement, rows[start : start + MAX_INSERT_ROWS])
    return inserted


def insert_tuples(
    connection: Connection, table: Table, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Inserts many rows like `insert_rows`, each given as the values of these columns: without a dictionary per row."""
    backend = connection.dialect.name
    if is_unread(connection) or (backend == "postgresql" and len(rows) <= MAX_VALUES_ROWS):
        insert_rows(connection, table, [dict(zip(names, row, strict=True)) for row in rows])
        return
    if (cipher := current_cipher.get()) is not None:
        sealed = [_find_sealed(table).get(name) for name in names]
        rows = [
            tuple([seal(cipher, value) if seal and value else value for seal, value in zip(sealed, row, strict=True)])
            for row in rows
        ]
    statement = _insert_statement(table, names, backend, by_position=True)
    if backend == "sqlite" and len(rows) == 1:
        get_driver(connection).execute(statement, rows[0])
        return
    for start in range(0, len(rows), MAX_INSERT_ROWS):
        if start:
            yield_to_event_loop(connection)
        some = rows[start : start + MAX_INSERT_ROWS]
        with open_cursor(connection) as cursor:
            if backend == "sqlite":
                cursor.executemany(statement, some)
            else:
                cursor.execute(statement, [list(column) for column in zip(*some, strict=True)])


def append_bytes(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], column: str) -> None:
    """Inserts many rows. Where the key exists, appends the bytes of this column to the stored ones."""
    key = ", ".join(each.name for each in table.primary_key)
    concatenated = f"{table.name}.{column} || excluded.{column}"
    if connection.dialect.name == "sqlite":
        # In SQLite `||` of two blobs returns TEXT with the same bytes.
        concatenated = f"CAST({concatenated} AS BLOB)"
    statement = _insert_statement(table, tuple(rows[0]), connection.dialect.name)
    rows = _seal_rows(table, rows)
    _execute_rows(connection, f"{statement} ON CONFLICT ({key}) DO UPDATE SET {column} = {concatenated}", rows)


def _seal_rows(table: Table, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    cipher = current_cipher.get()
    if cipher is None:
        return rows
    sealed = _find_sealed(table).items()
    return [{**row, **{name: seal(cipher, row[name]) for name, seal in sealed if row.get(name)}} for row in rows]


@cache
def _find_sealed(table: Table) -> dict[str, Converter]:
    return {column.name: column.type.seal for column in table.c if isinstance(column.type, Sealed)}


def _execute_rows(connection: Connection, statement: str, rows: Sequence[Mapping[str, Any]]) -> int:
    if is_unread(connection):
        return execute_sql(connection, statement, {name: [row[name] for row in rows] for name in rows[0]})
    with open_cursor(connection) as cursor:
        if connection.dialect.name == "sqlite":
            cursor.executemany(statement, rows)
        else:
            cursor.execute(statement, {name: [row[name] for row in rows] for name in rows[0]})
        return cursor.rowcount


@cache
def _values_statement(table: Table, names: tuple[str, ...], count: int) -> str:
    types = {name: _POSTGRES_ARRAY_TYPES[str(table.c[name].type)].removesuffix("[]") for name in names}
    rows = (", ".join(f"%({name}_{index})s::{types[name]}" for name in names) for index in range(count))
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {', '.join(f'({row})' for row in rows)}"  # noqa: S608 (our names)


@cache
def _insert_statement(table: Table, names: tuple[str, ...], backend: str, *, by_position: bool = False) -> str:
    """Values are parameters by name, or by position in the order of `names`."""
    into = f"INSERT INTO {table.name} ({', '.join(names)})"
    if backend == "sqlite":
        return f"{into} VALUES ({', '.join('?' if by_position else f':{name}' for name in names)})"
    arrays = ", ".join(
        f"{'%s' if by_position else f'%({name})s'}::{_POSTGRES_ARRAY_TYPES[str(table.c[name].type)]}" for name in names
    )
    return f"{into} SELECT * FROM unnest({arrays})"  # noqa: S608 (our names)


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
    probe = _PATH if conversation is None else _PATH_IN_CONVERSATION
    probe = probe if among is None else _PATH_AMONG
    known = {"tenant": tenant, "conversation": conversation, "among": json.dumps(among)}
    for index in range(len(candidates) - 1, -1, -1):
        if rows := fetch(connection, probe, {**known, "path": candidates[index]}):
            return (index, *rows[0])
    return None


_PATH = (
    select(paths.c.conversation, paths.c.branch, paths.c.seq)
    .where(paths.c.tenant == bindparam("tenant"), paths.c.path == bindparam("path"))
    .order_by(paths.c.conversation.desc(), paths.c.branch.desc())
    .suffix_with("LIMIT 1")
)
_PATH_IN_CONVERSATION = _PATH.where(paths.c.conversation == bindparam("conversation"))
_PATH_AMONG = _PATH.where(paths.c.conversation.in_(text("SELECT value FROM json_each(:among)")))
