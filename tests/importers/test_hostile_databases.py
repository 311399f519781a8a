"""Databases that someone made to keep a reader busy are refused, or read up to a limit, and named."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from infra.export_samples import ReadItems, read_source
from infra.hostile_databases import KINDS, write_database
from quire.importers import readers
from quire.importers.readers import open_sqlite
from quire.sources.registry import SOURCES

REASONS = {
    "virtual column": "computed columns",
    "stored column": "computed columns",
    "view": "no sessions",
    "pages in a cycle": "takes too long for its size",
}
"""Why each kind is not read. A trigger and an index compute nothing while a database is read."""


def read(path: Path) -> ReadItems:
    # Older than what a reader holds back as growing.
    os.utime(path, (1_760_000_000, 1_760_000_000))
    return read_source(SOURCES["opencode"], path)


@pytest.mark.parametrize("kind", KINDS)
def test_no_expression_of_a_database_is_run(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readers, "MAX_QUERY_SECONDS", 0.5)
    found = read(write_database(tmp_path / "opencode.db", kind))
    if kind in REASONS:
        assert found.conversations == []
        [error] = found.errors
        assert REASONS[kind] in error.reason
    else:
        assert (found.errors, [each.message.text for each in found.only.messages]) == ([], ["The gannet dives."])


def test_rows_have_no_more_text_than_their_database(tmp_path: Path):
    path = write_database(tmp_path / "opencode.db", "pages in a cycle")
    with open_sqlite(path) as database, pytest.raises(sqlite3.DatabaseError, match="read several times"):
        for _ in database.query("SELECT * FROM session"):
            pass


def test_our_queries_reach_no_table_that_was_not_looked_at(tmp_path: Path):
    path = write_database(tmp_path / "opencode.db", "view")
    with open_sqlite(path) as database:
        for sql in ("SELECT * FROM session", "SELECT hex(id) FROM part", "SELECT * FROM pragma_database_list"):
            with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
                list(database.query(sql))


@pytest.mark.parametrize("suffix", ["wal", "journal"])
def test_a_pipe_beside_a_database_is_not_waited_for(suffix: str, tmp_path: Path):
    path = write_database(tmp_path / "opencode.db", "trigger")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    os.mkfifo(f"{path}-{suffix}")
    [error] = read(path).errors
    assert "not an ordinary file" in error.reason
