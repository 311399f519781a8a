"""Garbage collections of a server process: short ones, and a full one when memory has grown.

Both are settings of the process, so that a program that embeds the engine makes its own choice.
"""

import asyncio
import gc
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from quire.concurrency.worker_threads import pause_long_work

IMPORT_CHECK_SECONDS = 5.0
"""Seconds between two looks for modules that were imported meanwhile."""
COLLECT_SECONDS = 20.0
"""Seconds between two looks at the memory of the process."""
COLLECT_GROWTH = 1.1
"""How many times the memory after the last look causes a full collection."""
YOUNG_OBJECTS = 10_000
"""New objects before a collection of young ones. The default of Python 3.11 is 700, less than the objects of a few
requests that are open at the same time: each collection walked them again, 5 % of a turn's CPU time."""
FULL_COLLECTION_INTERVAL = 1_000
"""Collections of young objects before a full one. By default it is 10, and a list of 100,000 messages caused a full
collection after the other, of up to 340 ms each, which freed nothing."""


@asynccontextmanager
async def shorten_collections() -> AsyncGenerator[None]:
    """Within the block, garbage collections walk few objects: every thread waits while they do.

    The application and all modules are exempt, because they live as long as the block. The first turn imports the
    clients of models, which are a third of all objects of a server. Collections are rare: reference counts free almost
    everything, and `collect_garbage` makes a full one when memory has grown.
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
async def collect_garbage() -> AsyncGenerator[None]:
    """Makes a full collection within the block, whenever memory has grown.

    Failed requests create cycles of errors and frames, which hold bodies until then.
    """

    async def collect_regularly() -> None:
        try:
            collected_bytes = read_resident_bytes()
        except OSError:
            # Only Linux says it.
            return
        while True:
            await asyncio.sleep(COLLECT_SECONDS)
            if read_resident_bytes() > COLLECT_GROWTH * collected_bytes:
                # Long work has the most objects to walk.
                async with pause_long_work():
                    gc.collect()
                collected_bytes = read_resident_bytes()

    task = asyncio.create_task(collect_regularly())
    try:
        yield
    finally:
        task.cancel()


def read_resident_bytes() -> int:
    [_, pages, *_] = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
