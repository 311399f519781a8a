"""Memory of a server process: short garbage collections, and no memory that is free but not the system's.

Both are settings of the process, so that a program that embeds the engine makes its own choice.
"""

import asyncio
import ctypes
import gc
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

MAX_HEAP_BUFFER_BYTES = 1_000_000
"""Longer buffers, such as bodies of requests, have memory of their own, which the system gets back when they are freed.
By default glibc raises this limit up to 32 MB, and then a few small objects behind freed bodies hold hundreds of MB."""
MAX_HEAPS = 2
"""Heaps for all threads. By default each thread has one, and what one thread frees no other uses."""
IMPORT_CHECK_SECONDS = 5.0
"""Seconds between two looks for modules that were imported meanwhile."""
TRIM_SECONDS = 20.0
"""Seconds between two looks at the free memory of the heaps."""
MAX_FREE_HEAP_BYTES = 32_000_000
"""More free memory of the heaps goes back to the system. Small objects behind it would retain it forever."""
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


class _HeapInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@asynccontextmanager
async def exempt_modules() -> AsyncGenerator[None]:
    """Exempts the application and all modules from garbage collection within the block; they live as long as it.

    A full collection walks all objects while every thread waits, at a third of a microsecond each. The first turn
    imports the clients of models, which are a third of all objects of a server.
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

    gc.freeze()
    task = asyncio.create_task(exempt_new_modules(len(sys.modules)))
    try:
        yield
    finally:
        task.cancel()


@asynccontextmanager
async def trim_heaps() -> AsyncGenerator[None]:
    """Gives free pages of the heaps back to the system within the block, if there are many.

    Buffers of up to `MAX_HEAP_BUFFER_BYTES` are in the heaps, which glibc itself shrinks only at their end.
    """

    async def trim_regularly() -> None:
        libc = ctypes.CDLL(None)
        try:
            read_info = libc.mallinfo2
        except AttributeError:
            # Only glibc has it.
            return
        read_info.restype = _HeapInfo
        while True:
            await asyncio.sleep(TRIM_SECONDS)
            if read_info().fordblks > MAX_FREE_HEAP_BYTES:
                # 300 MB take 40 ms, without the interpreter's lock.
                await asyncio.to_thread(libc.malloc_trim, 0)

    task = asyncio.create_task(trim_regularly())
    try:
        yield
    finally:
        task.cancel()


def return_freed_memory() -> None:
    """Has glibc give large buffers back to the system when they are freed."""
    with suppress(AttributeError, OSError):
        # Only glibc has it.
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, MAX_HEAP_BUFFER_BYTES)
        set_option(_M_ARENA_MAX, MAX_HEAPS)
