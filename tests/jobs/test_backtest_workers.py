"""Backtests spread over worker processes: each shard counts once, also if its worker is killed."""

import json
from pathlib import Path

import pytest
from job_harness import JobHarness, append_turns, wait_until
from test_worker_process import start_worker_process

from quire.backtest import BacktestReport, run_backtest, select_conversations
from quire.backtest.runner import BacktestSpec, create_backtest, parse_report
from quire.jobs import Job, JobQueue
from quire.lab.schemas import BacktestSchema
from quire.store import SqlStore
from quire.store.backtests import BacktestRecord

pytestmark = pytest.mark.every_postgres

SPEC = BacktestSpec(strategies=("hybrid",), windows=(2_000,))


async def start_backtest(harness: JobHarness, queue_url: str, *, conversations: int, turns: int) -> BacktestRecord:
    """Stores conversations and a backtest over all of them, and enqueues its jobs."""
    for number in range(conversations):
        await append_turns(await harness.engine().conversation(f"c{number}"), turns + number % 3)
    record = await create_backtest(harness.store, SPEC, await select_conversations(harness.store))
    async with JobQueue.open(queue_url) as queue:
        shards = await harness.store.backtests.list_shards(record.id)
        assert len(shards) == conversations
        await queue.defer([Job("backtest", "default", record.id, shard) for shard in shards])
    return record


async def assert_whole(harness: JobHarness, record: BacktestRecord) -> None:
    """The merged report has every conversation once."""
    report = parse_report(await harness.store.backtests.get(record.id))
    selection = await select_conversations(harness.store)
    expected = await run_backtest(harness.engine(), SPEC.variants, selection)
    assert report is not None
    assert to_json(report) == to_json(expected)


def to_json(report: BacktestReport) -> object:
    """Rounded: the order of a sum of fractions depends on the order in which shards end."""
    document = BacktestSchema.from_report(report).model_dump(mode="json")
    return json.loads(json.dumps(document), parse_float=lambda text: round(float(text), 6))


def list_finished_shards(log: str) -> set[int]:
    events = [json.loads(line) for line in log.splitlines()]
    return {each["branch"] for each in events if each["event"] == "job_done" and each["count"]}


@pytest.mark.nightly
async def test_workers_share_the_parts_of_a_backtest(store: SqlStore, queue_url: str, tmp_path: Path):
    harness = JobHarness(store)
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with start_worker_process(queue_url, folders[0]) as one, start_worker_process(queue_url, folders[1]) as two:
        # Both are ready before there is work, however long each takes to start.
        await wait_until(lambda: has_started(one.read_log(), two.read_log()), seconds=60)
        record = await start_backtest(harness, queue_url, conversations=24, turns=8)
        await wait_until(lambda: is_done(store, record), seconds=120)
        await wait_until(lambda: has_lines(one.read_log() + two.read_log(), 24), seconds=20)
        first, second = list_finished_shards(one.read_log()), list_finished_shards(two.read_log())
    assert first | second == set(range(24))
    assert not first & second
    assert first, "the second worker did everything"
    assert second, "the first worker did everything"
    await assert_whole(harness, record)


async def test_parts_of_a_killed_worker_are_taken_over_and_count_once(store: SqlStore, queue_url: str, tmp_path: Path):
    harness = JobHarness(store)
    record = await start_backtest(harness, queue_url, conversations=8, turns=6)
    with start_worker_process(queue_url, tmp_path) as first:
        await wait_until(lambda: has_progress(store, record), seconds=60)
        first.kill()
    unfinished = await store.backtests.get(record.id)
    assert 0 < unfinished.finished < unfinished.conversations
    with start_worker_process(queue_url, tmp_path) as second:
        await wait_until(lambda: is_done(store, record), seconds=120)
        assert "job_recovered" in second.read_log()
    await assert_whole(harness, record)


async def test_a_deleted_backtest_ends_its_jobs(store: SqlStore, queue_url: str, tmp_path: Path):
    harness = JobHarness(store)
    record = await start_backtest(harness, queue_url, conversations=8, turns=6)
    with start_worker_process(queue_url, tmp_path) as worker:
        await wait_until(lambda: has_progress(store, record), seconds=60)
        await store.backtests.delete(record.id)
        await wait_until(lambda: has_ended(worker.read_log(), 8), seconds=60)
        assert len(list_finished_shards(worker.read_log())) < 8
    assert await store.backtests.list() == []


async def has_started(*logs: str) -> bool:
    return all("worker_started" in log for log in logs)


async def has_lines(log: str, count: int) -> bool:
    return len(list_finished_shards(log)) >= count


async def has_ended(log: str, count: int) -> bool:
    return log.count('"job_done"') >= count


async def has_progress(store: SqlStore, record: BacktestRecord) -> bool:
    return (await store.backtests.get(record.id)).finished > 0


async def is_done(store: SqlStore, record: BacktestRecord) -> bool:
    current = await store.backtests.get(record.id)
    assert current.failure is None
    return not current.is_running
