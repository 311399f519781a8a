"""Memory of a server process: freed bodies go back to the system, and full garbage collections stay short."""

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

RETAINED_BYTES = """
import threading
from pathlib import Path
from quire.server.process_memory import return_freed_memory

def read_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def work(kept):
    # Once a large buffer was freed, glibc takes the next one of its size from the heap, which cannot shrink while an
    # object behind the buffer lives.
    for megabytes in (1, 4, 8, 19, 19):
        body = b"x" * (megabytes * 1_000_000)
        copies = [body + b"y", body + b"z"]
        kept.append(bytes(2_000))

if {is_tuned}:
    return_freed_memory()
before, kept = read_bytes(), []
threads = [threading.Thread(target=work, args=(kept,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(read_bytes() - before)
"""


FRAGMENTED_BYTES = """
import asyncio
from quire.server import process_memory
from quire.server.process_memory import read_resident_bytes

async def main():
    process_memory.TRIM_SECONDS = 0.2
    async with process_memory.trim_memory():
        await asyncio.sleep(0.01)
        # Each hundredth object remains, so that no end of the heap is free. A cycle holds a body.
        objects = [bytes(600 + number % 800) for number in range(100_000)]
        kept, cycle = objects[::100], [bytes(50_000_000)]
        cycle.append(cycle)
        full = read_resident_bytes()
        del objects, cycle
        freed = read_resident_bytes()
        await asyncio.sleep(2)
    print(freed / full, read_resident_bytes() / full)

asyncio.run(main())
"""


def measure_retained_bytes(*, is_tuned: bool) -> int:
    code = RETAINED_BYTES.replace("{is_tuned}", str(is_tuned))
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_bodies_go_back_to_the_system():
    assert measure_retained_bytes(is_tuned=True) < 5_000_000 < measure_retained_bytes(is_tuned=False)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_cycles_and_fragmented_heaps_go_back_to_the_system():
    command = [sys.executable, "-c", FRAGMENTED_BYTES]
    freed, trimmed = map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert trimmed < 0.4 < 0.9 < freed


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


async def test_memory_is_trimmed_between_long_work(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process_memory, "TRIM_SECONDS", 0.02)
    monkeypatch.setattr(process_memory, "TRIM_GROWTH", 0.0)
    collected: list[float] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(time.monotonic()))
    async with process_memory.trim_memory():
        await run_sized(LONG_WORK_BYTES + 1, time.sleep, 0.5)
        ended = time.monotonic()
        await asyncio.sleep(0.2)
    assert collected
    assert min(collected) >= ended
