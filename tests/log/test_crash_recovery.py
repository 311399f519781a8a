"""Crash recovery: after killing writers or the server, every acknowledged append is stored and the log verifies."""

import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from writer_processes import WriterProcess, start_writers

from infra.postgres import Cluster, find_binaries
from infra.sizes import IS_FULL_SIZE
from quire.db import migrate
from quire.store import SqlStore

pytestmark = [pytest.mark.every_database, pytest.mark.slow]

KILLS = 50 if IS_FULL_SIZE else 2
WRITERS_PER_ROUND = 2
SERVER_KILLS = 5 if IS_FULL_SIZE else 1
RETRY_LINE = "retry"
"""The line that a writer prints when it cannot reach the server and will retry."""

CHECK_INDEXES = """
    SELECT bt_index_check(index.oid, true)
    FROM pg_class AS index JOIN pg_namespace AS namespace ON namespace.oid = index.relnamespace
    WHERE index.relkind = 'i' AND namespace.nspname = 'public'
"""


async def test_killed_writers_lose_nothing_that_was_acknowledged(
    store: SqlStore, database_url: str, admin_url: str
) -> None:
    await store.create_conversation("killed")
    written = Counter[str]()
    for kill in range(0, KILLS, WRITERS_PER_ROUND):
        names = [f"writer{kill + number}" for number in range(WRITERS_PER_ROUND)]
        acknowledged = write_until_killed(database_url, names)
        first_new = written.total() + 1
        stored = [entry.message.text for entry in await store.read_range("killed", first=first_new)]
        for name in names:
            check_stored(acknowledged[name], [text for text in stored if text.startswith(f"{name}:")])
        written.update(stored)
        assert await store.verify_conversation("killed") == []
    assert len({text.split(":")[0] for text in written}) == KILLS
    check_database_integrity(admin_url)


def write_until_killed(url: str, names: list[str]) -> dict[str, list[str]]:
    """The appends of each writer that were acknowledged before it was killed."""
    with start_writers(url, [("append_pairs", "killed", name) for name in names]) as started:
        return {name: kill_writer(writer) for name, writer in zip(names, started, strict=True)}


def kill_writer(writer: WriterProcess) -> list[str]:
    first = writer.stdout.readline()
    time.sleep(random.uniform(0.03, 0.25))
    assert writer.poll() is None, writer.stderr.read()
    writer.kill()
    assert writer.wait() == -signal.SIGKILL
    return [first.strip(), *writer.stdout.read().splitlines()]


def check_stored(acknowledged: list[str], stored: list[str]) -> None:
    """Checks that appends are complete and in order, and that at most the last one was not acknowledged."""
    appends = stored[::2]
    assert stored == [text for text in appends for _ in range(2)]
    assert acknowledged == appends[: len(acknowledged)]
    assert len(appends) - len(acknowledged) in (0, 1)


def check_database_integrity(url: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    else:
        check_indexes(url)


def check_indexes(url: str) -> None:
    """Checks that every index is ordered and has every row of its table."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS amcheck")
        assert len(connection.execute(CHECK_INDEXES).fetchall()) > 32


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A separate PostgreSQL server with fsync on."""
    if find_binaries(18) is None and not os.environ.get("CI"):
        pytest.skip("PostgreSQL 18 IS NOT INSTALLED: nothing is tested on it here")
    with Cluster.start(18, fsync=True) as cluster:
        cluster.create_database("quire")
        migrate.upgrade(cluster.url("quire"))
        yield cluster


async def test_a_killed_server_loses_nothing_that_was_acknowledged(cluster: Cluster) -> None:
    url = cluster.url("quire")
    async with SqlStore.open(url) as store:
        await store.create_conversation("crashed")
    acknowledged = write_through_crashes(url, cluster)
    async with SqlStore.open(url) as store:
        stored = [entry.message.text for entry in await store.read_range("crashed")]
        assert await store.verify_conversation("crashed") == []
    # Each is stored once, although the writer retried when no reply came.
    assert stored == [f"writer:{number}" for number in range(len(stored))]
    assert acknowledged == stored[: len(acknowledged)]
    assert len(stored) - len(acknowledged) in (0, 1)
    check_indexes(url)


def write_through_crashes(url: str, cluster: Cluster) -> list[str]:
    """The appends that were acknowledged during all crashes."""
    lines: list[str] = []
    with start_writers(url, [("append_with_retries", "crashed", "writer")]) as [writer]:
        for _ in range(SERVER_KILLS):
            read_lines_until(writer, lines, until_acknowledged=True)
            time.sleep(random.uniform(0.05, 0.3))
            cluster.kill()
            read_lines_until(writer, lines, until_acknowledged=False)
            cluster.restart()
        read_lines_until(writer, lines, until_acknowledged=True)
        writer.kill()
        lines += writer.stdout.read().splitlines()
    return [line for line in lines if line != RETRY_LINE]


def read_lines_until(writer: WriterProcess, lines: list[str], *, until_acknowledged: bool) -> None:
    while True:
        line = writer.stdout.readline().strip()
        assert line, writer.stderr.read()
        lines.append(line)
        if (line != RETRY_LINE) == until_acknowledged:
            return
