"""Jobs in PostgreSQL's queue: each runs once, lost ones are found by the sweep, those of dead workers are requeued."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from job_harness import (
    DAY_MICROSECONDS,
    LIST_DOCUMENT,
    SECOND_MICROSECONDS,
    JobHarness,
    compaction_triggers,
    list_compactions,
    list_embedders,
    wait_until,
)
from psycopg.rows import dict_row
from sqlalchemy.engine import make_url

from infra.pgbouncer import PgBouncer
from infra.postgres import PostgresServer
from quire.errors import ModelUnavailable
from quire.jobs import Job, JobQueue, Worker, WorkerOptions, open_jobs
from quire.jobs.runner import MAX_ATTEMPTS
from quire.model import Message
from quire.store import SqlStore
from quire.testing.scripted_model import DelayedReply, ScriptedModel

pytestmark = pytest.mark.every_postgres

JOB = Job("compact", "default", "c")
FAST_OPTIONS = WorkerOptions(poll_seconds=0.1, heartbeat_seconds=0.2, stalled_seconds=1.0, sweep_cron="* * * * * *")


@pytest.fixture
async def queue(queue_url: str) -> AsyncIterator[JobQueue]:
    async with JobQueue.open(queue_url) as opened:
        yield opened


@pytest.fixture
def harness(store: SqlStore) -> JobHarness:
    return JobHarness(store)


def make_worker(harness: JobHarness, queue: JobQueue, *, shutdown_seconds: float = 30.0) -> Worker:
    options = replace(FAST_OPTIONS, shutdown_seconds=shutdown_seconds)
    return Worker(queue, harness.runner, harness.sweeper, options)


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[None]:
    """Runs the worker during the block, and waits for its end even if the block fails: it never outlives its test."""
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait_for(task, 30)


def read_queue_rows(admin_url: str) -> list[dict[str, Any]]:
    """The jobs in the queue, read by its owner, without the periodic sweep: at any second it may wait there too."""
    with psycopg.connect(admin_url, row_factory=dict_row) as owner:
        return owner.execute("SELECT * FROM procrastinate_jobs WHERE task_name <> 'quire.sweep' ORDER BY id").fetchall()


def execute_sql(admin_url: str, statement: str) -> None:
    with psycopg.connect(admin_url) as owner:
        owner.execute(statement)  # pyright: ignore[reportArgumentType, reportCallIssue]


async def test_a_job_of_each_kind_goes_from_the_queue_to_done(
    store: SqlStore, queue_url: str, admin_url: str, tmp_path: Path
):
    (tmp_path / "list.md").write_text(LIST_DOCUMENT)
    harness = JobHarness(
        store, ScriptedModel("A list for a voyage [#1], and it goes on [#3].", repeat=True), vault=tmp_path
    )
    await harness.create_overfull("full")
    await harness.create_unindexed("archived")
    async with JobQueue.open(queue_url) as queue:
        await queue.defer([Job("compact", "default", "full"), Job("index_messages", "default")])
        await queue.defer([Job("index_vault", "default")])
        counts = await make_worker(harness, queue).run_once()
        assert set(counts.done) == {"compact", "index_messages", "index_vault", "summarize_documents"}
        assert counts.failed.total() == 0
    assert compaction_triggers(await list_compactions(store, "full")) == ["background"]
    assert await store.message_index.list_segments("archived") != []
    assert await list_embedders(store, "archived") == ["letters"]
    vault = harness.engine().vault
    assert vault is not None
    assert [each.summary for each in await store.documents.list(vault.name)] == [
        "A list for a voyage [#1], and it goes on [#3]."
    ]
    old = JobHarness(store, retention_days=1)
    old.clock.offset = 2 * DAY_MICROSECONDS
    async with JobQueue.open(queue_url) as queue:
        await queue.defer([Job("purge", "default", "full")])
        assert (await make_worker(old, queue).run_once()).done["purge"] == 2
    assert (await store.read_tail("full", 1, kinds=["message"]))[0].purged_at is not None
    assert read_queue_rows(admin_url) == []


async def test_a_job_carries_ids_and_nothing_else(queue: JobQueue, harness: JobHarness, admin_url: str):
    await harness.create_overfull()
    await queue.defer([JOB])
    [row] = read_queue_rows(admin_url)
    assert row["args"] == {"tenant": "default", "conversation": "c", "branch": 0, "attempt": 1}
    assert "why" not in json.dumps(row, default=str)


async def test_the_same_job_waits_once(queue: JobQueue, admin_url: str):
    await queue.defer([JOB, JOB])
    await asyncio.gather(*(queue.defer([JOB]) for _ in range(5)))
    await queue.defer([JOB._replace(tenant="other"), JOB._replace(branch=1), JOB._replace(kind="index_messages")])
    assert len(read_queue_rows(admin_url)) == 4


async def test_names_of_any_length_and_sign_can_be_queued(queue: JobQueue, admin_url: str):
    strange = [Job("compact", "default", name) for name in ("x" * 100_000, "a)\n(b", "漢字 👩‍🚀", "'; DROP TABLE x;--")]
    await queue.defer(strange)
    await queue.defer(strange)
    assert len(read_queue_rows(admin_url)) == len(strange)


async def test_an_engine_asks_once_in_a_while(queue: JobQueue, admin_url: str):
    jobs = queue.for_tenant("default")

    async def enqueue(branch: int) -> None:
        jobs.enqueue("compact", "c", branch, _fail)
        await jobs.wait()

    await enqueue(0)
    execute_sql(admin_url, "DELETE FROM procrastinate_jobs")
    await enqueue(0)
    assert read_queue_rows(admin_url) == []
    await enqueue(1)
    assert len(read_queue_rows(admin_url)) == 1


async def _fail() -> None:
    pytest.fail("a worker does the work")


async def test_an_engine_with_the_queue_does_nothing_itself(queue: JobQueue, harness: JobHarness, admin_url: str):
    harness.jobs = queue
    engine = harness.engine()
    conversation = await harness.create_overfull()
    request = await conversation.prepare("why?")
    await conversation.record("so.", request=request)
    await engine.wait_for_background()
    assert await list_compactions(harness.store) == []
    names = sorted(row["task_name"] for row in read_queue_rows(admin_url))
    assert names == ["quire.compact", "quire.index_messages"]
    await make_worker(harness, queue).run_once()
    assert compaction_triggers(await list_compactions(harness.store)) == ["background"]


async def test_a_lost_job_is_found_by_the_sweep(queue: JobQueue, harness: JobHarness, admin_url: str):
    await harness.create_overfull()
    await queue.defer([JOB])
    execute_sql(admin_url, "DELETE FROM procrastinate_jobs")
    worker = make_worker(harness, queue)
    assert (await worker.run_once()).total == 0
    harness.clock.offset = 61 * SECOND_MICROSECONDS
    assert (await worker.run_once()).done["compact"] == 1
    assert compaction_triggers(await list_compactions(harness.store)) == ["background"]


async def test_what_fails_is_put_back_with_a_wait_even_if_the_same_waits_already(
    queue: JobQueue, harness: JobHarness, admin_url: str, monkeypatch: pytest.MonkeyPatch
):
    """Procrastinate's own retry would block it in status `doing`, and the waiting one could never start."""
    make_runner_fail(harness, monkeypatch, after=lambda: queue.defer([JOB]))
    await queue.defer([JOB])
    worker = make_worker(harness, queue)
    counts = await worker.run_once()
    # The second was enqueued at once, so it ran too; what remains is the scheduled retry.
    assert counts.failed["compact"] >= 2
    [row] = read_queue_rows(admin_url)
    assert row["status"] == "todo"
    assert row["scheduled_at"] is not None
    assert row["args"]["attempt"] >= 2


