"""Memory of a server process: short garbage collections, and no memory that is free but not the system's.

Both are settings of the process, so that a program that embeds the engine makes its own choice.
"""

import asyncio
import ctypes
import gc
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from quire.concurrency.worker_threads import pause_long_work

MAX_HEAP_BUFFER_BYTES = 1_000_000
"""Longer buffers, such as bodies of requests, have memory of their own, which the system gets back when they are freed.
By default glibc raises this limit up to 32 MB, and then a few small objects behind freed bodies hold hundreds of MB."""
MAX_HEAPS = 2
"""Heaps for all threads. By default each thread has one, and what one thread frees no other uses."""
IMPORT_CHECK_SECONDS = 5.0
"""Seconds between two looks for modules that were imported meanwhile."""
TRIM_SECONDS = 20.0
"""Seconds between two looks at the memory of the process."""
TRIM_GROWTH = 1.1
"""How many times the memory after the last look makes the process look for what it can give back."""
YOUNG_OBJECTS = 10_000
"""New objects before a collection of young ones. The default of Python 3.11 is 700, less than the objects of a few
requests that are open at the same time: each collection walked them again, 5 % of a turn's CPU time."""
FULL_COLLECTION_INTERVAL = 1_000
"""Collections of young objects before a full one. By default it is 10, and a list of 100,000 messages caused a full
collection after the other, of up to 340 ms each, which freed nothing."""
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


@asynccontextmanager
async def shorten_collections() -> AsyncGenerator[None]:
    """Within the block, garbage collections walk few objects: every thread waits while they do.

    The application and all modules are exempt, because they live as long as the block. The first turn imports the
    clients of models, which are a third of all objects of a server. Collections are rare: reference counts free almost
    everything, and `trim_memory` makes a full one when memory has grown.
    """

    async def exempt_new_modules(exempt: int) -> None:
        before = exempt
        while True:
            await asyncio.sleep(IMPORT_CHECK_SECONDS)
            current = len(sys.modules)
            if before == current > exempt:
                gc.freeze()
                exempt = current
            before = current

    thresholds = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, thresholds[1], FULL_COLLECTION_INTERVAL)
    gc.freeze()
    task = asyncio.create_task(exempt_new_modules(len(sys.modules)))
    try:
        yield
    finally:
        task.cancel()
        gc.set_threshold(*thresholds)


@asynccontextmanager
async def trim_memory() -> AsyncGenerator[None]:
    """Gives memory back to the system within the block, whenever it has grown.

    Failed requests create cycles of errors and frames, which hold bodies until a full collection. Buffers of up to
    `MAX_HEAP_BUFFER_BYTES` are in the heaps, which glibc itself shrinks only at their end.
    """

    async def trim_regularly() -> None:
        try:
            trim, trimmed_bytes = ctypes.CDLL(None).malloc_trim, read_resident_bytes()
        except (AttributeError, OSError):
            # Only glibc and Linux have them.
            return
        while True:
            await asyncio.sleep(TRIM_SECONDS)
            if read_resident_bytes() > TRIM_GROWTH * trimmed_bytes:
                # Long work has the most objects to walk.
                async with pause_long_work():
                    gc.collect()
                # 300 MB take 40 ms, without the interpreter's lock.
                await asyncio.to_thread(trim, 0)
                trimmed_bytes = read_resident_bytes()

    task = asyncio.create_task(trim_regularly())
    try:
        yield
    finally:
        task.cancel()


def read_resident_bytes() -> int:
    [_, pages, *_] = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def return_freed_memory() -> None:
    """Has glibc give large buffers back to the system when they are freed."""
    with suppress(AttributeError, OSError):
        # Only glibc has it.
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, MAX_HEAP_BUFFER_BYTES)
        set_option(_M_ARENA_MAX, MAX_HEAPS)
