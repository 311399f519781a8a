"""Prometheus metrics of the server.

Labels have few values, fixed in the code or named in the settings; never an ID or content. A route is labelled by its
template, a model only if the settings name it.
"""

import os
from collections.abc import Callable
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
from quire.errors import ModelError, StoreError
from quire.log.database import PoolStats
from quire.model import Compaction, Usage
from quire.model.context_events import (
    CompactionFailed,
    CompactionStarted,
    ContextCompacted,
    ContextEvent,
    ContextUsageUpdated,
)
from quire.model.events import ReplyRecorded, ToolCompleted, TurnEvent

METRICS_MEDIA_TYPE = CONTENT_TYPE_LATEST
MULTIPROCESS_DIR_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the directory through which worker processes share counts; any of them exports all."""

GatewayDecision = Literal["passthrough", "fitted", "rejected"]
"""How the gateway handled a request: forwarded unchanged, fitted to the window, or not forwarded."""

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
_LATENCY_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TURN_BUCKETS_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_LAG_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_FILL_RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.7, 0.85, 1.0, 2.0, 5.0)

_UPSTREAM_ERROR_KINDS: dict[type[ModelError], str] = {
    errors.ModelContextOverflow: "overflow",
    errors.ModelRateLimited: "throttled",
    errors.ModelRefused: "refused",
    errors.ModelRequestRejected: "invalid",
    errors.ModelUnavailable: "unavailable",
    errors.ModelError: "other",
}
_STORE_ERROR_KINDS: dict[type[StoreError], str] = {
    errors.StoreUnavailable: "unavailable",
    errors.StoreBusy: "busy",
    errors.SchemaOutdated: "schema",
    errors.StoreError: "other",
}


def classify_upstream_error(error: ModelError) -> str:
    return next(_UPSTREAM_ERROR_KINDS[kind] for kind in type(error).__mro__ if kind in _UPSTREAM_ERROR_KINDS)


def classify_store_error(error: StoreError) -> str:
    return next(_STORE_ERROR_KINDS[kind] for kind in type(error).__mro__ if kind in _STORE_ERROR_KINDS)


class Metrics:
    """Metrics of one application, in their own registry. `get_model_label` turns a model's name into a label."""

    def __init__(self, *, get_model_label: Callable[[str | None], str] = lambda _: "other") -> None:
        self._get_model_label = get_model_label
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "quire_http_requests", "HTTP requests answered.", ("method", "route", "status"), registry=registry
        )
        self._request_seconds = Histogram(
            "quire_http_request_duration_seconds",
            "Time until the response starts.",
            ("method", "route"),
            buckets=_LATENCY_BUCKETS_SECONDS,
            registry=registry,
        )
        self._event_loop_lag = Histogram(
            "quire_event_loop_lag_seconds",
            "Time by which the event loop runs late; all requests wait for it.",
            buckets=_LAG_BUCKETS_SECONDS,
            registry=registry,
        )
        self._open_streams = _build_gauge("quire_open_streams", "Open event streams.", registry)
        self._turns = Counter("quire_turns", "Turns by outcome.", ("outcome",), registry=registry)
        self._running_turns = _build_gauge("quire_running_turns", "Running turns.", registry)
        self._turn_seconds = Histogram(
            "quire_turn_duration_seconds",
            "Time from the question to the end of the turn.",
            buckets=_TURN_BUCKETS_SECONDS,
            registry=registry,
        )
        self._tool_calls = Counter("quire_tool_calls", "Tool calls by outcome.", ("outcome",), registry=registry)
        self._tokens = Counter(
            "quire_tokens",
            "Input and output tokens of models, and input tokens read from the provider's cache.",
            ("direction", "model"),
            registry=registry,
        )
        self._context_fill = Histogram(
            "quire_context_fill_ratio",
            "Tokens of a request divided by the context window.",
            buckets=_FILL_RATIO_BUCKETS,
            registry=registry,
        )
        self._compactions = Counter("quire_compactions", "Compactions by trigger.", ("trigger",), registry=registry)
        self._summary_failures = Counter(
            "quire_summary_failures", "Failed summaries by reason.", ("reason",), registry=registry
        )
        self._gateway_requests = Counter(
            "quire_gateway_requests", "Gateway requests by decision.", ("decision",), registry=registry
        )
        self._upstream_errors = Counter(
            "quire_upstream_errors", "Failed model calls by kind.", ("kind",), registry=registry
        )
        self._store_errors = Counter("quire_store_errors", "Failed transactions by kind.", ("kind",), registry=registry)
        self._store_seconds = Histogram(
            "quire_store_transaction_duration_seconds",
            "Time of a transaction, including the wait for a connection.",
            ("kind",),
            buckets=_LATENCY_BUCKETS_SECONDS,
            registry=registry,
        )
        self._connections = _build_gauge(
            "quire_store_connections", "Database connections by state.", registry, labels=("state",)
        )
        self._initialize_labels()
        if MULTIPROCESS_DIR_VARIABLE not in os.environ:
            ProcessCollector(registry=registry)

    def _initialize_labels(self) -> None:
        """Exports counters at 0 before the first event: an alert on growth needs the previous value."""
        for decision in get_args(GatewayDecision):
            self._gateway_requests.labels(decision)
        for kind in _UPSTREAM_ERROR_KINDS.values():
            self._upstream_errors.labels(kind)
        for kind in _STORE_ERROR_KINDS.values():
            self._store_errors.labels(kind)

    def count_request(self, *, method: str, route: str, status: int, seconds: float) -> None:
        """Counts a request; `route` is the template of its path."""
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(method, route).observe(seconds)

    def observe_event_loop_lag(self, seconds: float) -> None:
        self._event_loop_lag.observe(seconds)

    def count_stream_opened(self) -> None:
        self._open_streams.inc()

    def count_stream_closed(self) -> None:
        self._open_streams.dec()

    def count_turn_started(self) -> None:
        self._running_turns.inc()

    def count_turn_ended(self, outcome: str, seconds: float) -> None:
        self._running_turns.dec()
        self._turns.labels(outcome).inc()
        self._turn_seconds.observe(seconds)

    def count_turn_event(self, event: TurnEvent) -> None:
        """Counts token usage and tool calls; the end of the turn is counted by `count_turn_ended`."""
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
        ):
            if tokens > 0:
                self._tokens.labels(direction, model).inc(tokens)

    def count_gateway_decision(self, decision: GatewayDecision) -> None:
        self._gateway_requests.labels(decision).inc()

    def count_upstream_error(self, error: ModelError) -> None:
        self._upstream_errors.labels(classify_upstream_error(error)).inc()

    def observe_transaction(self, kind: Literal["read", "write"], seconds: float, error: StoreError | None) -> None:
        self._store_seconds.labels(kind).observe(seconds)
        if error is not None:
            self._store_errors.labels(classify_store_error(error)).inc()

    def set_connections(self, connections: PoolStats) -> None:
        self._connections.labels("in_use").set(connections.in_use)
        self._connections.labels("idle").set(connections.idle)

    def export(self) -> bytes:
        """Returns all metrics in Prometheus' text format; with several worker processes, those of all."""
        if MULTIPROCESS_DIR_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        combined = CollectorRegistry()
        MultiProcessCollector(combined)
        return generate_latest(combined)


def _build_gauge(name: str, help: str, registry: CollectorRegistry, *, labels: tuple[str, ...] = ()) -> Gauge:
    return Gauge(name, help, labels, registry=registry, multiprocess_mode="livesum")
