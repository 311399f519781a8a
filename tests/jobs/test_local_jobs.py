"""Jobs in this process: the same work as a worker's, deduplicated, and finished on exit."""

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest
from job_harness import (
    SECOND_MICROSECONDS,
    JobHarness,
    append_turns,
    compaction_triggers,
    list_compactions,
    list_embedders,
    wait_until,
)

from quire.errors import ContextOverflow, ModelUnavailable
from quire.jobs import Job, JobKind, JobOutcome, LocalJobs, open_jobs
from quire.jobs.runner import MAX_ATTEMPTS
from quire.store import SqlStore

JOB = Job("compact", "default", "c")


class FakeRunner:
    """A runner that waits for `release` and then raises the scripted errors."""

    def __init__(self, *steps: BaseException | None) -> None:
        self.steps: list[BaseException | None] = list(steps)
        self.started: list[Job] = []
        self.release = asyncio.Event()
        self.running = self.max_running = 0

    async def run(self, job: Job) -> JobOutcome:
        self.started.append(job)
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        try:
            await self.release.wait()
        finally:
            self.running -= 1
        step = self.steps.pop(0) if self.steps else None
        if step is not None:
            raise step
        return JobOutcome()


def make_jobs(runner: Any, **options: Any) -> LocalJobs:
    return LocalJobs(runner, **options)


async def test_an_engine_s_background_work_is_done_and_settled_at_the_end(store: SqlStore):
    harness = JobHarness(store)
    async with LocalJobs(harness.runner) as jobs:
        harness.jobs = jobs
        engine = harness.engine()
        conversation = await engine.conversation("c")
        await append_turns(conversation, 12)
        request = await conversation.prepare("why?")
        await conversation.record("so.", request=request)
        await engine.wait_for_background()
    assert compaction_triggers(await list_compactions(store)) == ["background"]
    # The archived messages are indexed and embedded.
    assert await store.message_index.list_segments("c") != []
    assert await list_embedders(store) == ["letters"]
    assert jobs.counts.done["compact"] == 1
    assert jobs.counts.done.keys() == {"compact", "index_messages"}


async def test_without_other_jobs_an_engine_does_it_itself(store: SqlStore):
    harness = JobHarness(store)
    conversation = await harness.create_overfull()
    request = await conversation.prepare("why?")
    await conversation.record("so.", request=request)
    await harness.engine().wait_for_background()
    assert compaction_triggers(await list_compactions(store)) == ["background"]


async def test_of_each_job_one_waits_and_one_is_done():
    runner = FakeRunner()
    jobs = make_jobs(runner, max_concurrent=2)
    for _ in range(5):
        await jobs.defer([JOB])
        await asyncio.sleep(0)
    assert runner.started == [JOB]
    runner.release.set()
    await jobs.wait_until_idle()
    assert runner.started == [JOB, JOB]
    assert runner.max_running == 1


async def test_no_more_run_at_once_than_the_limit():
    runner = FakeRunner()
    jobs = make_jobs(runner, max_concurrent=2)
    await jobs.defer([JOB._replace(branch=number) for number in range(6)])
    await asyncio.sleep(0.01)
    runner.release.set()
    await jobs.wait_until_idle()
    assert len(runner.started) == 6
    assert runner.max_running == 2


async def test_what_fails_is_tried_again_and_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.jobs.runner.backoff_seconds", lambda number: 0.001 * number)
    runner = FakeRunner(ModelUnavailable(), OSError("no disk"))
    runner.release.set()
    jobs = make_jobs(runner)
    await jobs.defer([JOB])
    await wait_until(lambda: _has_total(jobs.counts.done, 1))
    assert len(runner.started) == 3
    runner.steps = [ModelUnavailable() for _ in range(20)]
    await jobs.defer([JOB])
    await wait_until(lambda: _has_total(jobs.counts.failed, 2 + MAX_ATTEMPTS))
    await asyncio.sleep(0.05)
    assert len(runner.started) == 3 + MAX_ATTEMPTS


async def _has_total(counter: Counter[JobKind], total: int) -> bool:
    return counter.total() == total


async def test_what_would_come_to_the_same_is_not_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.jobs.runner.backoff_seconds", lambda number: 0.001)
    runner = FakeRunner(ContextOverflow(needed_tokens=2, available_tokens=1, largest_items=()))
    runner.release.set()
    jobs = make_jobs(runner)
    await jobs.defer([JOB])
    await jobs.wait_until_idle()
    await asyncio.sleep(0.05)
    assert len(runner.started) == 1


async def test_the_log_of_a_job_has_ids_and_no_content(caplog: pytest.LogCaptureFixture):
    runner = FakeRunner(RuntimeError("the secret of the mill"))
    runner.release.set()
    jobs = make_jobs(runner)
    with caplog.at_level(logging.INFO, logger="quire.jobs"):
        await jobs.defer([JOB])
        await jobs.wait_until_idle()
    [line] = [record.getMessage() for record in caplog.records]
    assert '"conversation": "c"' in line
    assert '"error": "RuntimeError"' in line
    assert "secret" not in caplog.text
    await jobs.__aexit__(None, None, None)


async def test_a_sweep_runs_periodically(store: SqlStore):
    harness = JobHarness(store)
    await harness.create_overfull()
    harness.clock.offset = 61 * SECOND_MICROSECONDS
    async with LocalJobs(harness.runner, harness.sweeper, sweep_seconds=0.05):
        await wait_until(lambda: list_compactions(store))
    assert compaction_triggers(await list_compactions(store)) == ["background"]


@pytest.mark.every_database
async def test_a_database_without_a_queue_has_its_jobs_done_here(store: SqlStore, database_url: str):
    harness = JobHarness(store)
    await harness.create_overfull()
    async with open_jobs(database_url, store, harness.engines) as jobs:
        assert isinstance(jobs, LocalJobs)
        await jobs.defer([JOB])
    assert compaction_triggers(await list_compactions(store)) == ["background"]


async def test_a_stop_drops_what_waits_and_gives_what_runs_the_rest_of_the_grace_period(
    monkeypatch: pytest.MonkeyPatch,
):
    """Otherwise a server whose upstream hangs would call it for every queued job before it ends."""
    runner = FakeRunner()
    loop = asyncio.get_running_loop()
    async with make_jobs(runner, max_concurrent=2) as jobs:
        await jobs.defer([JOB._replace(branch=number) for number in range(12)])
        await asyncio.sleep(0)
        jobs.begin_stop(grace_seconds=0.3)
        stopped_at = loop.time()
        await jobs.defer([JOB._replace(branch=99)])
    assert len(runner.started) == 2
    assert runner.running == 0
    assert loop.time() - stopped_at > 0.2

    monkeypatch.setattr("quire.jobs.local.GRACE_SECONDS", 5.0)
    finished = FakeRunner()
    async with make_jobs(finished, max_concurrent=2) as jobs:
        await jobs.defer([JOB._replace(branch=number) for number in range(3)])
        await asyncio.sleep(0)
        loop.call_later(0.05, finished.release.set)
    assert (len(finished.started), jobs.counts.done.total()) == (2, 2)
