"""Executes fixed statements directly on the driver's cursor, for the hot path of every request.

No column needs type conversion, except of encrypted tenants, and SQLAlchemy's result and row objects would double the
time.

A statement batch is the writes of a transaction that PostgreSQL executes as one statement. Each statement costs the
driver and the server about as much as the row that it writes, and a turn writes about ten. As data-modifying common
table expressions they are one statement, in one round trip. SQLite executes them one by one.
"""

import asyncio
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache, lru_cache
from itertools import chain, zip_longest
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, cast

from sqlalchemy import Connection
from sqlalchemy.dialects import registry
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import Compiled

from quire.db.column_types import Sealed, TenantCipher, current_cipher
from quire.db.database import fetch_all

_BATCH_KEY = "quire statement batch"
"""Key in `Connection.info` of the statements of an open batch."""
_UNREAD_KEY = "quire unread write"
"""Key in `Connection.info` of a connection whose statements are all executed later."""
_PARAMETER = re.compile(r"%\((\w+)\)s")
MAX_COMBINED_STATEMENTS = 1_000
"""Size of the LRU cache of combined statements."""


class Statement(NamedTuple):
    sql: str
    """With named parameters of psycopg."""
    params: Mapping[str, Any]
    is_guard: bool = False
    """Whether the batch fails unless the statement returns a row."""


@contextmanager
def batch_statements(connection: Connection) -> Generator[None]:
    """Executes the statements of the block at its end. None of them returns rows or changes a row of another one.

    Row counts are unknown, and errors are raised at the end of the block. A block within another is a part of it.
    """
    if connection.dialect.name == "sqlite" or _BATCH_KEY in connection.info:
        yield
        return
    statements = connection.info[_BATCH_KEY] = list[Statement]()
    try:
        yield
    finally:
        del connection.info[_BATCH_KEY]
    if not statements:
        return
    from psycopg import AsyncRawCursor
    from sqlalchemy.util import await_only

    # The driver's own cursor: its statement has numbered parameters, which need no conversion.
    cursor = AsyncRawCursor(cast(Any, connection.connection.driver_connection))
    await_only(cursor.execute(*combine_statements(statements)))


def is_unread(connection: Connection) -> bool:
    """Whether all statements are executed later, without a transaction that could be read in: few rows."""
    return _UNREAD_KEY in connection.info


class UnreadConnection:
    """Takes the place of a connection in a write to PostgreSQL that cannot read: it collects the statements."""

    dialect: ClassVar[Any] = SimpleNamespace(name="postgresql")

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.info: dict[str, Any] = {_BATCH_KEY: self.statements, _UNREAD_KEY: True}


class CombinedStatement(NamedTuple):
    sql: bytes
    parameters: tuple[tuple[int, str], ...]
    """Statement and name of the parameters $1, $2 and so on."""


def combine_statements(statements: Sequence[Statement]) -> tuple[bytes, list[Any]]:
    """Makes one statement of several, which PostgreSQL executes in their order, with its parameters.

    It divides by zero if a guard returns no row. Then none of them has an effect."""
    guard = next((index for index, each in enumerate(statements) if each.is_guard), None)
    combined = _combine_sql(tuple([each.sql for each in statements]), guard)
    return combined.sql, [statements[index].params[name] for index, name in combined.parameters]


@lru_cache(maxsize=MAX_COMBINED_STATEMENTS)
def _combine_sql(statements: tuple[str, ...], guard: int | None) -> CombinedStatement:
    parameters: dict[tuple[int, str], int] = {}

    def number_parameters(index: int, sql: str) -> str:
        return _PARAMETER.sub(
            lambda match: f"${parameters.setdefault((index, match[1]), len(parameters) + 1)}", sql
        ).replace("%%", "%")

    parts = [f"s{index} AS ({number_parameters(index, sql)})" for index, sql in enumerate(statements)]
    # PostgreSQL runs expressions that nothing refers to from the last to the first. Rows should be locked in the same
    # order as in other transactions, which would otherwise deadlock more often.
    # What the query refers to runs first, so that the guard locks its row before anything else is written.
    query = "SELECT 1" if guard is None else f"SELECT 1 / (SELECT count(*) FROM s{guard})"  # noqa: S608 (a number)
    sql = f"WITH {', '.join(reversed(parts))} {query}"
    return CombinedStatement(sql.encode(), tuple(parameters))


