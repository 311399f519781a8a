"""Prometheus metrics of the server, and the monitor of its event loop.

Labels have few values, fixed in the code or named in the settings; never an ID or content. A route is labelled by its
template, a model only if the settings name it.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from quire import errors
from quire.db.database import PoolStats
from quire.errors import ModelError, QuireError, StoreError
from quire.model import Compaction, Usage
from quire.model.context_events import (
    CompactionFailed,
    CompactionStarted,
    ContextCompacted,
    ContextEvent,
    ContextUsageUpdated,
)
from quire.model.events import ReplyRecorded, ToolCompleted, TurnEvent
from quire.server.telemetry.logs import log_server_event

METRICS_MEDIA_TYPE = CONTENT_TYPE_LATEST
MULTIPROCESS_DIR_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the directory through which worker processes share counts; any of them exports all."""

LAG_INTERVAL_SECONDS = 0.05
"""Seconds between two measurements of the event loop's lag. A stall is measured short by at most this time."""
STALL_SECONDS = 0.2
"""A longer lag is logged as a stall."""

GatewayDecision = Literal["passthrough", "fitted", "rejected"]
"""How the gateway handled a request: forwarded unchanged, fitted to the window, or not forwarded."""

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
_LATENCY_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TURN_BUCKETS_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_LAG_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_FILL_RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.7, 0.85, 1.0, 2.0, 5.0)

_UPSTREAM_ERROR_KINDS: dict[type[QuireError], str] = {
    errors.ModelContextOverflow: "overflow",
    errors.ModelRateLimited: "throttled",
    errors.ModelRefused: "refused",
    errors.ModelRequestRejected: "invalid",
    errors.ModelUnavailable: "unavailable",
    errors.ModelError: "other",
}
_STORE_ERROR_KINDS: dict[type[QuireError], str] = {
    errors.StoreUnavailable: "unavailable",
    errors.StoreBusy: "busy",
    errors.SchemaOutdated: "schema",
    errors.StoreError: "other",
}


