"""Jobs through PostgreSQL: from the queue to done, each once, found again when lost, taken over when left."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from jobbing import DAY, LISTS, SECOND, Shop, compactions, eventually, triggers, without_vectors
from sqlalchemy.engine import make_url

from quire.errors import ModelUnavailable
from quire.jobs import Habits, Job, Queue, Worker, open_jobs
from quire.jobs.trying import ATTEMPTS
from quire.log import SqlStore
from quire.model import Message
from quire.testing.pgbouncer import Pooler
from quire.testing.postgres import Server
from quire.testing.scripted import ScriptedModel, Slow

pytestmark = pytest.mark.parametrize("backend", ["postgres18"])

JOB = Job("compact", "default", "c")
QUICK = Habits(poll=0.1, heartbeat=0.2, stalled=1.0, sweeps="* * * * * *")


@pytest.fixture
async def queue(queue_url: str) -> AsyncIterator[Queue]:
    async with Queue.opened(queue_url) as opened:
        yield opened


@pytest.fixture
def shop(store: SqlStore) -> Shop:
    return Shop(store)


def worker_of(shop: Shop, queue: Queue, *, grace: float = 0.5) -> Worker:
    return Worker(queue, shop.workshop, shop.sweeper, replace(QUICK, grace=grace))


def rows(admin_url: str) -> list[dict[str, Any]]:
    """What is in the queue, seen by its owner."""
    with psycopg.connect(admin_url, row_factory=psycopg.rows.dict_row) as owner:
        return owner.execute("SELECT * FROM procrastinate_jobs ORDER BY id").fetchall()


def change(admin_url: str, statement: str) -> None:
    with psycopg.connect(admin_url) as owner:
        owner.execute(statement)  # pyright: ignore[reportArgumentType, reportCallIssue]


async def test_a_job_of_each_kind_goes_from_the_queue_to_done(
    store: SqlStore, queue_url: str, admin_url: str, tmp_path: Path
):
    (tmp_path / "list.md").write_text(LISTS)
    shop = Shop(store, ScriptedModel("A list for a voyage [#1], and it goes on [#3].", repeat=True), vault=tmp_path)
    await shop.overfull("full")
    await shop.unshelved("archived")
    async with Queue.opened(queue_url) as queue:
        await queue.defer([Job("compact", "default", "full"), Job("shelve", "default", "archived")])
        await queue.defer([Job("index", "default")])
        tally = await worker_of(shop, queue).once()
        assert set(tally.done) == {"compact", "shelve", "embed", "index", "describe"}
        assert tally.failed.total() == 0
    assert triggers(await compactions(store, "full")) == ["background"]
    assert await store.shelves("archived") != []
    assert await without_vectors(store, "archived") == 0
    vault = shop.engine().vault
    assert vault is not None
    assert [each.summary for each in await store.documents(vault.name)] == [
        "A list for a voyage [#1], and it goes on [#3]."
    ]
    old = Shop(store, retention_days=1)
    old.clock.ahead = 2 * DAY
    async with Queue.opened(queue_url) as queue:
        await queue.defer([Job("purge", "default", "full")])
        assert (await worker_of(old, queue).once()).done["purge"] == 2
    assert (await store.tail("full", 1, kinds=["message"]))[0].purged_at is not None
    assert rows(admin_url) == []


async def test_a_job_carries_ids_and_nothing_else(queue: Queue, shop: Shop, admin_url: str):
    await shop.overfull()
    await queue.defer([JOB])
    [row] = rows(admin_url)
    assert row["args"] == {"tenant": "default", "conversation": "c", "branch": 0, "attempt": 1}
    written = json.dumps(row, default=str)
    assert "why" not in written


async def test_the_same_job_waits_once(queue: Queue, admin_url: str):
    await queue.defer([JOB, JOB])
    await asyncio.gather(*(queue.defer([JOB]) for _ in range(5)))
    await queue.defer([JOB._replace(tenant="other"), JOB._replace(branch=1), JOB._replace(kind="shelve")])
    assert len(rows(admin_url)) == 4


async def test_names_of_any_length_and_sign_can_be_queued(queue: Queue, admin_url: str):
    strange = [Job("compact", "default", name) for name in ("x" * 100_000, "a)\n(b", "漢字 👩‍🚀", "'; DROP TABLE x;--")]
    await queue.defer(strange)
    await queue.defer(strange)
    assert len(rows(admin_url)) == len(strange)


async def test_an_engine_asks_once_in_a_while(queue: Queue, admin_url: str):
    deferred = queue.deferrer("default")
    await deferred("compact", "c", 0)
    change(admin_url, "DELETE FROM procrastinate_jobs")
    await deferred("compact", "c", 0)
    assert rows(admin_url) == []
    await deferred("compact", "c", 1)
    assert len(rows(admin_url)) == 1


async def test_an_engine_with_the_queue_does_nothing_itself(queue: Queue, shop: Shop, admin_url: str):
    engine = shop.engine()
    engine.deferrer = queue.deferrer("default")
    conversation = await shop.overfull()
    await conversation.prepare("why?")
    await conversation.record("so.")
    await engine.settle()
    assert await compactions(shop.store) == []
    assert [row["task_name"] for row in rows(admin_url)] == ["quire.compact"]
    await worker_of(shop, queue).once()
    assert triggers(await compactions(shop.store)) == ["background"]


async def test_a_lost_job_is_found_by_the_sweep(queue: Queue, shop: Shop, admin_url: str):
    await shop.overfull()
    await queue.defer([JOB])
    change(admin_url, "DELETE FROM procrastinate_jobs")
    worker = worker_of(shop, queue)
    assert (await worker.once()).total == 0
    shop.clock.ahead = 61 * SECOND
    assert (await worker.once()).done["compact"] == 1
    assert triggers(await compactions(shop.store)) == ["background"]


async def test_what_fails_is_put_back_with_a_wait_even_if_the_same_waits_already(
    queue: Queue, shop: Shop, admin_url: str, monkeypatch: pytest.MonkeyPatch
):
    """Procrastinate's own retry would leave it stuck as begun, and the other one could never begin."""
    fail_on(shop, monkeypatch, after=lambda: queue.defer([JOB]))
    await queue.defer([JOB])
    worker = worker_of(shop, queue)
    tally = await worker.once()
    # The second was put there at once, so that it was tried too; what is left is to be tried later.
    assert tally.failed["compact"] >= 2
    [row] = rows(admin_url)
    assert row["status"] == "todo"
    assert row["scheduled_at"] is not None
    assert row["args"]["attempt"] >= 2


