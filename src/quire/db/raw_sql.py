"""Executes fixed statements directly on the driver, for the hot path of every request.

No column needs type conversion, except of encrypted tenants, and SQLAlchemy's result and row objects would double the
time.
"""

import asyncio
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from sqlalchemy import Connection
from sqlalchemy.dialects import registry
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import Compiled

from quire.db.column_types import Sealed, TenantCipher, current_cipher
from quire.db.database import fetch_all

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
    if connection.dialect.name == "sqlite":
        return
    from sqlalchemy.util import await_only

    await_only(asyncio.sleep(0))


def execute(connection: Connection, statement: ClauseElement, params: Mapping[str, Any]) -> None:
    """Runs a statement that returns no rows."""
    if (cipher := current_cipher.get()) is not None:
        params = _seal_parameters(cipher, statement, connection.dialect.name, params)
    execute_sql(connection, compile_sql(statement, connection.dialect.name), params)


def execute_sql(connection: Connection, sql: str, params: Any = None) -> Any:
    """Runs a statement. Returns the driver's cursor, whose methods are awaited on PostgreSQL."""
    if connection.dialect.name == "sqlite":
        return get_driver(connection).execute(sql, params or ())
    from sqlalchemy.util import await_only

    return await_only(get_driver(connection).execute(sql, params))


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


def set_local(name: str, value: str) -> str:
    """The statement that sets a value for the transaction on PostgreSQL. It takes no parameters."""
    from psycopg.sql import Literal

    return f"SET LOCAL {name} = {Literal(value).as_string()}"
