"""Executes fixed statements directly on the driver's cursor, for the hot path of every request.

No column needs type conversion, and SQLAlchemy's result and row objects would double the time.
"""

import asyncio
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from typing import Any, cast

from sqlalchemy import Connection
from sqlalchemy.dialects import registry
from sqlalchemy.sql import ClauseElement

from quire.log.statement_batch import add_to_batch

FETCH_ROWS = 500
"""Rows that are converted before other tasks run."""


def fetch(connection: Connection, statement: ClauseElement, params: Mapping[str, Any]) -> list[Any]:
    """Runs a query and returns the driver's rows."""
    if connection.dialect.name != "sqlite":
        return _fetch_postgres(connection, statement, params, binary=False)
    driver = cast(Any, connection.connection.driver_connection)
    return driver.execute(compile_sql(statement, "sqlite"), params).fetchall()


def fetch_binary(connection: Connection, statement: ClauseElement, params: Mapping[str, Any]) -> list[Any]:
    """Like `fetch`, for rows that are mostly bytes: PostgreSQL would otherwise send them as hex text, twice as long."""
    if connection.dialect.name == "sqlite":
        return fetch(connection, statement, params)
    return _fetch_postgres(connection, statement, params, binary=True)


def _fetch_postgres(
    connection: Connection, statement: ClauseElement, params: Mapping[str, Any], *, binary: bool
) -> list[Any]:
    from sqlalchemy.util import await_only

    sql = compile_sql(statement, "postgresql")
    return await_only(_fetch_rows(get_driver(connection), sql, params, binary=binary))


async def _fetch_rows(driver: Any, sql: str, params: Mapping[str, Any], *, binary: bool) -> list[Any]:
    # SQLAlchemy's cursor converts all rows at once and cannot request binary results.
    async with driver.cursor(binary=binary) as cursor:
        await cursor.execute(sql, params)
        rows: list[Any] = await cursor.fetchmany(FETCH_ROWS)
        while rows and len(rows) % FETCH_ROWS == 0 and (more := await cursor.fetchmany(FETCH_ROWS)):
            rows += more
            await asyncio.sleep(0)
        return rows


def yield_to_event_loop(connection: Connection) -> None:
    """Lets other tasks run in the middle of a long transaction: on PostgreSQL, transactions run on the event loop."""
    if connection.dialect.name == "sqlite":
        return
    from sqlalchemy.util import await_only

    await_only(asyncio.sleep(0))


def execute(connection: Connection, statement: ClauseElement, params: Mapping[str, Any]) -> None:
    """Runs a statement that returns no rows, at once or with the open batch."""
    execute_sql(connection, compile_sql(statement, connection.dialect.name), params)


def execute_sql(connection: Connection, sql: str, params: Mapping[str, Any]) -> int:
    """Runs a statement that returns no rows; returns the number of changed rows, -1 in a batch."""
    if connection.dialect.name == "sqlite":
        with open_cursor(connection) as cursor:
            cursor.execute(sql, params)
            return cursor.rowcount
    if add_to_batch(connection, sql, params):
        return -1
    from sqlalchemy.util import await_only

    return await_only(get_driver(connection).execute(sql, params)).rowcount


def get_driver(connection: Connection) -> Any:
    """The driver's connection. On PostgreSQL its methods are awaited with `await_only`: without SQLAlchemy's cursor,
    which reads all rows of each result at once."""
    return connection.connection.driver_connection


@cache
def compile_sql(statement: ClauseElement, backend: str) -> str:
    driver = {"sqlite": "sqlite.pysqlite", "postgresql": "postgresql.psycopg"}[backend]
    paramstyle = {"sqlite": "named", "postgresql": "pyformat"}[backend]
    return str(statement.compile(dialect=registry.load(driver)(paramstyle=paramstyle)))


def open_cursor(connection: Connection) -> closing[Any]:
    return closing(connection.connection.cursor())


def execute_text(connection: Connection, statements: str) -> None:
    """Runs statements without parameters; on PostgreSQL these may be several, in one round trip."""
    if connection.dialect.name == "sqlite":
        with open_cursor(connection) as cursor:
            cursor.execute(statements)
        return
    from sqlalchemy.util import await_only

    await_only(get_driver(connection).execute(statements))
