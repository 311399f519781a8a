"""Fault injection under load: no acknowledged message is lost, every conversation stays valid, and the servers
recover by themselves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from fleet import Client, Fleet

from infra.postgres import Cluster, find_binaries
from quire.engine import open_engine
from quire.log import SqlStore, migrate
from quire.model import Message

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_binaries(18) is None, reason="PostgreSQL 18 is not installed")]

CLIENT_COUNT = 6
TURNS_AFTER_FAULT = 4
"""Turns of every client after the fault."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A separate cluster, which can be killed."""
    with Cluster.start(18, fsync=True) as cluster:
        cluster.create_role("quire_app")
        yield cluster


@pytest.fixture
async def fleet(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Fleet]:
    name = f"fleet_{tmp_path.name}".replace("-", "_").lower()[:60]
    cluster.create_database(name)
    migrate.upgrade(cluster.url(name))
    migrate.grant_access(cluster.url(name), "quire_app")
    url = cluster.url(name, user="quire_app")
    async with SqlStore.open(url) as store:
        _, key = await store.create_key("fleet", ["read", "write", "chat"])
    fleet = Fleet(url, key, tmp_path)
    try:
        fleet.start_server()
        fleet.start_server()
        fleet.start_worker()
        await fleet.wait_ready()
        yield fleet
    finally:
        fleet.stop()


async def run_under_load(
    fleet: Fleet, fault: Callable[[], Awaitable[None]], *, disconnects: bool = False
) -> list[Client]:
    """Injects the fault while clients run turns, then lets them run some more."""
    clients = [Client(fleet, f"talk-{number}") for number in range(CLIENT_COUNT)]
    over = asyncio.Event()
    tasks = [
        asyncio.create_task(client.run_turns(TURNS_AFTER_FAULT, after=over, disconnects=disconnects))
        for client in clients
    ]
    async with asyncio.timeout(60):
        await asyncio.gather(*(client.warmed_up.wait() for client in clients))
    await fault()
    over.set()
    done, late = await asyncio.wait(tasks, timeout=60)
    for task in late:
        task.cancel()
    assert not late, "clients still wait: the servers did not recover"
    for task in done:
        task.result()
    return clients


async def assert_nothing_lost(fleet: Fleet, clients: list[Client]) -> None:
    async with open_engine(fleet.url, model="echo", context_limit=4_000) as engine:
        store = engine.store
        for client in clients:
            messages = [
                Message(role=each["role"], parts=Message.user(each["content"]).parts) for each in client.messages
            ]
            match = await store.find_longest_prefix(messages, conversation=client.conversation)
            assert match is not None
            assert match.length == len(messages), (
                f"{client.conversation}: {len(messages) - match.length} messages are lost"
            )
            assert await store.verify_conversation(client.conversation) == []
            for request in client.requests:
                manifest = (await store.get_request(request)).manifest
                assert manifest.total_tokens <= manifest.max_input_tokens
            for branch in await store.list_branches(client.conversation):
                conversation = await engine.conversation(client.conversation, branch=branch.number)
                await conversation.prepare("Are you there?")


async def test_one_of_two_servers_is_killed(fleet: Fleet) -> None:
    async def fault() -> None:
        fleet.servers[0].kill()
        await asyncio.sleep(1.5)
        fleet.servers[0].restart()
        await fleet.wait_ready()

    clients = await run_under_load(fleet, fault)
    assert any(client.failures for client in clients), "no client noticed the fault, so nothing was tested"
    await assert_nothing_lost(fleet, clients)


async def test_the_worker_is_killed(fleet: Fleet) -> None:
    async def fault() -> None:
        assert fleet.worker is not None
        fleet.worker.kill()
        await asyncio.sleep(1.0)
        fleet.worker.restart()

    await assert_nothing_lost(fleet, await run_under_load(fleet, fault))


async def test_the_database_crashes_and_comes_back(fleet: Fleet, cluster: Cluster) -> None:
    async def fault() -> None:
        await asyncio.to_thread(cluster.immediate_restart)
        await fleet.wait_ready()

    # A server may survive a crash this short without its clients noticing, so failures are not required.
    await assert_nothing_lost(fleet, await run_under_load(fleet, fault))


async def test_the_database_is_away_for_twenty_seconds(fleet: Fleet, cluster: Cluster) -> None:
    async def fault() -> None:
        await asyncio.to_thread(cluster.kill)
        await asyncio.sleep(20)
        await asyncio.to_thread(cluster.restart)
        await fleet.wait_ready()

    clients = await run_under_load(fleet, fault)
    assert all(client.failures for client in clients), "a client got a reply while there was no log"
    await assert_nothing_lost(fleet, clients)


async def test_clients_go_in_the_middle_of_an_answer(fleet: Fleet) -> None:
    async def fault() -> None:
        await asyncio.sleep(2.0)

    await assert_nothing_lost(fleet, await run_under_load(fleet, fault, disconnects=True))