def make_runner_fail(harness: JobHarness, monkeypatch: pytest.MonkeyPatch, *, after: Any = None) -> None:
    calls = 0

    async def fail(job: Job) -> Any:
        nonlocal calls
        calls += 1
        if after is not None and calls == 1:
            await after()
        raise ModelUnavailable("The model is gone.")

    monkeypatch.setattr(harness.runner, "run", fail)


async def test_what_fails_again_and_again_is_given_up(
    queue: JobQueue, harness: JobHarness, admin_url: str, monkeypatch: pytest.MonkeyPatch
):
    make_runner_fail(harness, monkeypatch)
    monkeypatch.setattr("quire.jobs.runner.backoff_seconds", lambda number: 0.0)
    await queue.defer([JOB])
    counts = await make_worker(harness, queue).run_once()
    assert counts.failed["compact"] == MAX_ATTEMPTS
    assert read_queue_rows(admin_url) == []


@pytest.mark.parametrize("another_waits", [False, True])
async def test_what_a_dead_worker_had_begun_is_taken_over(
    queue: JobQueue, harness: JobHarness, admin_url: str, another_waits: bool
):
    await harness.create_overfull()
    await queue.defer([JOB])
    execute_sql(admin_url, "INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - interval '1 hour')")
    execute_sql(
        admin_url,
        "UPDATE procrastinate_jobs SET status = 'doing', worker_id = (SELECT max(id) FROM procrastinate_workers)",
    )
    if another_waits:
        await queue.defer([JOB])
    await make_worker(harness, queue).run_once()
    assert compaction_triggers(await list_compactions(harness.store)) == ["background"]
    assert read_queue_rows(admin_url) == []