def fail_on(shop: Shop, monkeypatch: pytest.MonkeyPatch, *, after: Any = None) -> None:
    calls = 0

    async def failing(job: Job) -> Any:
        nonlocal calls
        calls += 1
        if after is not None and calls == 1:
            await after()
        raise ModelUnavailable("The model is gone.")

    monkeypatch.setattr(shop.workshop, "do", failing)


async def test_what_fails_again_and_again_is_given_up(
    queue: Queue, shop: Shop, admin_url: str, monkeypatch: pytest.MonkeyPatch
):
    fail_on(shop, monkeypatch)
    monkeypatch.setattr("quire.jobs.trying.back_off", lambda number: 0.0)
    await queue.defer([JOB])
    tally = await worker_of(shop, queue).once()
    assert tally.failed["compact"] == ATTEMPTS
    assert rows(admin_url) == []


@pytest.mark.parametrize("another_waits", [False, True])
async def test_what_a_dead_worker_had_begun_is_taken_over(
    queue: Queue, shop: Shop, admin_url: str, another_waits: bool
):
    await shop.overfull()
    await queue.defer([JOB])
    change(admin_url, "INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - interval '1 hour')")
    change(
        admin_url,
        "UPDATE procrastinate_jobs SET status = 'doing', worker_id = (SELECT max(id) FROM procrastinate_workers)",
    )
    if another_waits:
        await queue.defer([JOB])
    await worker_of(shop, queue).once()
    assert triggers(await compactions(shop.store)) == ["background"]
    assert rows(admin_url) == []


async def test_a_job_that_kills_every_worker_is_given_up(queue: Queue, shop: Shop, admin_url: str):
    await queue.defer([JOB])
    change(admin_url, f"UPDATE procrastinate_jobs SET status = 'doing', attempts = {ATTEMPTS - 1}")
    assert (await worker_of(shop, queue).once()).total == 0
    assert rows(admin_url) == []


async def test_one_that_is_alive_keeps_its_jobs(queue: Queue, shop: Shop, admin_url: str):
    await queue.defer([JOB])
    change(admin_url, "INSERT INTO procrastinate_workers DEFAULT VALUES")
    change(
        admin_url,
        "UPDATE procrastinate_jobs SET status = 'doing', worker_id = (SELECT max(id) FROM procrastinate_workers)",
    )
    assert (await worker_of(shop, queue).once()).total == 0
    assert [row["status"] for row in rows(admin_url)] == ["doing"]


async def test_a_running_worker_sweeps_and_does_what_it_finds(queue: Queue, shop: Shop):
    await shop.overfull()
    shop.clock.ahead = 61 * SECOND
    worker = worker_of(shop, queue)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: compactions(shop.store))
    worker.stop()
    await asyncio.wait_for(running, 30)
    assert triggers(await compactions(shop.store)) == ["background"]


async def test_a_worker_is_told_of_a_job_at_once(queue_url: str, admin_url: str, shop: Shop):
    """Without a pooler between, that is."""
    await shop.overfull()
    url = make_url(admin_url).set(username="quire_app").render_as_string()
    async with Queue.opened(url) as queue:
        worker = Worker(queue, shop.workshop, shop.sweeper, Habits(poll=60.0))
        running = asyncio.create_task(worker.run())
        await eventually(lambda: _registered(queue))
        await asyncio.sleep(0.5)
        await queue.defer([JOB])
        await eventually(lambda: compactions(shop.store), within=10)
        worker.stop()
        await asyncio.wait_for(running, 30)


async def _registered(queue: Queue) -> Any:
    async with queue.app.connector.pool.connection() as connection:  # pyright: ignore
        return (await (await connection.execute("SELECT count(*) FROM procrastinate_workers")).fetchone())[0]


