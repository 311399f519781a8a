"""The worker process of a server: long work leaves the process, has a deadline, and is measured by tenant."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.concurrency.worker_threads import (
    LONG_WORK_BYTES,
    run_portable,
    set_work_owner,
    use_worker_process,
    work_meter,
)
from quire.errors import SummaryFailed, WorkTimeout
from quire.wire.tokens import load_tokenizer

LONG = LONG_WORK_BYTES + 1


@pytest.fixture
def process() -> Iterator[None]:
    with use_worker_process():
        yield


def compute(seconds: float) -> int:
    ends_at = time.process_time() + seconds
    while time.process_time() < ends_at:
        pass
    return os.getpid()


def fail() -> None:
    raise SummaryFailed("overflow", "Too long.", calls=3)


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().split()[2] != "Z"


async def wait_until_gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while is_alive(pid):  # noqa: ASYNC110 (another process ends)
            await asyncio.sleep(0.01)


async def test_only_a_server_runs_long_work_in_a_process():
    assert await run_portable(LONG, os.getpid) == os.getpid()
    with use_worker_process():
        assert await run_portable(LONG_WORK_BYTES, os.getpid) == os.getpid()
        pid = await run_portable(LONG, os.getpid)
        assert pid != os.getpid()
        assert await run_portable(LONG, os.getpid) == pid
    await wait_until_gone(pid)


@pytest.mark.usefixtures("process")
async def test_long_work_is_killed_at_its_deadline(monkeypatch: pytest.MonkeyPatch):
    pid = await run_portable(LONG, os.getpid)
    monkeypatch.setattr("quire.concurrency.worker_threads.MAX_WORK_SECONDS", 0.05)
    with pytest.raises(WorkTimeout, match="took too long"):
        await run_portable(LONG, compute, 60.0)
    assert not is_alive(pid)
    monkeypatch.undo()
    assert await run_portable(LONG, os.getpid) != pid


@pytest.mark.usefixtures("process")
async def test_a_process_that_dies_fails_its_caller_only():
    with pytest.raises(WorkTimeout, match="died"):
        await run_portable(LONG, os._exit, 1)
    assert await run_portable(LONG, os.getpid) != os.getpid()


@pytest.mark.usefixtures("process")
async def test_an_idle_process_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.concurrency.worker_threads.IDLE_SECONDS", 0.05)
    pid = await run_portable(LONG, os.getpid)
    await wait_until_gone(pid)
    assert await run_portable(LONG, os.getpid) != pid


@pytest.mark.usefixtures("process")
async def test_an_error_keeps_its_fields():
    with pytest.raises(SummaryFailed, match=r"Too long\.") as failed:
        await run_portable(LONG, fail)
    assert (failed.value.reason, failed.value.calls) == ("overflow", 3)


@pytest.mark.usefixtures("process")
async def test_the_work_counts_for_its_owner():
    set_work_owner("busy")
    assert work_meter.measure_wait("busy", 0.1) == 0
    await run_portable(LONG, compute, 0.3)
    assert work_meter.measure_wait("busy", 0.1) > 0


@pytest.mark.usefixtures("process")
async def test_texts_are_counted_in_the_process():
    counter = load_tokenizer("o200k_base")
    counted = counter.count("The water mill")
    assert await run_portable(LONG, counter.count, "The water mill") == counted