async def test_a_job_that_kills_every_worker_is_given_up(queue: JobQueue, harness: JobHarness, admin_url: str):
    await queue.defer([JOB])
    execute_sql(admin_url, f"UPDATE procrastinate_jobs SET status = 'doing', attempts = {MAX_ATTEMPTS - 1}")
    assert (await make_worker(harness, queue).run_once()).total == 0
    assert read_queue_rows(admin_url) == []


async def test_one_that_is_alive_keeps_its_jobs(queue: JobQueue, harness: JobHarness, admin_url: str):
    await queue.defer([JOB])
    execute_sql(admin_url, "INSERT INTO procrastinate_workers DEFAULT VALUES")
    execute_sql(
        admin_url,
        "UPDATE procrastinate_jobs SET status = 'doing', worker_id = (SELECT max(id) FROM procrastinate_workers)",
    )
    assert (await make_worker(harness, queue).run_once()).total == 0
    assert [row["status"] for row in read_queue_rows(admin_url)] == ["doing"]


async def test_a_running_worker_sweeps_and_does_what_it_finds(queue: JobQueue, harness: JobHarness):
    await harness.create_overfull()
    harness.clock.offset = 61 * SECOND_MICROSECONDS
    async with running(make_worker(harness, queue)):
        await wait_until(lambda: list_compactions(harness.store))
    assert compaction_triggers(await list_compactions(harness.store)) == ["background"]


async def test_a_worker_is_notified_of_a_job_at_once(queue_url: str, admin_url: str, harness: JobHarness):
    """By LISTEN/NOTIFY, which needs a connection without a pooler."""
    await harness.create_overfull()
    url = make_url(admin_url).set(username="quire_app").render_as_string()
    async with (
        JobQueue.open(url) as queue,
        running(Worker(queue, harness.runner, harness.sweeper, WorkerOptions(poll_seconds=60.0))),
    ):
        await wait_until(lambda: _count_workers(queue))
        await asyncio.sleep(0.5)
        await queue.defer([JOB])
        await wait_until(lambda: list_compactions(harness.store), seconds=10)


async def _count_workers(queue: JobQueue) -> Any:
    async with queue.app.connector.pool.connection() as connection:  # pyright: ignore
        return (await (await connection.execute("SELECT count(*) FROM procrastinate_workers")).fetchone())[0]


async def test_stopping_lets_a_job_end(queue: JobQueue, store: SqlStore, admin_url: str):
    harness = JobHarness(store, ScriptedModel(DelayedReply(0.3, "Task: rivers [#1]."), repeat=True))
    await harness.create_overfull()
    async with _compacting_worker(harness, queue) as worker:
        worker.stop()
    assert compaction_triggers(await list_compactions(store)) == ["background"]
    assert read_queue_rows(admin_url) == []


async def test_stopping_gives_a_long_job_back(
    queue: JobQueue, store: SqlStore, admin_url: str, caplog: pytest.LogCaptureFixture
):
    harness = JobHarness(store, ScriptedModel(DelayedReply(60, "late"), repeat=True))
    await harness.create_overfull()
    with caplog.at_level(logging.INFO, logger="quire.jobs"):
        async with _compacting_worker(harness, queue, shutdown_seconds=0.2) as worker:
            worker.stop()
    assert "job_released" in caplog.text
    assert [row["status"] for row in read_queue_rows(admin_url)] == ["todo"]
    assert await list_compactions(store) == []


