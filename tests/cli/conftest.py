"""A home for the commands, made once and copied for every test that changes something in it."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from world import BEGAN, LATER, Home, copied, export, fix_time, tell


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The home that others are copies of."""
    home = Home(tmp_path_factory.mktemp("cli") / "home")
    home.furnish()
    with pytest.MonkeyPatch.context() as patch:
        home.clock = fix_time(patch, BEGAN)
        asyncio.run(tell(home))
        asyncio.run(export(home))
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return home


@pytest.fixture
def home(furnished: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    made = copied(furnished, tmp_path / "home")
    made.move_in(monkeypatch)
    made.clock = fix_time(monkeypatch, LATER)
    time.tzset()
    yield made
    monkeypatch.undo()
    time.tzset()
