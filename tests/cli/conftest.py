"""Fixtures: a home for the commands, created once and copied for every test."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cli_fixtures import NEXT_DAY, START_TIME, CliHome, copy_home, create_conversations, export_newest, freeze_time


@pytest.fixture(scope="session")
def home_template(tmp_path_factory: pytest.TempPathFactory) -> CliHome:
    """The home that `home` copies."""
    home = CliHome(tmp_path_factory.mktemp("cli") / "home")
    home.write_files()
    with pytest.MonkeyPatch.context() as patch:
        home.clock = freeze_time(patch, START_TIME)
        asyncio.run(create_conversations(home))
        asyncio.run(export_newest(home))
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return home


@pytest.fixture
def home(home_template: CliHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliHome]:
    made = copy_home(home_template, tmp_path / "home")
    made.activate(monkeypatch)
    made.clock = freeze_time(monkeypatch, NEXT_DAY)
    time.tzset()
    yield made
    monkeypatch.undo()
    time.tzset()
