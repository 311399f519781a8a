"""What the two databases say differently: a few statements, and which of them a URL means."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Insert, Table, bindparam, select, text
from sqlalchemy.engine import make_url

from quire.errors import StoreError
from quire.log.database import Database
from quire.log.driver import cursor_of
from quire.log.schema import paths

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
    from sqlalchemy.dialects.sqlite import Insert as SqliteInsert

Found = tuple[int, str, int, int]
"""Index in the list of paths, conversation, branch, seq."""


async def connect(url: str) -> Database:
    parsed = make_url(url)
    match parsed.get_backend_name():
        # Only what speaks to the one that is opened is imported: a command starts the sooner for it.
        case "sqlite":
            from quire.log.sqlite import SqliteDatabase

            return await SqliteDatabase.open(parsed)
        case "postgresql":
            from quire.log.postgres import PostgresDatabase

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


def show_key(connection: Connection, id: str) -> None:
    """Lets this transaction see the key with this id, whose tenant it does not know yet."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT set_config('quire.key', :id, true)"), {"id": id})


def insert_new(connection: Connection, table: Table) -> Insert:
    """An insert that leaves a row alone that is there already."""
    return _insert(table, connection.dialect.name).on_conflict_do_nothing()


def _insert(table: Table, backend: str) -> "PostgresInsert | SqliteInsert":
    """An insert that may say what is done where the row is there already, which each database words itself."""
    if backend == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert
    return insert(table)


def upsert(connection: Connection, table: Table, *, changing: Sequence[str] = (), adding: Sequence[str] = ()) -> Insert:
    """An insert that, where the row is there already, changes some columns and adds to others."""
    return _upsert(table, connection.dialect.name, tuple(changing), tuple(adding))


@cache
def _upsert(table: Table, backend: str, changing: tuple[str, ...], adding: tuple[str, ...]) -> Insert:
    key = [column.name for column in table.primary_key]
    new = _insert(table, backend)
    changes = {name: new.excluded[name] for name in changing}
    sums = {name: table.c[name] + new.excluded[name] for name in adding}
    return new.on_conflict_do_update(index_elements=key, set_=changes | sums)


def insert_rows(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, where_new: bool = False
) -> int:
    """Inserts many rows in one statement and, on PostgreSQL, one round trip. All have the columns of the first.

    With `where_new`, rows that are there already are left alone. Gives how many were not.
    """
    few = connection.dialect.name == "postgresql" and len(rows) <= FEW
    if few:
        statement = _few_statement(table, tuple(rows[0]), len(rows))
    else:
        statement = _insert_statement(table, tuple(rows[0]), connection.dialect.name)
    if where_new:
        statement = f"{statement} ON CONFLICT DO NOTHING"
    return _send_few(connection, statement, rows) if few else _send_rows(connection, statement, rows)


def append_bytes(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], column: str) -> None:
    """The same; where a row is there already, the bytes in this column grow by those given."""
    key = ", ".join(each.name for each in table.primary_key)
    grown = f"{table.name}.{column} || excluded.{column}"
    if connection.dialect.name == "sqlite":
        # SQLite joins bytes to what it calls text, to the byte.
        grown = f"CAST({grown} AS BLOB)"
    statement = _insert_statement(table, tuple(rows[0]), connection.dialect.name)
    _send_rows(connection, f"{statement} ON CONFLICT ({key}) DO UPDATE SET {column} = {grown}", rows)


def _send_rows(connection: Connection, statement: str, rows: Sequence[Mapping[str, Any]]) -> int:
    with cursor_of(connection) as cursor:
        if connection.dialect.name == "sqlite":
            cursor.executemany(statement, rows)
        else:
            cursor.execute(statement, {name: [row[name] for row in rows] for name in rows[0]})
        return cursor.rowcount


FEW = 4
"""Up to so many rows go value by value: the driver writes arrays of JSON letter by letter."""


def _send_few(connection: Connection, statement: str, rows: Sequence[Mapping[str, Any]]) -> int:
    with cursor_of(connection) as cursor:
        known = {f"{name}_{place}": value for place, row in enumerate(rows) for name, value in row.items()}
        cursor.execute(statement, known)
        return cursor.rowcount


@cache
def _few_statement(table: Table, names: tuple[str, ...], count: int) -> str:
    kinds = {name: _ARRAYS[str(table.c[name].type)].removesuffix("[]") for name in names}
    rows = (", ".join(f"%({name}_{place})s::{kinds[name]}" for name in names) for place in range(count))
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {', '.join(f'({row})' for row in rows)}"  # noqa: S608 (our names)


@cache
def _insert_statement(table: Table, names: tuple[str, ...], backend: str) -> str:
    into = f"INSERT INTO {table.name} ({', '.join(names)})"
    if backend == "sqlite":
        return f"{into} VALUES ({', '.join(f':{name}' for name in names)})"
    arrays = ", ".join(f"%({name})s::{_ARRAYS[str(table.c[name].type)]}" for name in names)
    return f"{into} SELECT * FROM unnest({arrays})"  # noqa: S608 (our names)


_ARRAYS = {"TEXT": "text[]", "BIGINT": "bigint[]", "INTEGER": "integer[]", "BLOB": "bytea[]"}


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