async def test_stopping_lets_a_job_end(queue: Queue, store: SqlStore, admin_url: str):
    shop = Shop(store, ScriptedModel(Slow(0.3, "Task: rivers [#1]."), repeat=True))
    await shop.overfull()
    worker, running = await _begun(shop, queue)
    worker.stop()
    await asyncio.wait_for(running, 30)
    assert triggers(await compactions(store)) == ["background"]
    # The job that followed from it waits for another worker.
    assert [row["task_name"] for row in rows(admin_url)] == ["quire.embed"]


async def test_stopping_gives_a_long_job_back(
    queue: Queue, store: SqlStore, admin_url: str, caplog: pytest.LogCaptureFixture
):
    shop = Shop(store, ScriptedModel(Slow(60, "late"), repeat=True))
    await shop.overfull()
    with caplog.at_level(logging.INFO, logger="quire.jobs"):
        worker, running = await _begun(shop, queue, grace=0.2)
        worker.stop()
        await asyncio.wait_for(running, 30)
    assert "job_released" in caplog.text
    assert [row["status"] for row in rows(admin_url)] == ["todo"]
    assert await compactions(store) == []


async def _begun(shop: Shop, queue: Queue, *, grace: float = 30.0) -> tuple[Worker, asyncio.Task[None]]:
    """A worker whose model has been asked."""
    await queue.defer([JOB])
    worker = worker_of(shop, queue, grace=grace)
    running = asyncio.create_task(worker.run())

    async def asked() -> bool:
        return bool(shop.model.prompts)

    await eventually(asked)
    return worker, running


async def test_a_compaction_by_a_worker_while_a_client_appends_loses_nothing(queue: Queue, store: SqlStore):
    shop = Shop(store, ScriptedModel(Slow(0.3, "Task: rivers [#1]."), repeat=True))
    conversation = await shop.overfull()
    worker, running = await _begun(shop, queue)
    for number in range(20):
        await conversation.append(f"meanwhile {number}", Message.assistant(f"noted {number}"))
    await eventually(lambda: compactions(store))
    worker.stop()
    await asyncio.wait_for(running, 30)
    texts = [entry.message.text for entry in await conversation.messages()]
    assert texts[24:] == [text for number in range(20) for text in (f"meanwhile {number}", f"noted {number}")]
    assert len(texts) == 64
    [compaction] = await compactions(store)
    assert compaction.body.covers.last <= 24
    assert await store.verify("c") == []


async def test_two_workers_do_each_job_once(queue: Queue, queue_url: str, store: SqlStore, admin_url: str):
    shop = Shop(store, ScriptedModel(Slow(0.05, "Task: rivers [#1]."), repeat=True))
    for number in range(6):
        await shop.overfull(f"c{number}")
        await queue.defer([Job("compact", "default", f"c{number}")])
    async with Queue.opened(queue_url) as other:
        await asyncio.gather(worker_of(shop, queue).once(), worker_of(shop, other).once())
    assert len(shop.model.prompts) == 6
    for number in range(6):
        assert triggers(await compactions(store, f"c{number}")) == ["background"]
    assert rows(admin_url) == []


async def test_each_job_is_done_as_its_own_tenant(queue: Queue, shop: Shop):
    for tenant in ("a", "b"):
        await shop.overfull(tenant=tenant)
    before = [entry async for entry in shop.store.for_tenant("b").export("c")]
    await queue.defer([Job("compact", "a", "c")])
    await worker_of(shop, queue).once()
    assert [entry async for entry in shop.store.for_tenant("b").export("c")] == before
    assert triggers(await compactions(shop.store.for_tenant("a"))) == ["background"]


async def test_a_server_on_this_database_hands_its_jobs_to_workers(queue_url: str, shop: Shop, admin_url: str):
    async with open_jobs(queue_url, shop.store, shop.engines) as jobs:
        assert isinstance(jobs, Queue)
        await jobs.defer([JOB])
    assert len(rows(admin_url)) == 1


async def test_through_a_pooler_that_gives_each_transaction_another_session(
    queue_url: str, admin_url: str, admin_name: str
):
    with Pooler.start(Server(make_url(admin_url).port or 0), users=("quire_app",)) as pooler:
        url = pooler.url(admin_name, user="quire_app")
        async with SqlStore.open(url) as store, Queue.opened(url) as queue:
            assert await queue.is_pooled()
            shop = Shop(store)
            worker = worker_of(shop, queue)
            running = asyncio.create_task(worker.run())
            for number in range(8):
                await shop.overfull(f"c{number}")
                await queue.defer([Job("compact", "default", f"c{number}")])
            for number in range(8):
                await eventually(lambda name=f"c{number}": compactions(store, name))
            worker.stop()
            await asyncio.wait_for(running, 30)
    async with Queue.opened(queue_url) as queue:
        assert await queue.is_pooled() == (make_url(queue_url).port != make_url(admin_url).port)


@pytest.fixture
def admin_name(admin_url: str) -> str:
    return str(make_url(admin_url).database)
