"""Jobs in the process: the same work as a worker's, once at a time, and settled at the end."""

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest
from jobbing import SECOND, Shop, compactions, eventually, filled, triggers, without_vectors

from quire.errors import ContextOverflow, ModelUnavailable
from quire.jobs import Job, Kind, LocalJobs, Outcome, open_jobs
from quire.jobs.trying import ATTEMPTS
from quire.log import SqlStore

JOB = Job("compact", "default", "c")


class Recorded:
    """A workshop that does nothing but what it is told to."""

    def __init__(self, *steps: BaseException | None) -> None:
        self.steps, self.begun = list(steps), list[Job]()
        self.free = asyncio.Event()
        self.running = self.most = 0

    async def do(self, job: Job) -> Outcome:
        self.begun.append(job)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.free.wait()
        finally:
            self.running -= 1
        step = self.steps.pop(0) if self.steps else None
        if step is not None:
            raise step
        return Outcome()


def jobs_with(workshop: Any, **options: Any) -> LocalJobs:
    return LocalJobs(workshop, **options)


async def test_an_engine_s_background_work_is_done_and_settled_at_the_end(store: SqlStore):
    shop = Shop(store)
    async with LocalJobs(shop.workshop) as jobs:
        engine = shop.engine()
        engine.deferrer = jobs.deferrer("default")
        conversation = await engine.conversation("c")
        await filled(conversation, 12)
        await conversation.prepare("why?")
        await conversation.record("so.")
        await engine.settle()
    assert triggers(await compactions(store)) == ["background"]
    # What was archived is ready to be found, by words and by meaning.
    assert await store.shelves("c") != []
    assert await without_vectors(store) == 0
    assert dict(jobs.tally.done) == {"compact": 1, "embed": 1}


async def test_without_a_deferrer_an_engine_does_it_itself(store: SqlStore):
    shop = Shop(store)
    conversation = await shop.overfull()
    await conversation.prepare("why?")
    await conversation.record("so.")
    await shop.engine().settle()
    assert triggers(await compactions(store)) == ["background"]


async def test_of_each_job_one_waits_and_one_is_done():
    workshop = Recorded()
    jobs = jobs_with(workshop, at_once=2)
    for _ in range(5):
        await jobs.defer([JOB])
        await asyncio.sleep(0)
    assert workshop.begun == [JOB]
    workshop.free.set()
    await jobs.settle()
    assert workshop.begun == [JOB, JOB]
    assert workshop.most == 1


async def test_no_more_are_done_at_once_than_it_is_told():
    workshop = Recorded()
    jobs = jobs_with(workshop, at_once=2)
    await jobs.defer([JOB._replace(branch=number) for number in range(6)])
    await asyncio.sleep(0.01)
    workshop.free.set()
    await jobs.settle()
    assert len(workshop.begun) == 6
    assert workshop.most == 2


async def test_what_fails_is_tried_again_and_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.jobs.trying.back_off", lambda number: 0.001 * number)
    workshop = Recorded(ModelUnavailable(), OSError("no disk"))
    workshop.free.set()
    jobs = jobs_with(workshop)
    await jobs.defer([JOB])
    await eventually(lambda: _is(jobs.tally.done, 1))
    assert len(workshop.begun) == 3
    workshop.steps = [ModelUnavailable() for _ in range(20)]
    await jobs.defer([JOB])
    await eventually(lambda: _is(jobs.tally.failed, 2 + ATTEMPTS))
    await asyncio.sleep(0.05)
    assert len(workshop.begun) == 3 + ATTEMPTS


async def _is(counter: Counter[Kind], total: int) -> bool:
    return counter.total() == total


async def test_what_would_come_to_the_same_is_not_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.jobs.trying.back_off", lambda number: 0.001)
    workshop = Recorded(ContextOverflow(needed=2, room=1, largest=()))
    workshop.free.set()
    jobs = jobs_with(workshop)
    await jobs.defer([JOB])
    await jobs.settle()
    await asyncio.sleep(0.05)
    assert len(workshop.begun) == 1


async def test_what_is_told_of_a_job_has_ids_and_no_content(caplog: pytest.LogCaptureFixture):
    workshop = Recorded(RuntimeError("the secret of the mill"))
    workshop.free.set()
    jobs = jobs_with(workshop)
    with caplog.at_level(logging.INFO, logger="quire.jobs"):
        await jobs.defer([JOB])
        await jobs.settle()
    [line] = [record.getMessage() for record in caplog.records]
    assert '"conversation": "c"' in line
    assert '"error": "RuntimeError"' in line
    assert "secret" not in caplog.text
    await jobs.__aexit__(None, None, None)


async def test_a_sweep_runs_beside(store: SqlStore):
    shop = Shop(store)
    await shop.overfull()
    shop.clock.ahead = 61 * SECOND
    async with LocalJobs(shop.workshop, shop.sweeper, every=0.05):
        await eventually(lambda: compactions(store))
    assert triggers(await compactions(store)) == ["background"]


async def test_a_database_without_a_queue_has_its_jobs_done_here(store: SqlStore, database_url: str):
    shop = Shop(store)
    await shop.overfull()
    async with open_jobs(database_url, store, shop.engines) as jobs:
        assert isinstance(jobs, LocalJobs)
        await jobs.defer([JOB])
    assert triggers(await compactions(store)) == ["background"]
