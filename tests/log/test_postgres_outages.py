"""A PostgreSQL that is frozen, locked, read-only, gone or unreplicated: every call ends, and the store recovers."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from sqlalchemy import Connection, text

from infra.builders import make_messages, make_turn
from infra.fault_proxy import FaultProxy
from infra.postgres import Cluster, find_binaries
from quire.db import migrate, postgres
from quire.db.database import TransactionOptions
from quire.errors import StoreBusy, StoreReadOnly, StoreUnavailable
from quire.model import Entry, Message
from quire.model.ids import new_id
from quire.store import SqlStore

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_binaries(18) is None, reason="PostgreSQL 18 is not installed")]

WAITERS = 40
PATIENCE_SECONDS = 120.0
"""For what takes a moment on an idle machine."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start(18, settings={"synchronous_commit": "on"}) as cluster:
        cluster.create_role("quire_app")
        cluster.create_database("quire")
        migrate.upgrade(cluster.url("quire"))
        migrate.grant_access(cluster.url("quire"), "quire_app")
        yield cluster


@pytest.fixture
def url(cluster: Cluster) -> str:
    return cluster.url("quire", user="quire_app")


@pytest.fixture
async def store(url: str, request: pytest.FixtureRequest) -> AsyncIterator[SqlStore]:
    async with SqlStore.open(url, tenant=f"{request.node.name}-{new_id()}") as store:
        await store.create_conversation("hot")
        await store.create_conversation("cold")
        yield store


def count_sessions(cluster: Cluster, application: str) -> int:
    with psycopg.connect(cluster.url("quire")) as connection:
        query = "SELECT count(*)::int FROM pg_stat_activity WHERE application_name = %s"
        row = connection.execute(query, (application,)).fetchone()
    return row[0] if row else 0


