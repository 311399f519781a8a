"""Faults during load: whatever dies, nothing that was acknowledged is lost, every conversation stays valid, and the
servers go on by themselves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from fleet import Client, Fleet

from quire.engine import open_engine
from quire.log import SqlStore, migrate
from quire.model import Message
from quire.testing.postgres import Cluster, find_binaries

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_binaries(18) is None, reason="PostgreSQL 18 is not installed")]

CLIENTS = 6
AFTER = 4
"""Turns that every client has when the fault is over."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One of its own, which can be killed."""
    with Cluster.start(18, fsync=True) as cluster:
        cluster.create_role("quire_app")
        yield cluster


@pytest.fixture
async def fleet(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Fleet]:
    name = f"fleet_{tmp_path.name}".replace("-", "_").lower()[:60]
    cluster.create_database(name)
    migrate.upgrade(cluster.url(name))
    migrate.grant(cluster.url(name), "quire_app")
    url = cluster.url(name, user="quire_app")
    async with SqlStore.open(url) as store:
        _, key = await store.create_key("fleet", ["read", "write", "chat"])
    fleet = Fleet(url, key, tmp_path)
    try:
        fleet.serve()
        fleet.serve()
        fleet.work()
        await fleet.ready()
        yield fleet
    finally:
        fleet.stop()


async def under_load(fleet: Fleet, fault: Callable[[], Awaitable[None]], *, leaving: bool = False) -> list[Client]:
    """Clients talk; in the middle of it the fault happens; then they go on for a while."""
    clients = [Client(fleet, f"talk-{number}") for number in range(CLIENTS)]
    over = asyncio.Event()
    talking = [asyncio.create_task(client.talk(AFTER, after=over, leaving=leaving)) for client in clients]
    async with asyncio.timeout(60):
        await asyncio.gather(*(client.settled.wait() for client in clients))
    await fault()
    over.set()
    done, late = await asyncio.wait(talking, timeout=60)
    for task in late:
        task.cancel()
    assert not late, "clients still wait: the servers did not recover by themselves"
    for task in done:
        task.result()
    return clients


async def everything_is_there(fleet: Fleet, clients: list[Client]) -> None:
    async with open_engine(fleet.url, model="echo", context_limit=4_000) as engine:
        store = engine.store
        for client in clients:
            said = [Message(role=each["role"], parts=Message.user(each["content"]).parts) for each in client.messages]
            found = await store.longest_prefix(said, conversation=client.conversation)
            assert found is not None
            assert found.length == len(said), f"{client.conversation}: {len(said) - found.length} messages are lost"
            assert await store.verify(client.conversation) == []
            for request in client.requests:
                manifest = (await store.request(request)).manifest
                assert manifest.total <= manifest.room
            for branch in await store.branches(client.conversation):
                conversation = await engine.conversation(client.conversation, branch=branch.number)
                await conversation.prepare("Are you there?")


async def test_one_of_two_servers_is_killed(fleet: Fleet) -> None:
    async def fault() -> None:
        fleet.servers[0].kill()
        await asyncio.sleep(1.5)
        fleet.servers[0].again()
        await fleet.ready()

    clients = await under_load(fleet, fault)
    assert any(client.failures for client in clients), "nobody noticed the fault, so nothing was tried"
    await everything_is_there(fleet, clients)


async def test_the_worker_is_killed(fleet: Fleet) -> None:
    async def fault() -> None:
        assert fleet.worker is not None
        fleet.worker.kill()
        await asyncio.sleep(1.0)
        fleet.worker.again()

    await everything_is_there(fleet, await under_load(fleet, fault))


async def test_the_database_crashes_and_comes_back(fleet: Fleet, cluster: Cluster) -> None:
    async def fault() -> None:
        await asyncio.to_thread(cluster.immediate_restart)
        await fleet.ready()

    # A server may ride over a crash this short without its clients noticing, so their failures prove nothing here.
    await everything_is_there(fleet, await under_load(fleet, fault))


async def test_the_database_is_away_for_twenty_seconds(fleet: Fleet, cluster: Cluster) -> None:
    async def fault() -> None:
        await asyncio.to_thread(cluster.kill)
        await asyncio.sleep(20)
        await asyncio.to_thread(cluster.restart)
        await fleet.ready()

    clients = await under_load(fleet, fault)
    assert all(client.failures for client in clients), "somebody was answered while there was no log"
    await everything_is_there(fleet, clients)


async def test_clients_go_in_the_middle_of_an_answer(fleet: Fleet) -> None:
    async def fault() -> None:
        await asyncio.sleep(2.0)

    await everything_is_there(fleet, await under_load(fleet, fault, leaving=True))