FETCH_ROWS = 500
"""Rows that are converted before other tasks run."""


def fetch(
    connection: Connection, statement: ClauseElement, params: Mapping[str, Any], *, text_column: int | None = None
) -> list[Any]:
    """Runs a query and returns the driver's rows. `text_column` is the one whose texts may be long."""
    cipher = current_cipher.get()
    if cipher is not None:
        params = _seal_parameters(cipher, statement, connection.dialect.name, params)
    if connection.dialect.name != "sqlite":
        return _fetch_postgres(connection, statement, params, binary=False)
    driver = cast(Any, connection.connection.driver_connection)
    cursor = driver.execute(compile_sql(statement, "sqlite"), params)
    rows = cursor.fetchall() if text_column is None else fetch_all(connection, cursor, text_column=text_column)
    return rows if cipher is None else _open_rows(cipher, statement, rows)


def fetch_binary(connection: Connection, statement: ClauseElement, params: Mapping[str, Any]) -> list[Any]:
    """Like `fetch`, for rows that are mostly bytes: PostgreSQL would otherwise send them as hex text, twice as long."""
    if connection.dialect.name == "sqlite":
        return fetch(connection, statement, params)
    if (cipher := current_cipher.get()) is not None:
        params = _seal_parameters(cipher, statement, "postgresql", params)
    return _fetch_postgres(connection, statement, params, binary=True)


def _fetch_postgres(
    connection: Connection, statement: ClauseElement, params: Mapping[str, Any], *, binary: bool
) -> list[Any]:
    from sqlalchemy.util import await_only

    cipher = current_cipher.get()

    async def fetch_rows() -> list[Any]:
        # SQLAlchemy's cursor converts all rows at once and cannot request binary results.
        async with get_driver(connection).cursor(binary=binary) as cursor:
            await cursor.execute(compile_sql(statement, "postgresql"), params)
            rows: list[Any] = []
            while some := await cursor.fetchmany(FETCH_ROWS):
                rows += some if cipher is None else _open_rows(cipher, statement, some)
                if len(some) < FETCH_ROWS:
                    break
                await asyncio.sleep(0)
            return rows

    return await_only(fetch_rows())


def yield_to_event_loop(connection: Connection) -> None:
    """Lets other tasks run in the middle of a long transaction: on PostgreSQL, transactions run on the event loop."""
    if connection.dialect.name == "sqlite" or is_unread(connection):
        return
    from sqlalchemy.util import await_only

    await_only(asyncio.sleep(0))


def execute(
    connection: Connection, statement: ClauseElement, params: Mapping[str, Any], *, is_guard: bool = False
) -> None:
    """Runs a statement that returns no rows, at once or with the open batch. Only there it may be a guard."""
    if (cipher := current_cipher.get()) is not None:
        params = _seal_parameters(cipher, statement, connection.dialect.name, params)
    execute_sql(connection, compile_sql(statement, connection.dialect.name), params, is_guard=is_guard)


def execute_sql(connection: Connection, sql: str, params: Mapping[str, Any], *, is_guard: bool = False) -> int:
    """Runs a statement that returns no rows. Returns the number of changed rows, -1 in a batch."""
    if connection.dialect.name == "sqlite":
        return get_driver(connection).execute(sql, params).rowcount
    batch: list[Statement] | None = connection.info.get(_BATCH_KEY)
    if batch is not None:
        batch.append(Statement(sql, params, is_guard))
        return -1
    from sqlalchemy.util import await_only

    return await_only(get_driver(connection).execute(sql, params)).rowcount


