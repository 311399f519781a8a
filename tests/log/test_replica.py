"""Reads from a real streaming replica that is five seconds behind: what may lag, and nothing else, reads it."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from infra.postgres import Cluster, find_binaries
from quire.db import migrate, replica
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import index_messages
from quire.errors import StoreError
from quire.model import Message
from quire.model.ids import new_id
from quire.settings import Settings
from quire.settings.schema import Cell
from quire.store import SqlStore

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_binaries(15) is None, reason="PostgreSQL 15 is not installed")]

DELAY_SECONDS = 5
PATIENCE_SECONDS = 60.0


class Pair(NamedTuple):
    primary: Cluster
    replica: Cluster

    @property
    def urls(self) -> tuple[str, str]:
        return self.primary.url("quire", user="quire_app"), self.replica.url("quire", user="quire_app")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Cluster.start(15) as primary:
        primary.create_role("quire_app")
        primary.create_database("quire")
        migrate.upgrade(primary.url("quire"))
        migrate.grant_access(primary.url("quire"), "quire_app")
        delay = {"recovery_min_apply_delay": f"{DELAY_SECONDS}s"}
        with Cluster.start_replica(primary, settings=delay) as standby:
            yield Pair(primary, standby)


@pytest.fixture
async def store(pair: Pair, request: pytest.FixtureRequest) -> AsyncIterator[SqlStore]:
    url, replica_url = pair.urls
    # A test that is repeated has another tenant.
    async with SqlStore.open(url, replica_url=replica_url, tenant=f"{request.node.name}-{new_id()}") as store:
        yield store


async def wait_for_replay(pair: Pair) -> None:
    """Waits until the replica has everything that is committed now."""
    with psycopg.connect(pair.primary.url("quire")) as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    async with asyncio.timeout(PATIENCE_SECONDS):
        with psycopg.connect(pair.replica.url("quire"), autocommit=True) as connection:
            while connection.execute("SELECT pg_last_wal_replay_lsn() < %s", row).fetchone() == (True,):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def start_to_listen(pair: Pair, store: SqlStore) -> None:
    """Waits until the store hears of other processes, and until the replica has what they wrote before.

    Until then, the store asks the primary how far it is. That may be a record that is not sent yet.
    """
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not store.notifications.is_listening:
            await list_ids(store.for_tenant("quiet"))
            await asyncio.sleep(0.01)
    await list_ids(store.for_tenant("quiet"))
    await wait_for_replay(pair)


def count_replica_reads(store: SqlStore) -> int:
    state = store.get_replica_state()
    assert state is not None
    return state.replica_reads


async def list_ids(store: SqlStore) -> list[str]:
    return [each.id for each in await store.lagging().list_conversations(limit=10)]


async def test_a_list_right_after_a_write_shows_it_and_a_later_one_reads_the_replica(pair: Pair, store: SqlStore):
    await start_to_listen(pair, store)
    before = count_replica_reads(store)
    assert await list_ids(store) == []
    assert count_replica_reads(store) == before + 1
    await store.create_conversation("new")
    assert await list_ids(store) == ["new"]
    assert count_replica_reads(store) == before + 1
    # Another tenant's list does not wait for it.
    assert await list_ids(store.for_tenant("quiet")) == []
    assert count_replica_reads(store) == before + 2
    await wait_for_replay(pair)
    assert await list_ids(store) == ["new"]
    assert count_replica_reads(store) == before + 3


async def test_what_another_process_wrote_is_read_once_its_notification_arrived(pair: Pair, store: SqlStore):
    url, replica_url = pair.urls
    await start_to_listen(pair, store)
    assert await list_ids(store) == []
    before = count_replica_reads(store)
    async with SqlStore.open(url, replica_url=replica_url, tenant=store.tenant) as other:
        arrived = asyncio.Event()
        unsubscribe = store.notifications.subscribe(
            lambda notification: arrived.set() if notification.kind == "changed" else None
        )
        await other.create_conversation("theirs")
        await other.append("theirs", Message.user("hello"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await arrived.wait()
        unsubscribe()
        assert await list_ids(store) == ["theirs"]
    assert count_replica_reads(store) == before
    assert await list_ids(store.for_tenant("quiet")) == []
    assert count_replica_reads(store) == before + 1


async def test_a_process_that_has_just_started_sees_what_was_written_before(pair: Pair, store: SqlStore):
    url, replica_url = pair.urls
    await store.create_conversation("before")
    async with SqlStore.open(url, replica_url=replica_url, tenant=store.tenant) as started:
        assert await list_ids(started) == ["before"]
        assert count_replica_reads(started) == 0


async def test_reads_of_a_request_never_go_back_in_time(pair: Pair, store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    await start_to_listen(pair, store)
    await store.create_conversation("c")
    lagging, before = store.lagging(), count_replica_reads(store)
    assert (await lagging.get_branch("c")).head_seq == 0
    await wait_for_replay(pair)
    # The replica could serve now, but the first read may have seen more than it has.
    await lagging.get_branch("c")
    assert count_replica_reads(store) == before
    await store.lagging().get_branch("c")
    assert count_replica_reads(store) == before + 1


async def test_only_a_lagging_store_reads_the_replica(pair: Pair, store: SqlStore):
    await store.create_conversation("c")
    await wait_for_replay(pair)
    await store.get_branch("c")
    await store.read_window("c")
    await store.list_conversations(limit=1)
    await store.keys.list()
    assert count_replica_reads(store) == 0


async def test_a_conversation_in_object_storage_is_restored_on_the_primary(pair: Pair, tmp_path: Path):
    """What the replica lacks for some time: the mark on the conversation, and later its rows."""
    url, replica_url = pair.urls
    objects = f"file://{tmp_path}/objects"
    async with SqlStore.open(url, replica_url=replica_url, tenant="archive", object_storage=objects) as store:
        await store.create_conversation("c")
        await store.append("c", Message.user("When is the tide?"), Message.assistant("At noon."))
        while await store.usage.count():
            pass
        await index_messages(Engine(store, EngineConfig.create(Settings())))
        await start_to_listen(pair, store)
        for _ in range(2):
            assert await store.offloading.offload("c") is not None
            await wait_for_replay(pair)
            before = count_replica_reads(store)
            lagging = store.lagging()
            assert [each.message.text for each in await lagging.read_range("c")] == ["When is the tide?", "At noon."]
            assert [each.message.text for each in await lagging.read_range("c")] == ["When is the tide?", "At noon."]
            assert count_replica_reads(store) == before
            await wait_for_replay(pair)
            assert len(await store.lagging().read_range("c")) == 2
            assert count_replica_reads(store) == before + 1


async def test_an_unreachable_replica_costs_one_failed_read_and_comes_back(
    pair: Pair, store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replica, "SAMPLE_INTERVAL_SECONDS", 0.1)
    await store.create_conversation("c")
    await wait_for_replay(pair)
    assert await list_ids(store) == ["c"]
    pair.replica.kill()
    try:
        assert await list_ids(store) == ["c"]
        started = time.perf_counter()
        for _ in range(20):
            assert await list_ids(store) == ["c"]
        assert time.perf_counter() - started < PATIENCE_SECONDS
        state = store.get_replica_state()
        assert state is not None
        assert state.status == "unreachable"
        assert state.lag_seconds is None
        await store.check()
    finally:
        pair.replica.restart()
    before = count_replica_reads(store)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while count_replica_reads(store) == before:
            assert await list_ids(store) == ["c"]
            await asyncio.sleep(0.1)


async def test_the_lag_is_measured(pair: Pair, store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replica, "SAMPLE_INTERVAL_SECONDS", 0.1)
    await wait_for_replay(pair)
    lags: list[float] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not lags or max(lags) < DELAY_SECONDS - 1:
            await store.create_conversation()
            await list_ids(store)
            state = store.get_replica_state()
            assert state is not None
            lags.append(state.lag_seconds or 0.0)
            await asyncio.sleep(0.2)
    assert max(lags) < DELAY_SECONDS + 5
    monkeypatch.setattr(replica, "MAX_LAG_SECONDS", 1.0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (state := store.get_replica_state()) is not None and state.status != "behind":
            await store.create_conversation()
            await list_ids(store.for_tenant("quiet"))
            await asyncio.sleep(0.2)
    before = count_replica_reads(store)
    await list_ids(store.for_tenant("quiet"))
    assert count_replica_reads(store) == before


async def test_sqlite_has_no_replica():
    with pytest.raises(StoreError, match="replica_url"):
        async with SqlStore.open("sqlite://", replica_url="postgresql://localhost/x"):
            pass


async def test_cells_have_no_replica():
    cells = {"b": Cell(database_url="postgresql://localhost/b")}
    with pytest.raises(StoreError, match="With `cells`, no reads go to a replica"):
        async with SqlStore.open("postgresql://localhost/x", cells=cells, replica_url="postgresql://localhost/y"):
            pass
