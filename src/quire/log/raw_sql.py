"""Executes fixed statements directly on the driver's cursor, for the hot path of every request.

No column needs type conversion, and SQLAlchemy's result and row objects would double the time.
"""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from typing import Any, cast

from sqlalchemy import Connection
from sqlalchemy.dialects import registry
from sqlalchemy.sql import ClauseElement

FETCH_ROWS = 500
"""Rows that are converted before other tasks run."""


def fetch(connection: Connection, statement: ClauseElement, params: Mapping[str, Any]) -> list[Any]:
    """Runs a query and returns the driver's rows."""
    if connection.dialect.name != "sqlite":
        return _fetch_postgres(connection, statement, params, binary=False)
    with open_cursor(connection) as cursor:
        cursor.execute(compile_sql(statement, "sqlite"), params)
        return cast(list[Any], cursor.fetchall())


def fetch_binary(connection: Connection, statement: ClauseElement, params: Mapping[str, Any]) -> list[Any]:
    """Like `fetch`, for rows that are mostly bytes: PostgreSQL would otherwise send them as hex text, twice as long."""
    if connection.dialect.name == "sqlite":
        return fetch(connection, statement, params)
    return _fetch_postgres(connection, statement, params, binary=True)


def _fetch_postgres(
    connection: Connection, statement: ClauseElement, params: Mapping[str, Any], *, binary: bool
) -> list[Any]:
    from sqlalchemy.util import await_only

    # SQLAlchemy's cursor converts all rows at once and cannot request binary results; this is the driver's own cursor
    # on the same connection.
    cursor = cast(Any, connection.connection.driver_connection).cursor(binary=binary)
    try:
        await_only(cursor.execute(compile_sql(statement, "postgresql"), params))
        rows: list[Any] = await_only(cursor.fetchmany(FETCH_ROWS))
        while len(rows) % FETCH_ROWS == 0 and (more := await_only(cursor.fetchmany(FETCH_ROWS))):
            rows += more
            yield_to_event_loop(connection)
        return rows
    finally:
        await_only(cursor.close())


def yield_to_event_loop(connection: Connection) -> None:
    """Lets other tasks run in the middle of a long transaction: on PostgreSQL, transactions run on the event loop."""
    if connection.dialect.name == "sqlite":
        return
    from sqlalchemy.util import await_only

    await_only(asyncio.sleep(0))


def execute(connection: Connection, statement: ClauseElement, params: Mapping[str, Any]) -> None:
    """Runs a statement that returns no rows."""
    with open_cursor(connection) as cursor:
        cursor.execute(compile_sql(statement, connection.dialect.name), params)


@contextmanager
def pipeline(connection: Connection) -> Generator[None]:
    """Sends the statements of the block in one round trip on PostgreSQL (pipeline mode); they must return no rows.

    Errors are raised at the end of the block, and row counts are unknown inside it.
    """
    if connection.dialect.name == "sqlite":
        yield
        return
    from psycopg import AsyncPipeline
    from sqlalchemy.util import await_only

    if not AsyncPipeline.is_supported():
        yield
        return
    driver_pipeline = cast(Any, connection.connection.driver_connection).pipeline()
    await_only(driver_pipeline.__aenter__())
    try:
        yield
    except BaseException as error:
        await_only(driver_pipeline.__aexit__(type(error), error, error.__traceback__))
        raise
    await_only(driver_pipeline.__aexit__(None, None, None))


@cache
def compile_sql(statement: ClauseElement, backend: str) -> str:
    driver = {"sqlite": "sqlite.pysqlite", "postgresql": "postgresql.psycopg"}[backend]
    paramstyle = {"sqlite": "named", "postgresql": "pyformat"}[backend]
    return str(statement.compile(dialect=registry.load(driver)(paramstyle=paramstyle)))


def open_cursor(connection: Connection) -> closing[Any]:
    return closing(connection.connection.cursor())


def execute_text(connection: Connection, statement: str) -> None:
    with open_cursor(connection) as cursor:
        cursor.execute(statement)