class Metrics:
    """Metrics of one application, in their own registry. `get_model_label` turns a model's name into a label."""

    def __init__(self, *, get_model_label: Callable[[str | None], str] = lambda _: "other") -> None:
        self._get_model_label = get_model_label
        self._registry = registry = CollectorRegistry()
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        gauge = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        self._requests = counter("quire_http_requests", "HTTP requests answered.", ("method", "route", "status"))
        self._request_seconds = histogram(
            "quire_http_request_duration_seconds",
            "Time until the response starts.",
            ("method", "route"),
            buckets=_LATENCY_BUCKETS_SECONDS,
        )
        self.event_loop_lag = histogram(
            "quire_event_loop_lag_seconds",
            "Time by which the event loop runs late; all requests wait for it.",
            buckets=_LAG_BUCKETS_SECONDS,
        )
        self.open_streams = gauge("quire_open_streams", "Open event streams.")
        self._turns = counter("quire_turns", "Turns by outcome.", ("outcome",))
        self.running_turns = gauge("quire_running_turns", "Running turns.")
        self._turn_seconds = histogram(
            "quire_turn_duration_seconds",
            "Time from the question to the end of the turn.",
            buckets=_TURN_BUCKETS_SECONDS,
        )
        self._tool_calls = counter("quire_tool_calls", "Tool calls by outcome.", ("outcome",))
        self._tokens = counter(
            "quire_tokens",
            "Input and output tokens of models, and input tokens read from the provider's cache.",
            ("direction", "model"),
        )
        self._context_fill = histogram(
            "quire_context_fill_ratio",
            "Tokens of a request divided by the context window.",
            buckets=_FILL_RATIO_BUCKETS,
        )
        self._compactions = counter("quire_compactions", "Compactions by trigger.", ("trigger",))
        self._summary_failures = counter("quire_summary_failures", "Failed summaries by reason.", ("reason",))
        self.gateway_requests = counter("quire_gateway_requests", "Gateway requests by decision.", ("decision",))
        self._upstream_errors = counter("quire_upstream_errors", "Failed model calls by kind.", ("kind",))
        self._store_errors = counter("quire_store_errors", "Failed transactions by kind.", ("kind",))
        self._store_seconds = histogram(
            "quire_store_transaction_duration_seconds",
            "Time of a transaction, including the wait for a connection.",
            ("kind",),
            buckets=_LATENCY_BUCKETS_SECONDS,
        )
        self._connections = gauge("quire_store_connections", "Database connections by state.", ("state",))
        # Exported at 0 before the first event: an alert on growth needs the previous value.
        for decision in get_args(GatewayDecision):
            self.gateway_requests.labels(decision)
        for kind in _UPSTREAM_ERROR_KINDS.values():
            self._upstream_errors.labels(kind)
        for kind in _STORE_ERROR_KINDS.values():
            self._store_errors.labels(kind)
        if MULTIPROCESS_DIR_VARIABLE not in os.environ:
            ProcessCollector(registry=registry)

    def count_request(self, *, method: str, route: str, status: int, seconds: float) -> None:
        """Counts a request; `route` is the template of its path."""
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(method, route).observe(seconds)

    def count_turn_ended(self, outcome: str, seconds: float) -> None:
        self.running_turns.dec()
        self._turns.labels(outcome).inc()
        self._turn_seconds.observe(seconds)

    def count_turn_event(self, event: TurnEvent) -> None:
        """Counts token usage and tool calls. The end of the turn is counted by `count_turn_ended`."""
        match event:
            case ReplyRecorded(usage=usage):
                self.count_usage(usage)
            case ToolCompleted(result=result):
                self._tool_calls.labels("failed" if result.is_error else "answered").inc()
            case _:
                pass

    def count_context_event(self, event: ContextEvent) -> None:
        """Counts compactions, failed summaries and context fill."""
        match event:
            case ContextCompacted(entry=entry) if isinstance(entry.body, Compaction):
                self._compactions.labels(entry.body.trigger).inc()
                if entry.body.usage is not None:
                    self.count_usage(entry.body.usage)
            case CompactionFailed(reason=reason):
                self._summary_failures.labels(reason).inc()
            case ContextUsageUpdated(tokens=tokens, window=window):
                self._context_fill.observe(tokens / window)
            case CompactionStarted() | ContextCompacted():
                pass

    def count_usage(self, usage: Usage) -> None:
        model = self._get_model_label(usage.model)
        for direction, tokens in (
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cache_read", usage.cache_read_tokens),
            ("cache_write", usage.cache_write_tokens),
        ):
            if tokens > 0:
                self._tokens.labels(direction, model).inc(tokens)

    def count_upstream_error(self, error: ModelError) -> None:
        self._upstream_errors.labels(_find_kind(error, _UPSTREAM_ERROR_KINDS)).inc()

    def observe_transaction(self, kind: Literal["read", "write"], seconds: float, error: StoreError | None) -> None:
        self._store_seconds.labels(kind).observe(seconds)
        if error is not None:
            self._store_errors.labels(_find_kind(error, _STORE_ERROR_KINDS)).inc()

    def set_connections(self, connections: PoolStats) -> None:
        self._connections.labels("in_use").set(connections.in_use)
        self._connections.labels("idle").set(connections.idle)

    def export(self) -> bytes:
        """Returns the metrics of all worker processes in Prometheus' text format."""
        if MULTIPROCESS_DIR_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        combined = CollectorRegistry()
        MultiProcessCollector(combined)
        return generate_latest(combined)


def _find_kind(error: QuireError, kinds: Mapping[type[QuireError], str]) -> str:
    """Returns the kind of the nearest class in the error's MRO."""
    return next(kinds[each] for each in type(error).__mro__ if each in kinds)


@asynccontextmanager
async def monitor_event_loop(metrics: Metrics) -> AsyncGenerator[None]:
    """Measures how late the event loop runs within the block, and logs stalls.

    Every request waits for as long as the event loop does, so a lag concerns all callers, regardless of its cause.
    """
    task = asyncio.get_running_loop().create_task(_measure_lag(metrics))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _measure_lag(metrics: Metrics) -> None:
    """Measures the lag of the running event loop until it is cancelled.

    A stall is logged, unless a person watches: it is for who runs a server, and the lag is in the metrics, too. The log
    line shows its cause. With as many CPU seconds as lag, this process was computing; with
    fewer, it waited. `cpu_wait_ms` is the time that the event loop was ready to run and the machine gave it no CPU.
    """
    while True:
        started_at, cpu_before, wait_before = time.perf_counter(), time.process_time(), read_cpu_wait_seconds()
        await asyncio.sleep(LAG_INTERVAL_SECONDS)
        lag = max(0.0, time.perf_counter() - started_at - LAG_INTERVAL_SECONDS)
        metrics.event_loop_lag.observe(lag)
        if lag > STALL_SECONDS and not sys.stderr.isatty():
            cpu, cpu_wait = time.process_time() - cpu_before, read_cpu_wait_seconds() - wait_before
            log_server_event(
                "event loop stalled",
                level=logging.WARNING,
                lag_ms=round(lag * 1_000, 1),
                cpu_ms=round(cpu * 1_000, 1),
                cpu_wait_ms=round(cpu_wait * 1_000, 1),
            )


def read_cpu_wait_seconds() -> float:
    """Total time that the main thread was ready to run without a CPU, or 0 where the system does not report it."""
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="utf-8").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
