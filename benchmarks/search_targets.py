"""Databases of the search benchmark, each with its own full-text search over the same texts: the bare indexed query.

FTS5 with BM25 on SQLite; a GIN index over `tsvector` on PostgreSQL, with and without `ts_rank`.
"""

import re
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import LiteralString, NamedTuple, Protocol

import psycopg

from infra.postgres import Cluster
from quire.db import migrate

RESULTS: LiteralString = "20"
INDEX_TABLES = ("quire_terms", "quire_search_scopes", "quire_message_segments", "quire_unindexed_branches")
_WORD = re.compile(r"\w+")


class BareIndex(Protocol):
    def load(self, texts: Iterable[str]) -> None: ...

    def finish(self) -> None:
        """Builds what is built after loading."""
        ...

    def search(self, query: str) -> object:
        """The best rows that contain any of the words."""
        ...

    def search_unranked(self, query: str) -> object:
        """Any rows that contain any of the words: the least work an index can do."""
        ...

    def measure_bytes(self) -> int: ...

    def close(self) -> None: ...


class SqliteFts:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = sqlite3.connect(path)
        self._connection.execute("CREATE VIRTUAL TABLE bare USING fts5(body, content='', tokenize='porter unicode61')")

    def load(self, texts: Iterable[str]) -> None:
        self._connection.executemany("INSERT INTO bare (body) VALUES (?)", ((text,) for text in texts))
        self._connection.commit()

    def finish(self) -> None:
        self._connection.execute("INSERT INTO bare (bare) VALUES ('optimize')")
        self._connection.commit()

    def search(self, query: str) -> object:
        return self._run("ORDER BY rank", query)

    def search_unranked(self, query: str) -> object:
        return self._run("", query)

    def _run(self, order: LiteralString, query: str) -> object:
        words = " OR ".join(f'"{word}"' for word in _WORD.findall(query))
        statement = f"SELECT rowid FROM bare WHERE bare MATCH ? {order} LIMIT {RESULTS}"
        return self._connection.execute(statement, (words,)).fetchall()

    def measure_bytes(self) -> int:
        return self._path.stat().st_size

    def close(self) -> None:
        self._connection.close()


class PostgresGin:
    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("CREATE TABLE bare (number bigserial PRIMARY KEY, body tsvector NOT NULL)")

    def load(self, texts: Iterable[str]) -> None:
        rows = list(texts)
        self._connection.execute(
            "INSERT INTO bare (body) SELECT to_tsvector('english', text) FROM unnest(%s::text[]) AS text", (rows,)
        )

    def finish(self) -> None:
        self._connection.execute("CREATE INDEX bare_body ON bare USING gin (body)")
        self._connection.execute("VACUUM ANALYZE bare")

    def search(self, query: str) -> object:
        return self._run("ORDER BY ts_rank(body, words) DESC, number", query)

    def search_unranked(self, query: str) -> object:
        return self._run("", query)

    def _run(self, order: LiteralString, query: str) -> object:
        words = " | ".join(_WORD.findall(query))
        statement = (
            f"SELECT number FROM bare, to_tsquery('english', %s) AS words WHERE body @@ words {order} LIMIT {RESULTS}"
        )
        return self._connection.execute(statement, (words,)).fetchall()

    def measure_bytes(self) -> int:
        row = self._connection.execute("SELECT pg_total_relation_size('bare')").fetchone()
        return row[0] if row else 0

    def close(self) -> None:
        self._connection.close()


class Target(NamedTuple):
    """A database with the rows, and the bare index of the same texts."""

    name: str
    url: str
    bare: BareIndex
    measure_index_bytes: Callable[[], int]


@asynccontextmanager
async def open_sqlite() -> AsyncGenerator[Target]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quire.db"
        migrate.upgrade(f"sqlite:///{path}")
        bare = SqliteFts(Path(folder) / "bare.db")
        yield Target("sqlite", f"sqlite:///{path}", bare, lambda: _measure_sqlite_tables(path))
        bare.close()


def _measure_sqlite_tables(path: Path) -> int:
    marks = ", ".join("?" * len(INDEX_TABLES))
    with sqlite3.connect(path) as connection:
        return connection.execute(f"SELECT sum(pgsize) FROM dbstat WHERE name IN ({marks})", INDEX_TABLES).fetchone()[0]


@asynccontextmanager
async def open_postgres() -> AsyncGenerator[Target]:
    settings = {"shared_buffers": "512MB", "max_wal_size": "8GB"}
    with Cluster.start(18, settings=settings) as cluster:
        cluster.create_database("search")
        cluster.create_role("quire_app")
        migrate.upgrade(cluster.url("search"))
        migrate.grant_access(cluster.url("search"), "quire_app")
        bare = PostgresGin(cluster.url("search"))
        yield Target(
            "postgres",
            cluster.url("search", user="quire_app"),
            bare,
            lambda: _measure_postgres_tables(cluster.url("search")),
        )
        bare.close()


def _measure_postgres_tables(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT sum(pg_total_relation_size(relid)) FROM unnest(%s::regclass[]) AS each, pg_partition_tree(each)",
            (list(INDEX_TABLES),),
        ).fetchone()
    return int(row[0]) if row else 0
