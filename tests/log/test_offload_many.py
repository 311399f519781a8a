"""Many conversations go to an S3-compatible server and come back, also where a value is purged and the server is away.

At full size 1,000 of them, and a minute without the server. Prints bytes a message before and after (`-s`).
"""

import asyncio
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest
from sqlalchemy import Connection, func, select
from sqlalchemy.engine import make_url

from infra.builders import export_lines
from infra.dialogues import load_dialogues
from infra.s3_server import S3Server, run_s3_server
from infra.sizes import IS_FULL_SIZE
from quire.db.database_url import is_postgres
from quire.db.store_part import read
from quire.engine import Engine
from quire.engine.config import EngineConfig
from quire.engine.message_index import index_messages
from quire.model import Message
from quire.settings import Settings
from quire.store import SqlStore
from quire.store.archives import ARCHIVED_TABLES, unpack_lines

CONVERSATIONS = 1_000 if IS_FULL_SIZE else 12
TURNS = 10 if IS_FULL_SIZE else 3
AWAY_SECONDS = 60.0 if IS_FULL_SIZE else 1.0
CONCURRENT = 8
CANARY = "sk-canary-4417ac09b2"
CANARY_PLACE = 7
"""Number of the conversation with the value that is purged."""
T = TypeVar("T")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with run_s3_server() as running:
        yield running


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.mark.every_database
async def test_many_conversations_go_to_s3_and_come_back(database_url: str, admin_url: str, s3: S3Server):
    async with SqlStore.open(database_url, object_storage=s3.url) as store:
        empty_bytes = measure_database(admin_url)
        names = [f"c{number:04}" for number in range(CONVERSATIONS)]
        await fill(store, names)
        before = await export_all(store, names)
        bytes_before = measure_database(admin_url) - empty_bytes
        assert await count_archived_rows(store) > CONVERSATIONS

        started = time.perf_counter()
        moved = await run_all(store.offloading.offload, names)
        move_seconds = time.perf_counter() - started
        assert all(each is not None for each in moved)
        assert len(await store.offloading.get_storage().list(store.tenant)) == CONVERSATIONS
        bytes_after = measure_database(admin_url) - empty_bytes
        assert await count_archived_rows(store) == 0
        assert not IS_FULL_SIZE or bytes_after < bytes_before

        live_seconds = await append_without_server(store, s3)

        purged = await store.purge_value(CANARY)
        assert {conversation for conversation, _, _ in purged.entries} == {names[CANARY_PLACE]}
        objects = await store.offloading.get_storage().list(store.tenant)
        assert len(objects) == CONVERSATIONS - 1
        for name in objects:
            assert not any(CANARY in line for line in unpack_lines(await store.offloading.read_object(name)))

        started = time.perf_counter()
        after = await export_all(store, names)
        restore_seconds = time.perf_counter() - started
        assert CANARY in "".join(before.pop(CANARY_PLACE))
        assert CANARY not in "".join(after.pop(CANARY_PLACE))
        assert after == before
        assert await run_all(store.verify_conversation, names) == [[]] * CONVERSATIONS
        assert await store.offloading.get_storage().list(store.tenant) == {}

    messages = CONVERSATIONS * TURNS * 2
    object_bytes = sum(each.object_bytes for each in moved if each is not None)
    print(
        f"\n{CONVERSATIONS:,} conversations, {messages:,} messages: bytes a message {bytes_before / messages:.0f} -> "
        f"{bytes_after / messages:.0f} + {object_bytes / messages:.0f} in objects; moved in {move_seconds:.1f} s, "
        f"opened again in {restore_seconds:.1f} s; {len(live_seconds)} appends without the server, the slowest in "
        f"{max(live_seconds) * 1_000:.0f} ms"
    )


async def append_without_server(store: SqlStore, s3: S3Server) -> list[float]:
    """Seconds of appends to another conversation while the server does not answer."""
    await store.create_conversation("live")
    seconds: list[float] = []
    with s3.pause():
        ends = time.perf_counter() + AWAY_SECONDS
        while (started := time.perf_counter()) < ends:
            await store.append("live", Message.user("Which port?"), Message.assistant("4242."))
            assert await store.read_window("live")
            seconds.append(time.perf_counter() - started)
            await asyncio.sleep(0.1)
    assert len(await store.read_range("live")) == 2 * len(seconds)
    return seconds


async def fill(store: SqlStore, names: Sequence[str]) -> None:
    engine = Engine(store, EngineConfig.create(Settings()))
    turns = [each.text for each in load_dialogues("en")[0].generate_turns(fillers_per_day=200)]
    for name in names:
        chance = random.Random(name)
        conversation = await engine.conversation(name)
        for question, reply in (chance.sample(turns, 2) for _ in range(TURNS)):
            request = await conversation.prepare(question if name != names[CANARY_PLACE] else f"{question} {CANARY}")
            await conversation.record(Message.assistant(reply), request=request)
    while await store.usage.count():
        pass
    await index_messages(engine)


async def export_all(store: SqlStore, names: Sequence[str]) -> list[list[str]]:
    return await run_all(lambda name: export_lines(store, name), names)


async def run_all(run: Callable[[str], Awaitable[T]], names: Sequence[str]) -> list[T]:
    slots = asyncio.Semaphore(CONCURRENT)

    async def run_one(name: str) -> T:
        async with slots:
            return await run(name)

    return await asyncio.gather(*map(run_one, names))


async def count_archived_rows(store: SqlStore) -> int:
    """Rows in the tables whose rows are in the object of a conversation that was moved."""

    def count(connection: Connection, tenant: str) -> int:
        queries = (select(func.count()).select_from(each).where(each.c.tenant == tenant) for each in ARCHIVED_TABLES)
        return sum(connection.execute(query).scalar_one() for query in queries)

    return await store.run(read, count)


def measure_database(admin_url: str) -> int:
    """Bytes of the compacted database, at full size: a vacuum spares what another session may still see."""
    if not IS_FULL_SIZE:
        return 0
    if is_postgres(admin_url):
        with psycopg.connect(admin_url, autocommit=True) as connection:
            connection.execute("VACUUM FULL")
            own = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'quire%'"
            [size] = connection.execute(own).fetchone() or (0,)
            return int(size)
    path = Path(str(make_url(admin_url).database))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size
