"""Monitor of the event loop: measures how late it runs, exports the lag, and logs stalls.

Every request waits for as long as the event loop does, so a lag concerns all callers, regardless of its cause.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from quire.server.telemetry.logs import log_server_event
from quire.server.telemetry.metrics import Metrics

LAG_INTERVAL_SECONDS = 0.05
"""Seconds between two measurements of the lag. A stall is measured short by at most this time."""
STALL_SECONDS = 0.2
"""A longer lag is logged as a stall."""


async def measure_lag(metrics: Metrics) -> None:
    """Measures the lag of the running event loop until it is cancelled.

    The log line of a stall shows its cause. With as many CPU seconds as lag, this process was computing; with
    fewer, it waited. `cpu_wait_ms` is the time that the event loop was ready to run and the machine gave it no CPU.
    """
    while True:
        started_at, cpu_before, wait_before = time.perf_counter(), time.process_time(), read_cpu_wait_seconds()
        await asyncio.sleep(LAG_INTERVAL_SECONDS)
        lag = max(0.0, time.perf_counter() - started_at - LAG_INTERVAL_SECONDS)
        metrics.observe_event_loop_lag(lag)
        if lag > STALL_SECONDS:
            log_server_event(
                "event loop stalled",
                level=logging.WARNING,
                lag_ms=_to_ms(lag),
                cpu_ms=_to_ms(time.process_time() - cpu_before),
                cpu_wait_ms=_to_ms(read_cpu_wait_seconds() - wait_before),
            )


def read_cpu_wait_seconds() -> float:
    """Total time that the main thread was ready to run without a CPU; 0 where the system does not report it."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _to_ms(seconds: float) -> float:
    return round(seconds * 1_000, 1)


@asynccontextmanager
async def monitor_event_loop(metrics: Metrics) -> AsyncGenerator[None]:
    """Measures the lag of the event loop within the block."""
    task = asyncio.get_running_loop().create_task(measure_lag(metrics))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
