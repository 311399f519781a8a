"""The driver below SQLAlchemy, for statements that are not SQLAlchemy's."""

import asyncio
from typing import Any

from sqlalchemy import Connection


def yield_to_event_loop(connection: Connection) -> None:
    """Lets other tasks run in the middle of a long transaction: on PostgreSQL, transactions run on the event loop."""
    if connection.dialect.name == "sqlite":
        return
    from sqlalchemy.util import await_only

    await_only(asyncio.sleep(0))


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


def set_local(name: str, value: str) -> str:
    """The statement that sets a value for the transaction on PostgreSQL. It takes no parameters."""
    from psycopg.sql import Literal

    return f"SET LOCAL {name} = {Literal(value).as_string()}"
