"""The sweep finds missing work of every tenant and lost jobs, and checks only what was used since."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from job_harness import DAY_MICROSECONDS, SECOND_MICROSECONDS, JobHarness

from quire.db.store_part import write
from quire.engine.message_index import index_messages
from quire.errors import StoreUnavailable
from quire.jobs import Job
from quire.store import SqlStore

OVER_A_MINUTE = 61 * SECOND_MICROSECONDS


class DeferredJobs(list[Job]):
    """Collects deferred jobs."""

    async def defer(self, jobs: Sequence[Job]) -> None:
        self.extend(jobs)


async def run_sweep(harness: JobHarness, *, indexing: bool = False) -> set[Job]:
    found = DeferredJobs()
    assert await harness.sweeper.sweep(found.defer) == len(found)
    return {job for job in found if job.kind not in ("index_messages", "count_usage") or indexing}


@pytest.mark.every_database
async def test_what_is_missing_is_found_in_every_tenant(store: SqlStore):
    harness = JobHarness(store)
    await harness.create_overfull("full", tenant="a")
    await harness.create_unindexed("archived", tenant="b")
    await harness.create_unindexed("indexed", tenant="c")
    await index_messages(harness.engine("c"))
    await store.for_tenant("c").memories.add("sailor", "the boat draws one metre eighty", source="by hand")
    harness.clock.offset = OVER_A_MINUTE
    found = await run_sweep(harness, indexing=True)
    assert Job("compact", "a", "full") in found
    assert {job for job in found if job.kind == "index_messages"} == {
        Job("index_messages", "a"),
        Job("index_messages", "b"),
    }
    assert {job for job in found if job.kind == "embed"} == {Job("embed", "c")}
    assert {job for job in found if job.kind == "count_usage"} == {Job("count_usage", each) for each in "abc"}


async def test_archived_messages_without_topics_are_found_where_topics_are_on(store: SqlStore):
    """Also those that an agent's own compaction or an import archived, which no engine announced."""
    off = JobHarness(store)
    await off.create_unindexed()
    harness = JobHarness(store, topic_index=True)
    harness.clock.offset = OVER_A_MINUTE
    job = Job("index_topics", "default", "c")
    assert job in await run_sweep(harness)
    await harness.runner.run(job)
    harness.clock.offset = DAY_MICROSECONDS
    assert job not in await run_sweep(harness)


async def test_a_conversation_in_use_is_left_until_it_is_quiet(store: SqlStore):
    harness = JobHarness(store)
    await harness.create_overfull()
    assert await run_sweep(harness) == set()
    harness.clock.offset = OVER_A_MINUTE
    assert await run_sweep(harness) == {Job("compact", "default", "c")}
    assert await run_sweep(harness) == set()