@asynccontextmanager
async def _compacting_worker(
    harness: JobHarness, queue: JobQueue, *, shutdown_seconds: float = 30.0
) -> AsyncIterator[Worker]:
    """A running worker that has requested the summary of its compaction job."""

    async def has_prompt() -> bool:
        return bool(harness.model.prompts)

    await queue.defer([JOB])
    worker = make_worker(harness, queue, shutdown_seconds=shutdown_seconds)
    async with running(worker):
        await wait_until(has_prompt)
        yield worker


async def test_a_compaction_by_a_worker_while_a_client_appends_loses_nothing(queue: JobQueue, store: SqlStore):
    harness = JobHarness(store, ScriptedModel(DelayedReply(0.3, "Task: rivers [#1]."), repeat=True))
    conversation = await harness.create_overfull()
    async with _compacting_worker(harness, queue):
        for number in range(20):
            await conversation.append(f"meanwhile {number}", Message.assistant(f"noted {number}"))
        await wait_until(lambda: list_compactions(store))
    texts = [entry.message.text for entry in await conversation.messages()]
    assert texts[24:] == [text for number in range(20) for text in (f"meanwhile {number}", f"noted {number}")]
    assert len(texts) == 64
    [compaction] = await list_compactions(store)
    assert compaction.body.covers.last <= 24
    assert await store.verify_conversation("c") == []


async def test_two_workers_do_each_job_once(queue: JobQueue, queue_url: str, store: SqlStore, admin_url: str):
    harness = JobHarness(store, ScriptedModel(DelayedReply(0.05, "Task: rivers [#1]."), repeat=True))
    await harness.create_overfull("alone")
    await harness.runner.run(Job("compact", "default", "alone"))
    calls_per_job = len(harness.model.prompts)
    for number in range(6):
        await harness.create_overfull(f"c{number}")
        await queue.defer([Job("compact", "default", f"c{number}")])
    async with JobQueue.open(queue_url) as other:
        await asyncio.gather(make_worker(harness, queue).run_once(), make_worker(harness, other).run_once())
    assert len(harness.model.prompts) == (1 + 6) * calls_per_job
    for number in range(6):
        assert compaction_triggers(await list_compactions(store, f"c{number}")) == ["background"]
    assert read_queue_rows(admin_url) == []


async def test_each_job_is_done_as_its_own_tenant(queue: JobQueue, harness: JobHarness):
    for tenant in ("a", "b"):
        await harness.create_overfull(tenant=tenant)
    before = [entry async for entry in harness.store.for_tenant("b").export_conversation("c")]
    await queue.defer([Job("compact", "a", "c")])
    await make_worker(harness, queue).run_once()
    assert [entry async for entry in harness.store.for_tenant("b").export_conversation("c")] == before
    assert compaction_triggers(await list_compactions(harness.store.for_tenant("a"))) == ["background"]


async def test_a_server_on_this_database_hands_its_jobs_to_workers(queue_url: str, harness: JobHarness, admin_url: str):
    async with open_jobs(queue_url, harness.store, harness.engines) as jobs:
        assert isinstance(jobs, JobQueue)
        await jobs.defer([JOB])
    assert len(read_queue_rows(admin_url)) == 1


async def test_through_a_pooler_that_gives_each_transaction_another_session(
    queue_url: str, admin_url: str, admin_name: str
):
    with PgBouncer.start(PostgresServer(make_url(admin_url).port or 0), users=("quire_app",)) as pooler:
        url = pooler.url(admin_name, user="quire_app")
        async with SqlStore.open(url) as store, JobQueue.open(url) as queue:
            assert await queue.is_pooled()
            harness = JobHarness(store)
            async with running(make_worker(harness, queue)):
                for number in range(8):
                    await harness.create_overfull(f"c{number}")
                    await queue.defer([Job("compact", "default", f"c{number}")])
                for number in range(8):
                    await wait_until(lambda name=f"c{number}": list_compactions(store, name))
    async with JobQueue.open(queue_url) as queue:
        assert await queue.is_pooled() == (make_url(queue_url).port != make_url(admin_url).port)


@pytest.fixture
def admin_name(admin_url: str) -> str:
    return str(make_url(admin_url).database)
