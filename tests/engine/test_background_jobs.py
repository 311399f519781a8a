"""Background jobs in this process: deduplicated by kind and branch, bounded, and their unexpected errors are raised."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quire.engine.background_jobs import InProcessJobs, TaskQueue
from quire.errors import ContextOverflow


class Recorder:
    """Work that waits for `release` and counts what ran."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.release = asyncio.Event()

    def work(self, name: str, error: Exception | None = None) -> Callable[[], Coroutine[Any, Any, None]]:
        async def run() -> None:
            self.started.append(name)
            await self.release.wait()
            if error is not None:
                raise error

        return run


async def test_of_the_same_job_one_runs_and_one_waits():
    jobs, recorder = InProcessJobs(), Recorder()
    for number in range(4):
        jobs.enqueue("compact", "c", 0, recorder.work(f"compact {number}"))
        await asyncio.sleep(0)
    jobs.enqueue("compact", "c", 1, recorder.work("other branch"))
    jobs.enqueue("index_messages", "c", 0, recorder.work("other kind"))
    await asyncio.sleep(0)
    assert recorder.started == ["compact 0", "other branch", "other kind"]
    recorder.release.set()
    await jobs.wait()
    assert recorder.started == ["compact 0", "other branch", "other kind", "compact 1"]


async def test_an_unexpected_error_is_raised_once_and_an_expected_one_never():
    jobs, recorder = InProcessJobs(), Recorder()
    recorder.release.set()
    overflow = ContextOverflow(needed_tokens=2, available_tokens=1, largest_items=())
    jobs.enqueue("compact", "a", 0, recorder.work("expected", overflow))
    jobs.enqueue("compact", "b", 0, recorder.work("unexpected", OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        await jobs.wait()
    await jobs.wait()
    assert recorder.started == ["expected", "unexpected"]


async def test_no_more_run_at_once_than_the_limit_and_waiting_covers_what_a_job_starts():
    queue, recorder = TaskQueue(max_concurrent=2), Recorder()

    async def run_and_submit() -> None:
        queue.submit("last", recorder.work("last"))

    for number in range(4):
        queue.submit(number, recorder.work(str(number)))
    queue.submit("submits", run_and_submit)
    await asyncio.sleep(0.01)
    assert recorder.started == ["0", "1"]
    recorder.release.set()
    await queue.wait()
    assert recorder.started == ["0", "1", "2", "3", "last"]