def execute(cluster: Cluster, *statements: str) -> None:
    with psycopg.connect(cluster.url("quire"), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def close_sessions(cluster: Cluster) -> None:
    execute(cluster, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'quire_app'")


async def append(store: SqlStore, conversation: str = "cold") -> list[Entry]:
    return await store.append(conversation, Message.user("hello"))


async def test_a_frozen_server_ends_a_transaction_and_is_used_again_when_it_answers(cluster: Cluster, store: SqlStore):
    def read(connection: Connection) -> object:
        return connection.execute(text("SELECT 1")).scalar()

    cluster.freeze()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(StoreUnavailable):
                await store.base.database.read(read, TransactionOptions("t", statement_seconds=0.5))
            with pytest.raises(StoreUnavailable):
                await store.check_recordable()
    finally:
        cluster.thaw()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await store.check()
    assert len(await append(store)) == 1


async def test_forty_waiters_for_one_row_do_not_stop_other_conversations(cluster: Cluster, store: SqlStore):
    with psycopg.connect(cluster.url("quire")) as holder:
        holder.execute("SELECT 1 FROM quire_branches WHERE conversation = 'hot' FOR UPDATE")
        waiters = [asyncio.ensure_future(append(store, "hot")) for _ in range(WAITERS)]
        await asyncio.sleep(0.2)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await append(store, "cold")
        # One more may send notifications.
        assert store.get_pool_stats().in_use <= postgres._MAX_CONVERSATION_WRITERS + 1
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert all(isinstance(each, list | StoreBusy) for each in results), results
    assert len(await store.read_range("hot")) == sum(isinstance(each, list) for each in results)


async def test_a_lock_that_stays_is_reported_as_busy(
    cluster: Cluster, store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgres, "_LOCK_SECONDS", 0.2)
    monkeypatch.setattr(postgres, "_CONVERSATION_WAIT_SECONDS", 0.2)
    with psycopg.connect(cluster.url("quire")) as holder:
        holder.execute("SELECT 1 FROM quire_branches WHERE conversation = 'hot' FOR UPDATE")
        results = await asyncio.gather(*(append(store, "hot") for _ in range(6)), return_exceptions=True)
        holder.execute("LOCK TABLE quire_branches IN ACCESS EXCLUSIVE MODE")
        pool = store.base.database._engine.pool
        with pytest.raises(StoreBusy):
            await store.get_branch("hot")
        assert store.base.database._engine.pool is pool
    assert all(isinstance(each, StoreBusy) for each in results), results


async def test_a_broken_connection_is_replaced_between_two_turns(cluster: Cluster, store: SqlStore):
    await store.create_conversation("kept")
    await store.get_branch("kept")
    close_sessions(cluster)
    branch = await store.get_branch("kept")
    close_sessions(cluster)
    record = make_turn(*make_messages(2))
    stored = await store.record_reply("kept", record, after=branch.head_path)
    assert await store.read_range("kept") == stored
    assert store.get_pool_stats().in_use <= 1


async def test_connections_of_short_transactions_serve_all_others(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres, "_POOL_SIZE", 1)
    async with SqlStore.open(url) as store:
        name = (await store.create_conversation()).id
        for _ in range(2):
            branch, *_ = await asyncio.gather(
                store.get_branch(name), store.list_conversations(), store.get_branch(name)
            )
        assert branch.head_seq == 0
        assert store.get_pool_stats().in_use <= 1


async def test_a_full_pool_refuses_after_a_bounded_wait(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres, "_POOL_SIZE", 1)
    monkeypatch.setattr(postgres, "_POOL_WAIT_SECONDS", 0.2)
    async with SqlStore.open(url) as store:

        def sleep(connection: Connection) -> object:
            return connection.execute(text("SELECT pg_sleep(2)"))

        busy = asyncio.ensure_future(store.base.database.read(sleep, TransactionOptions("t")))
        await asyncio.sleep(0.1)
        with pytest.raises(StoreBusy, match="pool"):
            await store.list_conversations()
        await busy


async def test_a_database_that_became_read_only_is_read_and_reported(cluster: Cluster, store: SqlStore):
    execute(cluster, "ALTER ROLE quire_app SET default_transaction_read_only = on")
    close_sessions(cluster)
    try:
        with pytest.raises(StoreReadOnly):
            await append(store)
        with pytest.raises(StoreReadOnly):
            await store.check_recordable()
        with pytest.raises(StoreReadOnly):
            await store.check()
        assert len(await store.list_conversations()) == 2
    finally:
        execute(cluster, "ALTER ROLE quire_app RESET default_transaction_read_only")
        close_sessions(cluster)
    await asyncio.sleep(0.3)
    assert len(await append(store)) == 1
    await store.check()


async def test_a_commit_without_its_synchronous_standby_is_not_acknowledged(cluster: Cluster, store: SqlStore):
    """PostgreSQL ends such a COMMIT with success when `statement_timeout` expires, and only warns."""
    execute(cluster, "ALTER SYSTEM SET synchronous_standby_names = 'absent'", "SELECT pg_reload_conf()")
    try:

        def write(connection: Connection) -> None:
            connection.execute(text("UPDATE quire_conversations SET title = 'renamed' WHERE conversation = 'cold'"))

        async def write_until_refused() -> None:
            """Commits wait for the standby once the server's processes have read the setting."""
            while True:
                await store.base.database.write(write, TransactionOptions(store.tenant, statement_seconds=0.5))

        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(StoreUnavailable):
                await write_until_refused()
            with pytest.raises(StoreUnavailable):
                await store.check()
    finally:
        with psycopg.connect(cluster.url("quire"), autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                appended = await append(store)
                break
            except (StoreUnavailable, StoreBusy):
                await asyncio.sleep(0.2)
    assert len(appended) == 1


async def test_reset_connections_are_replaced_and_reported(cluster: Cluster):
    async with FaultProxy(cluster.port) as proxy:
        url = f"postgresql://quire_app@127.0.0.1:{proxy.port}/quire?application_name=proxied"
        losses: list[str] = []
        async with SqlStore.open(url, tenant="proxied") as store:
            store.on_connection_loss(lambda: losses.append("lost"))
            await store.create_conversation("cold")
            proxy.reset_connections()
            assert len(await append(store)) == 1
            assert losses
            proxy.delay_seconds = 0.01
            assert len(await append(store)) == 1
        # One that was being opened when its pool was replaced is closed, too.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while count_sessions(cluster, "proxied"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_the_first_host_that_answers_is_used(cluster: Cluster):
    hosts = f"127.0.0.1:1,127.0.0.1:{cluster.port}"
    url = f"postgresql://quire_app@{hosts}/quire?target_session_attrs=read-write"
    async with SqlStore.open(url, tenant="hosts") as store:
        await store.check()
        assert (await store.create_conversation("c")).id == "c"
    assert migrate.get_version_at_url(url) == migrate.SCHEMA_VERSION


async def test_a_server_that_was_killed_is_known_to_be_away_until_it_is_back(cluster: Cluster, store: SqlStore):
    await store.check_recordable()
    cluster.kill()
    try:
        with pytest.raises(StoreUnavailable):
            await append(store)
        with pytest.raises(StoreUnavailable):
            await store.check_recordable()
    finally:
        cluster.restart()
    await asyncio.sleep(0.3)
    await store.check_recordable()
    assert len(await append(store)) == 1
