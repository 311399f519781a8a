"""Workers that end without a word, and a database that goes away under them: nothing is lost and nothing done twice."""

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobbing import Shop, compactions, eventually, triggers

from quire.jobs import Job, Queue, schema
from quire.jobs.trying import ATTEMPTS
from quire.log import SqlStore, migrate
from quire.testing.postgres import Cluster

pytestmark = pytest.mark.parametrize("backend", ["postgres18"])

KILLS = ATTEMPTS - 1
"""Of workers on the same jobs; those that one more worker died of would be given up."""


class Process:
    def __init__(self, url: str, seconds: float, log: Path) -> None:
        self._log = log
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("worker_process.py")), url, str(seconds)],
                stdout=subprocess.PIPE,
                stderr=stream,
            )

    async def asked(self) -> None:
        """Waits until it asks for a summary."""
        assert self.process.stdout is not None
        assert await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), 30) == b"asked\n", self.said()

    def said(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def worker(url: str, folder: Path, *, seconds: float = 0.0) -> Iterator[Process]:
    started = Process(url, seconds, folder / "worker.log")
    try:
        yield started
    finally:
        started.kill()
        assert started.process.stdout is not None
        started.process.stdout.close()


async def check_whole(store: SqlStore, conversation: str) -> None:
    assert triggers(await compactions(store, conversation)) == ["background"]
    assert len(await store.range(conversation, kinds=["message"])) == 24
    assert await store.verify(conversation) == []


async def test_what_a_killed_worker_was_doing_another_finishes(store: SqlStore, queue_url: str, tmp_path: Path):
    shop = Shop(store)
    await shop.overfull()
    async with Queue.opened(queue_url) as queue:
        await queue.defer([Job("compact", "default", "c")])
    with worker(queue_url, tmp_path, seconds=60) as first:
        await first.asked()
        first.kill()
    assert await compactions(store) == []
    with worker(queue_url, tmp_path) as second:
        await eventually(lambda: compactions(store))
        await asyncio.sleep(1.5)
        assert "job_taken_over" in second.said()
    await check_whole(store, "c")


@pytest.mark.slow
async def test_workers_killed_at_any_moment_leave_every_log_whole(store: SqlStore, queue_url: str, tmp_path: Path):
    shop, moments = Shop(store), random.Random(7)
    names = [f"c{number}" for number in range(6)]
    for name in names:
        await shop.overfull(name)
    async with Queue.opened(queue_url) as queue:
        await queue.defer([Job("compact", "default", name) for name in names])
    for _ in range(KILLS):
        with worker(queue_url, tmp_path, seconds=0.05) as started:
            await started.asked()
            await asyncio.sleep(moments.uniform(0, 0.15))
            started.kill()
        if all([await compactions(store, name) for name in names]):
            break
    with worker(queue_url, tmp_path):
        for name in names:
            await eventually(lambda name=name: compactions(store, name), within=30)
        await asyncio.sleep(1.5)
    for name in names:
        await check_whole(store, name)


async def test_a_worker_told_to_stop_ends_what_it_does_and_says_so(store: SqlStore, queue_url: str, tmp_path: Path):
    shop = Shop(store)
    await shop.overfull()
    async with Queue.opened(queue_url) as queue:
        await queue.defer([Job("compact", "default", "c")])
    with worker(queue_url, tmp_path, seconds=0.5) as started:
        await started.asked()
        started.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(started.process.wait, 20) == 0
        events = [json.loads(line)["event"] for line in started.said().splitlines()]
    await check_whole(store, "c")
    assert events[0] == "worker_started"
    assert events[-1] == "worker_stopped"
    assert "why" not in started.said()


@pytest.mark.slow
async def test_a_worker_goes_on_after_the_database_was_restarted(backend: str, tmp_path: Path):
    with Cluster.start(18, fsync=True) as cluster:
        cluster.create_database("quire")
        cluster.create_role("quire_app")
        owner, url = cluster.url("quire"), cluster.url("quire", user="quire_app")
        migrate.upgrade(owner)
        migrate.grant(owner, "quire_app")
        schema.upgrade(owner)
        schema.grant(owner, "quire_app")
        async with SqlStore.open(url) as store:
            shop = Shop(store)
            for name in ("before", "during", "after"):
                await shop.overfull(name)
            with worker(url, tmp_path, seconds=0.4) as started:
                await _deferred(url, "before")
                await eventually(lambda: compactions(store, "before"))
                await _deferred(url, "during")
                await started.asked()
                await started.asked()
                await asyncio.to_thread(cluster.immediate_restart)
                back = time.monotonic()
                await _deferred(url, "after")
                for name in ("during", "after"):
                    await eventually(lambda name=name: compactions(store, name), within=60)
                assert time.monotonic() - back < 45
                assert started.process.poll() is None
                await asyncio.sleep(1.5)
            for name in ("before", "during", "after"):
                await check_whole(store, name)


async def _deferred(url: str, name: str) -> None:
    async with Queue.opened(url) as queue:
        await queue.defer([Job("compact", "default", name)])
