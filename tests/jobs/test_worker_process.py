"""Workers that are killed, and a database that restarts: no job is lost and none is done twice."""

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from job_harness import JobHarness, compaction_triggers, list_compactions, wait_until

from infra.postgres import Cluster, find_binaries
from infra.sizes import IS_FULL_SIZE
from quire.db import migrate
from quire.jobs import Job, JobQueue, queue_schema
from quire.jobs.runner import MAX_ATTEMPTS
from quire.store import SqlStore

pytestmark = pytest.mark.every_postgres

MAX_KILLS = MAX_ATTEMPTS - 1 if IS_FULL_SIZE else 2
"""Kills of workers on the same jobs; `MAX_ATTEMPTS` of them would make the jobs be abandoned."""


class WorkerProcess:
    def __init__(self, url: str, seconds: float, log: Path) -> None:
        self._log = log
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("worker_process.py")), url, str(seconds)],
                stdout=subprocess.PIPE,
                stderr=stream,
            )

    async def wait_for_summary_request(self) -> None:
        """Waits until the worker requests a summary."""
        assert self.process.stdout is not None
        assert await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), 30) == b"summary requested\n", (
            self.read_log()
        )

    def read_log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def start_worker_process(url: str, folder: Path, *, seconds: float = 0.0) -> Iterator[WorkerProcess]:
    started = WorkerProcess(url, seconds, folder / "worker.log")
    try:
        yield started
    finally:
        started.kill()
        assert started.process.stdout is not None
        started.process.stdout.close()


async def assert_intact(store: SqlStore, conversation: str) -> None:
    assert compaction_triggers(await list_compactions(store, conversation)) == ["background"]
    assert len(await store.read_range(conversation, kinds=["message"])) == 24
    assert await store.verify_conversation(conversation) == []


@pytest.mark.slow
async def test_workers_killed_at_any_moment_leave_every_log_whole(store: SqlStore, queue_url: str, tmp_path: Path):
    harness, moments = JobHarness(store), random.Random(7)
    names = [f"c{number}" for number in range(6)]
    for name in names:
        await harness.create_overfull(name)
    async with JobQueue.open(queue_url) as queue:
        await queue.defer([Job("compact", "default", name) for name in names])
    with start_worker_process(queue_url, tmp_path, seconds=60) as first:
        await first.wait_for_summary_request()
        first.kill()
    assert [await list_compactions(store, name) for name in names] == [[]] * len(names)
    for _ in range(MAX_KILLS - 1):
        with start_worker_process(queue_url, tmp_path, seconds=0.05) as started:
            await started.wait_for_summary_request()
            await asyncio.sleep(moments.uniform(0, 0.15))
            started.kill()
        if all([await list_compactions(store, name) for name in names]):
            break
    with start_worker_process(queue_url, tmp_path) as last:
        for name in names:
            await wait_until(lambda name=name: list_compactions(store, name), seconds=30)
        await asyncio.sleep(1.5)
        assert "job_recovered" in last.read_log()
    for name in names:
        await assert_intact(store, name)


async def test_a_stopped_worker_finishes_its_job_and_logs_its_end(store: SqlStore, queue_url: str, tmp_path: Path):
    harness = JobHarness(store)
    await harness.create_overfull()
    async with JobQueue.open(queue_url) as queue:
        await queue.defer([Job("compact", "default", "c")])
    with start_worker_process(queue_url, tmp_path, seconds=0.5) as started:
        await started.wait_for_summary_request()
        started.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(started.process.wait, 20) == 0
        events = [json.loads(line)["event"] for line in started.read_log().splitlines()]
    await assert_intact(store, "c")
    assert events[0] == "worker_started"
    assert events[-1] == "worker_stopped"
    assert "why" not in started.read_log()


@pytest.mark.slow
@pytest.mark.skipif(find_binaries(18) is None, reason="PostgreSQL 18 is not installed")
async def test_a_worker_continues_after_the_database_was_restarted(tmp_path: Path):
    with Cluster.start(18, fsync=True) as cluster:
        cluster.create_database("quire")
        cluster.create_role("quire_app")
        owner, url = cluster.url("quire"), cluster.url("quire", user="quire_app")
        migrate.upgrade(owner)
        migrate.grant_access(owner, "quire_app")
        queue_schema.upgrade(owner)
        queue_schema.grant(owner, "quire_app")
        async with SqlStore.open(url) as store:
            harness = JobHarness(store)
            for name in ("before", "during", "after"):
                await harness.create_overfull(name)
            with start_worker_process(url, tmp_path, seconds=0.4) as started:
                await _defer_job(url, "before")
                await wait_until(lambda: list_compactions(store, "before"))
                await _defer_job(url, "during")
                await started.wait_for_summary_request()
                await started.wait_for_summary_request()
                await asyncio.to_thread(cluster.immediate_restart)
                await _defer_job(url, "after")
                for name in ("during", "after"):
                    await wait_until(lambda name=name: list_compactions(store, name), seconds=60)
                assert started.process.poll() is None
                await asyncio.sleep(1.5)
            for name in ("before", "during", "after"):
                await assert_intact(store, name)


async def _defer_job(url: str, name: str) -> None:
    async with JobQueue.open(url) as queue:
        await queue.defer([Job("compact", "default", name)])
