"""Sweep and jobs move large blobs and unused conversations and thin old manifests."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from job_harness import DAY_MICROSECONDS, JobHarness
from test_sweeper import DeferredJobs

from quire.engine.message_index import index_messages
from quire.jobs import Job
from quire.model import FilePart, Message
from quire.store import SqlStore
from quire.store.archives import MIN_MOVED_BYTES

TENANTS = ("default", "elsewhere")
DAYS = 30


@pytest.fixture
async def store(database: Any, tmp_path: Path) -> AsyncIterator[SqlStore]:
    objects = f"file://{tmp_path}/objects"
    async with SqlStore.open(database.url, object_storage=objects) as opened:
        yield opened


@pytest.fixture
async def harness(store: SqlStore, tmp_path: Path) -> JobHarness:
    """Two tenants with a conversation that uses a large blob."""
    harness = JobHarness(store, object_storage_url=f"file://{tmp_path}/objects", offload_after_days=DAYS)
    for tenant in TENANTS:
        own = store.for_tenant(tenant)
        await own.create_conversation("c")
        chart = FilePart(blob=await own.put_blob(bytes(MIN_MOVED_BYTES)))
        await own.append("c", Message(role="user", parts=(chart,)), Message.assistant("A chart."))
        while await own.usage.count():
            pass
        await index_messages(harness.engine(tenant))
    return harness


async def sweep_and_run(harness: JobHarness, *, days: float) -> set[Job]:
    """The jobs on objects and manifests that a sweep finds this long from now. All of them are run."""
    harness.clock.offset = int(days * DAY_MICROSECONDS)
    jobs = DeferredJobs()
    await harness.sweeper.sweep(jobs.defer)
    found = {each for each in jobs if each.kind in ("offload", "thin_manifests")}
    for job in found:
        await harness.runner.run(job)
    return found


async def count_objects(store: SqlStore) -> list[int]:
    objects = store.offloading.get_storage()
    return [len(await objects.list(tenant)) for tenant in TENANTS]


@pytest.mark.every_database
async def test_blobs_move_after_a_day_and_conversations_after_the_time_that_is_set(harness: JobHarness):
    assert await sweep_and_run(harness, days=0.9) == set()
    every = {Job("offload", tenant, "c") for tenant in TENANTS}
    assert await sweep_and_run(harness, days=1.1) == every
    assert await count_objects(harness.store) == [1, 1]
    assert await sweep_and_run(harness, days=DAYS + 0.1) >= every
    assert await count_objects(harness.store) == [2, 2]


async def test_a_restored_conversation_moves_again_after_the_same_time(harness: JobHarness):
    await sweep_and_run(harness, days=DAYS + 0.1)
    for tenant in TENANTS:
        await harness.store.for_tenant(tenant).get_branch("c")
    assert await count_objects(harness.store) == [1, 1]
    assert await sweep_and_run(harness, days=DAYS - 0.1) == set()
    assert await sweep_and_run(harness, days=2 * DAYS) >= {Job("offload", tenant) for tenant in TENANTS}
    assert await count_objects(harness.store) == [2, 2]


async def test_manifests_are_thinned_after_the_time_that_is_set(database: Any):
    async with SqlStore.open(database.url) as store:
        harness = JobHarness(store, thin_manifests_after_days=DAYS)
        for tenant in TENANTS:
            conversation = await harness.engine(tenant).conversation("c")
            for _ in range(2):
                request = await conversation.prepare("Which port?")
                await conversation.record(Message.assistant("4242."), request=request)
        every = {Job("thin_manifests", tenant, "c") for tenant in TENANTS}
        assert await sweep_and_run(harness, days=DAYS - 0.1) == set()
        assert await sweep_and_run(harness, days=DAYS + 0.1) == every
        for tenant in TENANTS:
            manifests = await store.for_tenant(tenant).list_manifests("c")
            assert [each.thinned for _, each in manifests] == [True, None]


async def test_without_object_storage_there_is_no_work(database: Any):
    async with SqlStore.open(database.url) as store:
        harness = JobHarness(store)
        await store.create_conversation("c")
        assert await sweep_and_run(harness, days=400) == set()
