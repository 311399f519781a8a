"""Worker threads: large work leaves the event loop, and one owner cannot occupy all threads."""

import asyncio
import threading
import time

import pytest

from quire.concurrency.worker_threads import (
    LONG_WORK_BYTES,
    MAX_EVENT_LOOP_BYTES,
    MIN_PART_BYTES,
    WORKER_THREADS,
    WorkMeter,
    measure_messages,
    run_in_worker,
    run_sized,
    set_work_owner,
)
from quire.errors import WorkTimeout
from quire.model import Message


async def test_only_large_work_runs_in_a_thread():
    small = await run_sized(MAX_EVENT_LOOP_BYTES, threading.current_thread)
    large = await run_sized(MAX_EVENT_LOOP_BYTES + 1, threading.current_thread)
    assert small is threading.current_thread()
    assert large is not threading.current_thread()


async def run_as(owner: str, started: list[str], release: threading.Event, *, size: int = LONG_WORK_BYTES) -> None:
    def work() -> None:
        started.append(owner)
        assert release.wait(10)

    set_work_owner(owner)
    await run_sized(size, work)


async def wait_for_start(owner: str, started: list[str]) -> None:
    while owner not in started:  # noqa: ASYNC110 (another thread appends to it)
        await asyncio.sleep(0.001)


def test_work_is_measured_by_owner_and_drains_in_a_minute():
    current = 100.0
    meter = WorkMeter(clock=lambda: current)
    meter.add("unmeasured", 1_000.0)
    assert [meter.measure_wait(owner, 6.0) for owner in ("busy", "idle", "unmeasured")] == [0, 0, 0]
    meter.add("busy", 6.0)
    assert meter.measure_wait("busy", 6.0) == 0
    meter.add("busy", 3.0)
    assert meter.measure_wait("busy", 6.0) == 30
    current += 29.0
    assert (meter.measure_wait("busy", 6.0), meter.measure_wait("idle", 6.0)) == (1, 0)
    current += 1.0
    assert meter.measure_wait("busy", 6.0) == 0


async def test_an_owner_has_one_job_at_a_time():
    started, release = list[str](), threading.Event()
    greedy = [asyncio.create_task(run_as("greedy", started, release)) for _ in range(WORKER_THREADS + 2)]
    await wait_for_start("greedy", started)
    other = asyncio.create_task(run_as("other", started, release))
    await wait_for_start("other", started)
    assert started == ["greedy", "other"]
    release.set()
    await asyncio.gather(other, *greedy)
    assert len(started) == len(greedy) + 1


async def test_a_cancelled_job_counts_until_its_thread_is_free():
    started, release = list[str](), threading.Event()
    abandoned = asyncio.create_task(run_as("a", started, release))
    await wait_for_start("a", started)
    for _ in range(3):
        abandoned.cancel()
        await asyncio.sleep(0.001)
    following = asyncio.create_task(run_as("a", started, release))
    await asyncio.sleep(0.02)
    assert started == ["a"]
    assert not abandoned.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await abandoned
    await following


async def test_long_jobs_of_many_owners_leave_a_thread_for_short_ones():
    started, release = list[str](), threading.Event()
    owners = [f"long {number}" for number in range(WORKER_THREADS + 1)]
    long = [asyncio.create_task(run_as(owner, started, release, size=LONG_WORK_BYTES + 1)) for owner in owners]
    await wait_for_start(owners[0], started)
    short = asyncio.create_task(run_as("short", started, release))
    await wait_for_start("short", started)
    assert started == [owners[0], "short"]
    release.set()
    await asyncio.gather(short, *long)
    assert started[2:] == owners[1:]


async def test_a_long_job_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.concurrency.worker_threads.MAX_WORK_SECONDS", 0.05)

    def work() -> None:
        ends_at = time.monotonic() + 20
        while time.monotonic() < ends_at:
            pass

    started_at = time.monotonic()
    with pytest.raises(WorkTimeout, match="took too long"):
        await run_sized(LONG_WORK_BYTES + 1, work)
    assert time.monotonic() - started_at < 10
    # The thread, and those that wait for it, go on.
    assert await asyncio.gather(*[run_sized(LONG_WORK_BYTES + 1, lambda: "done") for _ in range(3)]) == ["done"] * 3


async def test_an_error_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        await run_in_worker(lambda: 1 // 0)


def test_many_tiny_messages_are_large():
    assert measure_messages([Message.user("a")] * 1_000) == 1_000 * (MIN_PART_BYTES + 1)
    assert measure_messages([Message.tool("c", "x" * 500)]) == MIN_PART_BYTES + 500