def get_driver(connection: Connection) -> Any:
    """The driver's connection. On PostgreSQL its methods are awaited with `await_only`: without SQLAlchemy's cursor,
    which reads all rows of each result at once."""
    return connection.connection.driver_connection


def compile_sql(statement: ClauseElement, backend: str) -> str:
    return _compile(statement, backend)[0]


@cache
def _compile(statement: ClauseElement, backend: str) -> tuple[str, Compiled]:
    driver = {"sqlite": "sqlite.pysqlite", "postgresql": "postgresql.psycopg"}[backend]
    paramstyle = {"sqlite": "named", "postgresql": "pyformat"}[backend]
    compiled = statement.compile(dialect=registry.load(driver)(paramstyle=paramstyle))
    return str(compiled), compiled


def _seal_parameters(
    cipher: TenantCipher, statement: ClauseElement, backend: str, params: Mapping[str, Any]
) -> Mapping[str, Any]:
    sealed = {
        name: seal(cipher, value)
        for name, seal in _find_sealed_parameters(statement, backend)
        if (value := params[name])
    }
    return {**params, **sealed} if sealed else params


@cache
def _find_sealed_parameters(statement: ClauseElement, backend: str) -> tuple[tuple[str, Any], ...]:
    binds = cast(Any, _compile(statement, backend)[1]).binds
    return tuple((name, bind.type.seal) for name, bind in binds.items() if isinstance(bind.type, Sealed))


def _open_rows(cipher: TenantCipher, statement: ClauseElement, rows: list[Any]) -> list[Any]:
    sealed = _find_sealed_columns(statement)
    if not sealed:
        return rows
    opened: list[Any] = []
    for row in rows:
        values = list(row)
        for index, open_value in sealed:
            if values[index]:
                values[index] = open_value(cipher, values[index])
        opened.append(tuple(values))
    return opened


@cache
def _find_sealed_columns(statement: ClauseElement) -> tuple[tuple[int, Any], ...]:
    types: list[Any] = [column.type for column in cast(Any, statement).selected_columns]
    return tuple((index, each.open) for index, each in enumerate(types) if isinstance(each, Sealed))


def open_cursor(connection: Connection) -> closing[Any]:
    return closing(connection.connection.cursor())


def execute_text(connection: Connection, statements: str) -> Any:
    """Runs statements without parameters, and returns the cursor of their results. On PostgreSQL these may be several,
    in one round trip."""
    if connection.dialect.name == "sqlite":
        return get_driver(connection).execute(statements)
    from sqlalchemy.util import await_only

    return await_only(get_driver(connection).execute(statements))


def compile_with_literals(statement: ClauseElement, params: Mapping[str, Any]) -> str:
    """A statement for PostgreSQL with its values as literals: one with parameters cannot be sent with others."""
    texts_and_names = _split_parameters(statement)
    values = [quote_literal(params[name]) for name in texts_and_names[1::2]]
    return "".join(chain.from_iterable(zip_longest(texts_and_names[::2], values, fillvalue="")))


@cache
def _split_parameters(statement: ClauseElement) -> list[str]:
    """The SQL before, between and after its parameters, with their names in between."""
    return _PARAMETER.split(compile_sql(statement, "postgresql").replace("%%", "%"))


def quote_literal(value: object) -> str:
    """A value as a literal: plain ones at once, as every turn has several. The driver looks up how to write others."""
    if isinstance(value, str) and value.isascii() and value.isalnum():
        return f"'{value}'"
    if type(value) is int and value >= 0:
        return str(value)
    from psycopg.sql import Literal

    return Literal(value).as_string()


def fetch_last(cursor: Any) -> list[Any]:
    """The rows of the last of several statements."""
    from sqlalchemy.util import await_only

    while cursor.nextset():
        pass
    return await_only(cursor.fetchall())
