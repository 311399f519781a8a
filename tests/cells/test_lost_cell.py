"""Three clusters behind one server: a lost one takes down its own tenants only, and they come back by themselves."""

import asyncio
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack

import httpx2
import pytest

from infra.cells import Cells, make_cells
from infra.postgres import Cluster
from infra.sizes import IS_FULL_SIZE
from quire.db import migrate
from quire.server.app import create_app
from quire.server.state import open_server_state
from quire.settings import Settings
from quire.settings.schema import HOME_CELL
from quire.store import SqlStore

TENANTS = {"default": HOME_CELL, "harbour": "b", "tides": "c"}
PHASE_SECONDS = 15.0 if IS_FULL_SIZE else 1.5
CLIENTS_PER_TENANT = 4 if IS_FULL_SIZE else 1

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, Cluster]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(Cluster.start(18, fsync=True)) for name in TENANTS.values()}


@pytest.fixture
def cells(clusters: dict[str, Cluster]) -> Iterator[Cells]:
    with ExitStack() as stack:
        made = Cells({}, {})
        for name, cluster in clusters.items():
            cluster.create_database("template")
            stack.callback(cluster.drop_database, "template")
            cluster.create_role("quire_app")
            migrate.upgrade(cluster.url("template"))
            migrate.grant_access(cluster.url("template"), "quire_app")
            one = stack.enter_context(make_cells(cluster, template="template", role="quire_app"))
            made.urls[name], made.owner_urls[name] = one.home, one.owner_urls[HOME_CELL]
        for tenant, cell in TENANTS.items():
            if cell != HOME_CELL:
                made.place(tenant, cell)
        yield made


@pytest.fixture
async def clients(cells: Cells) -> AsyncIterator[dict[str, httpx2.AsyncClient]]:
    """A client of each tenant, on one server."""
    others = {name: cell.model_dump() for name, cell in cells.others.items()}
    settings = Settings.model_validate({"model": "gpt-4o", "requests_per_minute": None, "cells": others})
    async with AsyncExitStack() as stack:
        async with SqlStore.open(cells.home, cells=cells.others) as store:
            keys = {
                tenant: (await store.for_tenant(tenant).keys.create("k", ["read", "write"]))[1] for tenant in TENANTS
            }
        state = await stack.enter_async_context(open_server_state(cells.home, settings))
        transport = httpx2.ASGITransport(create_app(state))
        yield {
            tenant: await stack.enter_async_context(
                httpx2.AsyncClient(
                    transport=transport, base_url="http://quire", headers={"Authorization": f"Bearer {key}"}
                )
            )
            for tenant, key in keys.items()
        }


async def put_load(
    clients: dict[str, httpx2.AsyncClient], conversations: dict[str, str], seconds: float
) -> tuple[dict[str, list[float]], dict[str, list[httpx2.Response]]]:
    """Appends and reads for each tenant; returns the seconds and the responses by tenant."""
    taken, responses = defaultdict[str, list[float]](list), defaultdict[str, list[httpx2.Response]](list)
    ends_at = time.monotonic() + seconds

    async def run(tenant: str) -> None:
        path = f"/api/conversations/{conversations[tenant]}"
        while time.monotonic() < ends_at:
            for method, where, body in (
                ("POST", f"{path}/messages", {"messages": ["When is high tide?"]}),
                ("GET", path, None),
            ):
                started = time.perf_counter()
                response = await clients[tenant].request(method, where, json=body)
                taken[tenant].append(time.perf_counter() - started)
                responses[tenant].append(response)
            await asyncio.sleep(0.02)

    await asyncio.gather(*(run(tenant) for tenant in clients for _ in range(CLIENTS_PER_TENANT)))
    return taken, responses


def get_p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


@pytest.mark.parametrize("lost", ["c", HOME_CELL] if IS_FULL_SIZE else ["c"])
async def test_a_lost_cell_takes_down_its_own_tenants_only(
    clients: dict[str, httpx2.AsyncClient], clusters: dict[str, Cluster], lost: str
):
    conversations = {
        tenant: (await client.post("/api/conversations", json={})).json()["id"] for tenant, client in clients.items()
    }
    assert (await clients["tides"].get("/readyz")).json() == {"status": "ok"}
    await put_load(clients, conversations, 0.2 * PHASE_SECONDS)
    before, answers = await put_load(clients, conversations, PHASE_SECONDS)
    assert {each.status_code for some in answers.values() for each in some} <= {200, 201}
    clusters[lost].kill()
    try:
        during, answers = await put_load(clients, conversations, PHASE_SECONDS)
        health = (await clients["tides"].get("/readyz")).json()
        metrics = (await clients["tides"].get("/metrics")).text
    finally:
        clusters[lost].restart()
    assert health == {"status": "degraded", "lost_cells": [lost]}
    assert f'quire_cell_available{{cell="{lost}"}} 0.0' in metrics
    for tenant, some in answers.items():
        if TENANTS[tenant] == lost:
            assert {each.status_code for each in some} == {503}
            assert all(each.headers["Retry-After"] for each in some)
            assert some[-1].json()["code"] == "store_unavailable"
        else:
            assert {each.status_code for each in some} <= {200, 201}, tenant
            ratio = get_p99(during[tenant]) / get_p99(before[tenant])
            sys.stderr.write(
                f"\nlost {lost}: p99 of {tenant} {1000 * get_p99(before[tenant]):.0f} -> "
                f"{1000 * get_p99(during[tenant]):.0f} ms ({ratio:.2f}), median "
                f"{1000 * statistics.median(before[tenant]):.1f} -> {1000 * statistics.median(during[tenant]):.1f}, "
                f"{len(during[tenant])} requests, load {os.getloadavg()[0]:.0f}\n"
            )
            if IS_FULL_SIZE:
                assert ratio < 1.2
    back = next(client for tenant, client in clients.items() if TENANTS[tenant] == lost)
    path = next(each for tenant, each in conversations.items() if TENANTS[tenant] == lost)
    async with asyncio.timeout(20):
        while (await back.get(f"/api/conversations/{path}")).status_code != 200:  # noqa: ASYNC110 (a server)
            await asyncio.sleep(0.1)
    _, answers = await put_load(clients, conversations, 0.2 * PHASE_SECONDS)
    assert {each.status_code for some in answers.values() for each in some} <= {200, 201}
    assert (await back.get("/readyz")).json() == {"status": "ok"}


async def test_a_server_starts_while_a_cell_is_lost(cells: Cells, clusters: dict[str, Cluster]):
    async with SqlStore.open(cells.home, cells=cells.others) as store:
        for tenant in TENANTS:
            await store.for_tenant(tenant).create_conversation("talk")
    clusters[HOME_CELL].kill()
    try:
        async with SqlStore.open(cells.home, cells=cells.others) as store:
            assert store.list_lost_cells() == [HOME_CELL]
            # The directory is lost, and the cells know their tenants.
            assert await store.for_tenant("tides").list_conversation_ids() == ["talk"]
            clusters[HOME_CELL].restart()
            async with asyncio.timeout(20):
                while store.list_lost_cells():
                    await asyncio.sleep(0.1)
                    await store.check()
            assert await store.for_tenant("default").list_conversation_ids() == ["talk"]
    finally:
        clusters[HOME_CELL].restart()
