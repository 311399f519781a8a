"""Garbage collections of a server process: they stay short, and free cycles once memory has grown."""

import asyncio
import gc
import socket
import subprocess
import sys
import time
from types import ModuleType

import pytest
from fastapi import FastAPI

from quire.concurrency.worker_threads import LONG_WORK_BYTES, run_sized
from quire.server import lifecycle, process_memory

CYCLE_BYTES = """
import asyncio
from quire.server import process_memory
from quire.server.process_memory import read_resident_bytes

async def main():
    process_memory.COLLECT_SECONDS = 0.2
    async with process_memory.collect_garbage():
        await asyncio.sleep(0.01)
        cycle = [b"x" * 50_000_000]
        cycle.append(cycle)
        full = read_resident_bytes()
        del cycle
        freed = read_resident_bytes()
        await asyncio.sleep(2)
    print(freed / full, read_resident_bytes() / full)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_a_cycle_that_holds_a_body_is_freed():
    command = [sys.executable, "-c", CYCLE_BYTES]
    freed, collected = map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert collected < 0.7 < 0.9 < freed


async def test_a_full_collection_does_not_walk_the_modules_of_the_server(app: FastAPI, monkeypatch: pytest.MonkeyPatch):
    walked: list[int] = []
    later: list[object] = []

    async def serve(*_: object, **__: object) -> None:
        walked.append(len(gc.get_objects()))
        later.extend([each] for each in range(20_000))
        monkeypatch.setitem(sys.modules, "imported_later", ModuleType("imported_later"))
        await asyncio.sleep(1)
        walked.append(len(gc.get_objects()))

    monkeypatch.setattr(process_memory, "IMPORT_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(lifecycle.GracefulServer, "serve", serve)
    interval = sys.getswitchinterval()
    try:
        with socket.socket() as listener:
            await lifecycle.run_server(app, listener, grace_seconds=1)
    finally:
        gc.unfreeze()
        sys.setswitchinterval(interval)
    assert walked[0] < 5_000
    assert walked[1] < 10_000


async def test_a_long_list_causes_few_collections_and_no_full_one():
    generations: list[int] = []

    def record(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    gc.callbacks.append(record)
    try:
        async with process_memory.shorten_collections():
            messages = [[each] for each in range(1_000_000)]
    finally:
        gc.callbacks.remove(record)
        gc.unfreeze()
    assert len(messages) == 1_000_000
    assert 2 not in generations
    # By default there are 1,400.
    assert len(generations) < 200


async def test_a_full_collection_waits_for_long_work(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process_memory, "COLLECT_SECONDS", 0.02)
    monkeypatch.setattr(process_memory, "COLLECT_GROWTH", 0.0)
    collected: list[float] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(time.monotonic()))
    async with process_memory.collect_garbage():
        await run_sized(LONG_WORK_BYTES + 1, time.sleep, 0.5)
        ended = time.monotonic()
        await asyncio.sleep(0.2)
    assert collected
    assert min(collected) >= ended
