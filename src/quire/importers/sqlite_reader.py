"""Reads SQLite databases of other programs, which may be in use by them, or made by someone else.

Opened read-only. Only ordinary tables are read, since a view can run any query; values and the work of each query are
bounded.
"""

import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from quire.importers.json_lines import MAX_LINE_BYTES

MAX_CELL_BYTES = MAX_LINE_BYTES
"""Maximum size of one value."""
MAX_QUERY_STEPS = 2_000_000_000
"""Maximum steps of SQLite's virtual machine for one database: minutes of work, and no query without end."""
MAX_TABLES = 1_000
"""Tables of a database that are looked at."""
_PROGRESS_STEPS = 1_000_000
SQLITE_HEADER = b"SQLite format 3\x00"


class SqliteReader:
    """A database, open for reading."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'")
        self._tables = frozenset(name for (name,) in rows.fetchmany(MAX_TABLES))

    def has_tables(self, *names: str) -> bool:
        return self._tables.issuperset(names)

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> Iterator[dict[str, Any]]:
        """Rows as dicts, read one at a time."""
        with closing(self._connection.execute(sql, parameters)) as cursor:
            names = [column[0] for column in cursor.description]
            for row in cursor:
                yield dict(zip(names, row, strict=True))


@contextmanager
def open_sqlite(path: Path) -> Generator[SqliteReader]:
    """Opens a database; raises `sqlite3.Error` or `OSError` if it is none."""
    with path.open("rb") as stream:
        if stream.read(len(SQLITE_HEADER)) != SQLITE_HEADER:
            raise sqlite3.DatabaseError("it is not a SQLite database")
    with closing(
        sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    ) as connection:
        connection.text_factory = _decode
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CELL_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.set_progress_handler(_StepLimit().count, _PROGRESS_STEPS)
        yield SqliteReader(connection)


def _decode(data: bytes) -> str:
    return data.decode(errors="replace")


class _StepLimit:
    def __init__(self) -> None:
        self._steps = 0

    def count(self) -> bool:
        """Whether SQLite should stop."""
        self._steps += _PROGRESS_STEPS
        return self._steps > MAX_QUERY_STEPS