async def test_a_lost_job_is_found_after_an_hour_and_after_a_day(store: SqlStore):
    harness = JobHarness(store)
    await harness.create_overfull()
    lost = {Job("compact", "default", "c")}
    # One sweep first, so that the later intervals have a position.
    assert await run_sweep(harness) == set()
    for ahead, found in (
        (OVER_A_MINUTE, lost),
        (2 * OVER_A_MINUTE, set()),
        (DAY_MICROSECONDS // 24 + OVER_A_MINUTE, lost),
        (DAY_MICROSECONDS + OVER_A_MINUTE, lost),
    ):
        harness.clock.offset = ahead
        assert await run_sweep(harness) == found, ahead
    assert await run_sweep(harness) == set()


async def test_one_that_is_used_again_is_looked_at_again(store: SqlStore):
    harness = JobHarness(store)
    conversation = await harness.create_overfull()
    harness.clock.offset = OVER_A_MINUTE
    assert await run_sweep(harness)
    await _set_updated_at(store, "c", harness.clock())
    await conversation.append("and now?")
    assert await run_sweep(harness) == set()
    harness.clock.offset = 3 * OVER_A_MINUTE
    assert await run_sweep(harness) == {Job("compact", "default", "c")}


async def _set_updated_at(store: SqlStore, conversation: str, at: int) -> None:
    from sqlalchemy import text

    changed = text("UPDATE quire_conversations SET updated_at = :at WHERE conversation = :id AND tenant = :tenant")
    await store.run(
        write,
        lambda connection, tenant: (
            connection.execute(changed, {"at": at, "id": conversation, "tenant": tenant}) and None
        ),
    )


@pytest.mark.every_database
async def test_the_next_sweep_continues_from_the_recorded_position(store: SqlStore):
    first, second = JobHarness(store), JobHarness(store)
    await first.create_overfull()
    first.clock.offset = second.clock.offset = OVER_A_MINUTE
    assert await run_sweep(first)
    assert await run_sweep(second) == set()
    await second.sweeper.reset()
    assert await run_sweep(second)


async def test_what_could_not_be_deferred_is_found_by_the_next_sweep(store: SqlStore):
    harness = JobHarness(store)
    await harness.create_overfull()
    harness.clock.offset = OVER_A_MINUTE

    async def failing(jobs: Sequence[Job]) -> None:
        raise StoreUnavailable("The database is gone.")

    with pytest.raises(StoreUnavailable):
        await harness.sweeper.sweep(failing)
    assert await run_sweep(harness) == {Job("compact", "default", "c")}


@pytest.mark.every_database
async def test_many_conversations_are_found_page_by_page(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.jobs.sweeper.PAGE_SIZE", 3)
    harness = JobHarness(store, retention_days=1)
    for number in range(10):
        await harness.engine("a").store.create_conversation(f"a {number}")
        await harness.engine("b").store.create_conversation(f"b {number}")
    harness.clock.offset = DAY_MICROSECONDS + OVER_A_MINUTE
    expected = {Job("purge", tenant, f"{tenant} {number}") for tenant in "ab" for number in range(10)}
    assert await run_sweep(harness) == expected
    assert await run_sweep(harness) == set()
    # A purge that was lost is found once more.
    harness.clock.offset = 2 * DAY_MICROSECONDS + OVER_A_MINUTE
    assert await run_sweep(harness) == expected
    harness.clock.offset = 9 * DAY_MICROSECONDS
    assert await run_sweep(harness) == set()


async def test_every_branch_is_looked_at(store: SqlStore):
    harness = JobHarness(store)
    conversation = await harness.create_overfull()
    await conversation.fork(20)
    harness.clock.offset = OVER_A_MINUTE
    assert await run_sweep(harness) == {Job("compact", "default", "c", 0), Job("compact", "default", "c", 1)}


async def test_without_a_summarizer_nothing_is_compacted_in_the_background(store: SqlStore):
    harness = JobHarness(store, context_background_threshold=None)
    await harness.create_overfull()
    harness.clock.offset = OVER_A_MINUTE
    assert await run_sweep(harness) == set()


async def test_a_vault_is_looked_through_now_and_then(store: SqlStore, tmp_path: Path):
    harness = JobHarness(store, vault=tmp_path)
    index, summarize = Job("index_vault", "default"), Job("summarize_documents", "default")
    assert await run_sweep(harness) == {index, summarize}
    harness.clock.offset = 5 * OVER_A_MINUTE
    assert await run_sweep(harness) == set()
    harness.clock.offset = 11 * OVER_A_MINUTE
    assert await run_sweep(harness) == {index}


async def test_the_vault_is_indexed_for_each_tenant_with_host_access(store: SqlStore, tmp_path: Path):
    harness = JobHarness(store, vault=tmp_path, trusted_tenants=["observatory", "default"])
    kinds, tenants = ("index_vault", "summarize_documents"), ("default", "observatory")
    assert await run_sweep(harness) == {Job(kind, tenant) for kind in kinds for tenant in tenants}
