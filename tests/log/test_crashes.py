"""Processes and servers that are killed in the midst of writing: what was acknowledged is there, and all is sound."""

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
from writers import Writer, writers

from quire.log import SqlStore, migrate
from quire.testing.postgres import Cluster, find_binaries

pytestmark = pytest.mark.slow

KILLS = 50
AT_A_TIME = 2
SERVER_KILLS = 5
MISSED = "again"
"""What a writer says when it cannot reach the server and will try again."""

CHECK_INDEXES = """
    SELECT bt_index_check(index.oid, true)
    FROM pg_class AS index JOIN pg_namespace AS place ON place.oid = index.relnamespace
    WHERE index.relkind = 'i' AND place.nspname = 'public'
"""


async def test_killed_writers_lose_nothing_that_was_acknowledged(
    store: SqlStore, database_url: str, admin_url: str
) -> None:
    await store.create_conversation("killed")
    written = Counter[str]()
    for kill in range(0, KILLS, AT_A_TIME):
        names = [f"writer{kill + number}" for number in range(AT_A_TIME)]
        acknowledged = write_until_killed(database_url, names)
        first_new = written.total() + 1
        kept = [entry.message.text for entry in await store.range("killed", first=first_new)]
        for name in names:
            check_kept(acknowledged[name], [text for text in kept if text.startswith(f"{name}:")])
        written.update(kept)
        assert await store.verify("killed") == []
    assert len({text.split(":")[0] for text in written}) == KILLS
    check_soundness(admin_url)


def write_until_killed(url: str, names: list[str]) -> dict[str, list[str]]:
    """What each writer had been told that it is kept, when it was killed."""
    with writers(url, [("append_pairs", "killed", name) for name in names]) as started:
        return {name: killed(writer) for name, writer in zip(names, started, strict=True)}


def killed(writer: Writer) -> list[str]:
    first = writer.stdout.readline()
    time.sleep(random.uniform(0.03, 0.25))
    assert writer.poll() is None, writer.stderr.read()
    writer.kill()
    assert writer.wait() == -signal.SIGKILL
    return [first.strip(), *writer.stdout.read().splitlines()]


def check_kept(acknowledged: list[str], kept: list[str]) -> None:
    """Each append is there as a whole, in order, and at most the last was not acknowledged yet."""
    appends = kept[::2]
    assert kept == [text for text in appends for _ in range(2)]
    assert acknowledged == appends[: len(acknowledged)]
    assert len(appends) - len(acknowledged) in (0, 1)


def check_soundness(url: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    else:
        check_indexes(url)


def check_indexes(url: str) -> None:
    """Every index is in order, and has every row of its table."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS amcheck")
        assert len(connection.execute(CHECK_INDEXES).fetchall()) > 32


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A server of its own, which syncs to disk."""
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
        kept = [entry.message.text for entry in await store.range("crashed")]
        assert await store.verify("crashed") == []
    # Each is there once, although it was written again when no answer came.
    assert kept == [f"writer:{number}" for number in range(len(kept))]
    assert acknowledged == kept[: len(acknowledged)]
    assert len(kept) - len(acknowledged) in (0, 1)
    check_indexes(url)


def write_through_crashes(url: str, cluster: Cluster) -> list[str]:
    """What the writer had been told that it is kept, after all crashes."""
    said: list[str] = []
    with writers(url, [("append_surely", "crashed", "writer")]) as [writer]:
        for _ in range(SERVER_KILLS):
            listen(writer, said, until_acknowledged=True)
            time.sleep(random.uniform(0.05, 0.3))
            cluster.kill()
            listen(writer, said, until_acknowledged=False)
            cluster.restart()
        listen(writer, said, until_acknowledged=True)
        writer.kill()
        said += writer.stdout.read().splitlines()
    return [line for line in said if line != MISSED]


def listen(writer: Writer, said: list[str], *, until_acknowledged: bool) -> None:
    while True:
        line = writer.stdout.readline().strip()
        assert line, writer.stderr.read()
        said.append(line)
        if (line != MISSED) == until_acknowledged:
            return
