"""What the server counts, for Prometheus. Every label has few values, fixed in the code or named in the settings.

Never an id and never a word of what was said: a route is named by its template, a model only if the settings name it.
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
from quire.log.database import Connections
from quire.model import Compaction, Usage
from quire.model.events import CompactionFailed, CompactionStarted, ContextCompacted, ContextUsageUpdated, Event
from quire.model.turns import ReplyKept, ToolAnswered, TurnEvent

MEDIA_TYPE = CONTENT_TYPE_LATEST
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Where processes that share a port keep their counts, so that any of them can tell those of all."""

Decision = Literal["passed", "fitted", "refused"]
"""What the gateway made of a request: sent on as it came, made to fit, or not sent."""

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LONG_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_SHARES = (0.1, 0.25, 0.5, 0.7, 0.85, 1.0, 2.0, 5.0)

_UPSTREAM: dict[type[ModelError], str] = {
    errors.ModelOverflow: "overflow",
    errors.ModelThrottled: "throttled",
    errors.ModelRefused: "refused",
    errors.ModelInvalid: "invalid",
    errors.ModelUnavailable: "unavailable",
    errors.ModelError: "other",
}
_STORE: dict[type[StoreError], str] = {
    errors.StoreUnavailable: "unavailable",
    errors.StoreBusy: "busy",
    errors.SchemaOutdated: "schema",
    errors.StoreError: "other",
}


def upstream_kind(error: ModelError) -> str:
    return next(_UPSTREAM[kind] for kind in type(error).__mro__ if kind in _UPSTREAM)


def store_kind(error: StoreError) -> str:
    return next(_STORE[kind] for kind in type(error).__mro__ if kind in _STORE)


class Metrics:
    """The counts of one application, in a registry of its own. `label_of` turns a model's name into a label."""

    def __init__(self, *, label_of: Callable[[str | None], str] = lambda _: "other") -> None:
        self._label_of = label_of
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "quire_http_requests", "Requests that were answered.", ("method", "route", "status"), registry=registry
        )
        self._seconds = Histogram(
            "quire_http_request_seconds",
            "Time until the answer begins.",
            ("method", "route"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._streams = _gauge("quire_open_streams", "Event streams that are open.", registry)
        self._turns = Counter("quire_turns", "Turns, by how they ended.", ("outcome",), registry=registry)
        self._running = _gauge("quire_running_turns", "Turns under way.", registry)
        self._turn_seconds = Histogram(
            "quire_turn_seconds",
            "Time from a question to the end of its turn.",
            buckets=_LONG_SECONDS,
            registry=registry,
        )
        self._tools = Counter("quire_tool_calls", "Calls of tools.", ("outcome",), registry=registry)
        self._tokens = Counter(
            "quire_tokens",
            "Tokens sent to models, received from them, and of those sent, read from the provider's cache.",
            ("direction", "model"),
            registry=registry,
        )
        self._fill = Histogram(
            "quire_context_fill", "How full requests were, as a part of the window.", buckets=_SHARES, registry=registry
        )
        self._compactions = Counter("quire_compactions", "Compactions made.", ("trigger",), registry=registry)
        self._summary_failures = Counter(
            "quire_summary_failures", "Summaries that could not be made.", ("reason",), registry=registry
        )
        self._gateway = Counter(
            "quire_gateway_requests", "What the gateway made of requests.", ("decision",), registry=registry
        )
        self._upstream_errors = Counter(
            "quire_upstream_errors", "Calls of models that failed.", ("kind",), registry=registry
        )
        self._store_errors = Counter("quire_store_errors", "Transactions that failed.", ("kind",), registry=registry)
        self._store_seconds = Histogram(
            "quire_store_seconds",
            "Time of a transaction, waiting for a connection included.",
            ("kind",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._connections = _gauge(
            "quire_store_connections", "Connections to the database.", registry, labels=("state",)
        )
        self._begin_at_zero()
        if SHARED_FOLDER not in os.environ:
            ProcessCollector(registry=registry)

    def _begin_at_zero(self) -> None:
        """What has not happened yet is 0, and not missing: an alert on growth needs the value before."""
        for decision in get_args(Decision):
            self._gateway.labels(decision)
        for kind in _UPSTREAM.values():
            self._upstream_errors.labels(kind)
        for kind in _STORE.values():
            self._store_errors.labels(kind)

    def answered(self, *, method: str, route: str, status: int, seconds: float) -> None:
        """A request; `route` is the template of its path."""
        known = method if method in _METHODS else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)

    def stream_opened(self) -> None:
        self._streams.inc()

    def stream_closed(self) -> None:
        self._streams.dec()

    def turn_began(self) -> None:
        self._running.inc()

    def turn_over(self, outcome: str, seconds: float) -> None:
        self._running.dec()
        self._turns.labels(outcome).inc()
        self._turn_seconds.observe(seconds)

    def turn_told(self, event: TurnEvent) -> None:
        """Counts what an event of a turn says, but for its end."""
        match event:
            case ReplyKept(usage=usage):
                self.used(usage)
            case ToolAnswered(result=result):
                self._tools.labels("failed" if result.is_error else "answered").inc()
            case _:
                pass

    def context_told(self, event: Event) -> None:
        """Counts what an event of an engine says."""
        match event:
            case ContextCompacted(entry=entry) if isinstance(entry.body, Compaction):
                self._compactions.labels(entry.body.trigger).inc()
                if entry.body.usage is not None:
                    self.used(entry.body.usage)
            case CompactionFailed(reason=reason):
                self._summary_failures.labels(reason).inc()
            case ContextUsageUpdated(tokens=tokens, window=window):
                self._fill.observe(tokens / window)
            case CompactionStarted() | ContextCompacted():
                pass

    def used(self, usage: Usage) -> None:
        model = self._label_of(usage.model)
        for direction, tokens in (
            ("sent", usage.input_tokens),
            ("received", usage.output_tokens),
            ("cached", usage.cache_read_tokens),
        ):
            if tokens > 0:
                self._tokens.labels(direction, model).inc(tokens)

    def gateway_decided(self, decision: Decision) -> None:
        self._gateway.labels(decision).inc()

    def upstream_failed(self, error: ModelError) -> None:
        self._upstream_errors.labels(upstream_kind(error)).inc()

    def store_used(self, kind: Literal["read", "write"], seconds: float, failed: StoreError | None) -> None:
        self._store_seconds.labels(kind).observe(seconds)
        if failed is not None:
            self._store_errors.labels(store_kind(failed)).inc()

    def connected(self, connections: Connections) -> None:
        self._connections.labels("in_use").set(connections.in_use)
        self._connections.labels("idle").set(connections.idle)

    def page(self) -> bytes:
        """Everything as Prometheus reads it; where processes share a port, of all of them."""
        if SHARED_FOLDER not in os.environ:
            return generate_latest(self._registry)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)
        return generate_latest(everyone)


def _gauge(name: str, help: str, registry: CollectorRegistry, *, labels: tuple[str, ...] = ()) -> Gauge:
    return Gauge(name, help, labels, registry=registry, multiprocess_mode="livesum")
