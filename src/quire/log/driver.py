"""Statements that never change, straight to the driver: what is done on every request should cost no more.

No column of ours needs converting, and SQLAlchemy's result and row objects would double the time.
"""

from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from typing import Any, cast

from sqlalchemy import Connection
from sqlalchemy.dialects import registry
from sqlalchemy.sql import ClauseElement


def fetch(connection: Connection, statement: ClauseElement, known: Mapping[str, Any]) -> list[Any]:
    """The driver's own rows."""
    with cursor_of(connection) as cursor:
        cursor.execute(compiled(statement, connection.dialect.name), known)
        return cast(list[Any], cursor.fetchall())


def fetch_bytes(connection: Connection, statement: ClauseElement, known: Mapping[str, Any]) -> list[Any]:
    """The same for rows that are mostly bytes: PostgreSQL would otherwise send them as text, twice as long."""
    if connection.dialect.name == "sqlite":
        return fetch(connection, statement, known)
    from sqlalchemy.util import await_only

    # SQLAlchemy's cursor has no way to ask for binary results; this is its driver's, on the same connection.
    cursor = cast(Any, connection.connection.driver_connection).cursor(binary=True)
    try:
        await_only(cursor.execute(compiled(statement, "postgresql"), known))
        return cast(list[Any], await_only(cursor.fetchall()))
    finally:
        await_only(cursor.close())


def execute(connection: Connection, statement: ClauseElement, known: Mapping[str, Any]) -> None:
    """For a statement that gives no rows."""
    with cursor_of(connection) as cursor:
        cursor.execute(compiled(statement, connection.dialect.name), known)


@contextmanager
def together(connection: Connection) -> Generator[None]:
    """Statements that give no rows, on PostgreSQL sent in one go: their errors come when the last of them is sent.

    How many rows each of them touched is not known inside.
    """
    if connection.dialect.name == "sqlite":
        yield
        return
    from psycopg import AsyncPipeline
    from sqlalchemy.util import await_only

    if not AsyncPipeline.is_supported():
        yield
        return
    pipeline = cast(Any, connection.connection.driver_connection).pipeline()
    await_only(pipeline.__aenter__())
    try:
        yield
    except BaseException as error:
        await_only(pipeline.__aexit__(type(error), error, error.__traceback__))
        raise
    await_only(pipeline.__aexit__(None, None, None))


@cache
def compiled(statement: ClauseElement, backend: str) -> str:
    driver = {"sqlite": "sqlite.pysqlite", "postgresql": "postgresql.psycopg"}[backend]
    paramstyle = {"sqlite": "named", "postgresql": "pyformat"}[backend]
    return str(statement.compile(dialect=registry.load(driver)(paramstyle=paramstyle)))


def cursor_of(connection: Connection) -> closing[Any]:
    return closing(connection.connection.cursor())


def send(connection: Connection, statement: str) -> None:
    with cursor_of(connection) as cursor:
        cursor.execute(statement)
