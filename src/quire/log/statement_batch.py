"""Statement batches: the writes of a transaction that PostgreSQL executes as one statement.

Each statement costs the driver and the server about as much as the row that it writes, and a turn writes about ten. As
data-modifying common table expressions they are one statement, in one round trip. SQLite executes them one by one.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection

_BATCH_KEY = "quire statement batch"
"""Key in `Connection.info` of the statements of an open batch."""
_PARAMETER = re.compile(r"%\((\w+)\)s")
MAX_COMBINED_STATEMENTS = 1_000
"""Size of the LRU cache of combined statements."""


class _Statement(NamedTuple):
    sql: str
    """With named parameters of psycopg."""
    params: Mapping[str, Any]


@contextmanager
def batch_statements(connection: Connection) -> Generator[None]:
    """Executes the statements of the block at its end. None of them returns rows or changes a row of another one.

    Row counts are unknown, and errors are raised at the end of the block.
    """
    if connection.dialect.name == "sqlite":
        yield
        return
    statements = connection.info[_BATCH_KEY] = list[_Statement]()
    try:
        yield
    finally:
        del connection.info[_BATCH_KEY]
    if statements:
        _execute(connection, statements)


def add_to_batch(connection: Connection, sql: str, params: Mapping[str, Any]) -> bool:
    """Adds a statement to the open batch; False if there is none, so that the caller executes it."""
    statements: list[_Statement] | None = connection.info.get(_BATCH_KEY)
    if statements is None:
        return False
    statements.append(_Statement(sql, params))
    return True


def _execute(connection: Connection, statements: list[_Statement]) -> None:
    from psycopg import AsyncRawCursor
    from sqlalchemy.util import await_only

    combined = combine_statements(tuple([each.sql for each in statements]))
    values = [statements[index].params[name] for index, name in combined.parameters]
    # The driver's own cursor: its statement has numbered parameters, which need no conversion.
    cursor = AsyncRawCursor(cast(Any, connection.connection.driver_connection))
    await_only(cursor.execute(combined.sql, values))


class CombinedStatement(NamedTuple):
    sql: bytes
    parameters: tuple[tuple[int, str], ...]
    """Statement and name of the parameters $1, $2 and so on."""


@lru_cache(maxsize=MAX_COMBINED_STATEMENTS)
def combine_statements(statements: tuple[str, ...]) -> CombinedStatement:
    """Makes one statement of several, which PostgreSQL executes in their order."""
    parameters: dict[tuple[int, str], int] = {}

    def number_parameters(index: int, sql: str) -> str:
        return _PARAMETER.sub(
            lambda match: f"${parameters.setdefault((index, match[1]), len(parameters) + 1)}", sql
        ).replace("%%", "%")

    parts = [f"s{index} AS ({number_parameters(index, sql)})" for index, sql in enumerate(statements)]
    # PostgreSQL runs expressions that nothing refers to from the last to the first. The order of row locks should be
    # that of other transactions, which would otherwise deadlock more often.
    sql = f"WITH {', '.join(reversed(parts))} SELECT 1"
    return CombinedStatement(sql.encode(), tuple(parameters))
