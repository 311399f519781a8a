"""The monitor of the event loop measures its lag and logs stalls."""

import asyncio
import logging
import time

import pytest

from quire.server.telemetry import metrics as server_metrics
from quire.server.telemetry.metrics import Metrics, monitor_event_loop, read_cpu_wait_seconds


def read_lag_count(metrics: Metrics, above_seconds: str) -> float:
    lines = metrics.export().decode().splitlines()
    values = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}
    name = "quire_event_loop_lag_seconds"
    return values[f"{name}_count"] - values[f'{name}_bucket{{le="{above_seconds}"}}']


async def test_a_stall_is_measured_and_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(server_metrics, "LAG_INTERVAL_SECONDS", 0.01)
    metrics = Metrics()
    with caplog.at_level(logging.WARNING, "quire.server"):
        async with monitor_event_loop(metrics):
            await asyncio.sleep(0.05)
            caplog.clear()
            started_at = time.thread_time()
            while time.thread_time() - started_at < 0.3:
                pass
            await asyncio.sleep(0.05)
    fields = [record.__dict__["quire_fields"] for record in caplog.records]
    assert fields[0]["lag_ms"] > 200
    assert fields[0]["cpu_ms"] > 200
    assert fields[0]["cpu_wait_ms"] >= 0
    assert read_lag_count(metrics, "0.2") >= 1


def test_the_wait_for_a_cpu_only_grows():
    assert 0 <= read_cpu_wait_seconds() <= read_cpu_wait_seconds()
