"""Telemetry of the server: Prometheus metrics, OpenTelemetry spans and log lines.

None of them contains content of messages.
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from fnmatch import fnmatchcase

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from opentelemetry.trace import TracerProvider
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.engine import Conversation
from quire.errors import ModelError, QuireError
from quire.llm import Model
from quire.model import Usage
from quire.model.events import TurnEnded, TurnEvent, TurnFailed
from quire.server.auth import CALLER_SCOPE_KEY
from quire.server.caller import Caller
from quire.server.problems import error_to_response
from quire.server.state import ServerState
from quire.server.telemetry.logs import log_server_event
from quire.server.telemetry.metrics import GatewayDecision, Metrics
from quire.server.telemetry.tracer import InstrumentedModel, ModelCallSpan, Tracing, continue_trace, get_trace_id
from quire.wire.http_errors import error_code

__all__ = ["Telemetry", "add_telemetry", "get_telemetry"]

REQUEST_ID_HEADER = "x-request-id"
CLIENT_CLOSED_REQUEST = 499
"""Status logged if the client disconnects before the response is complete."""
UNMATCHED_ROUTE = "unmatched"
"""Route label of unknown paths, which may contain anything."""
_UNLOGGED_ROUTES = ("/healthz", "/readyz", "/metrics")
_VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Telemetry:
    """Metrics and tracing of one application; `get_telemetry(request)` returns it."""

    def __init__(self, server_state: ServerState, *, provider: TracerProvider | None = None) -> None:
        def get_model_label(model: str | None) -> str:
            """Returns the model's name if the settings have it, else the upstream pattern that it matches, else
            "other". Clients may send any name, so names from requests are not used as labels."""
            settings = server_state.settings
            if model is None or model in (settings.model, settings.summarizer, *settings.upstreams):
                return model or "other"
            return next((each for each in settings.upstreams if fnmatchcase(model, each)), "other")

        self.metrics = Metrics(get_model_label=get_model_label)
        self.tracing = Tracing(provider)

    @contextmanager
    def observe_turn(self, conversation: Conversation, model: Model) -> Generator[Callable[[TurnEvent], None]]:
        """Traces and counts a turn; yields a function to call with each of its events."""
        started, end = time.perf_counter(), list[TurnEnded | TurnFailed]()
        agent = conversation.engine.agent.name
        self.metrics.running_turns.inc()
        with self.tracing.trace_turn(agent=agent, model=model.name, conversation=conversation.id) as spans:

            def observe(event: TurnEvent) -> None:
                self.metrics.count_turn_event(event)
                spans.handle_event(event)
                if isinstance(event, TurnEnded | TurnFailed):
                    end.append(event)

            try:
                yield observe
            finally:
                match end:
                    case [TurnEnded(reason=reason, usage=usage), *_]:
                        outcome, error = reason, None
                    case [TurnFailed(error=error, usage=usage), *_]:
                        outcome = "failed"
                    case _:
                        outcome, usage, error = "cancelled", None, None
                spans.finish(outcome, usage, error)
                self.metrics.count_turn_ended(outcome, time.perf_counter() - started)

    def instrument_model(self, model: Model) -> Model:
        """Wraps a model so that its calls are traced and its errors counted."""
        return InstrumentedModel(model, self.trace_gateway_call)

    @contextmanager
    def trace_gateway_call(self, model: str, *, conversation: str | None = None) -> Generator[ModelCallSpan]:
        """Traces a model call, and counts its error. Send the span's `headers` upstream."""
        with self.tracing.trace_call(model, conversation=conversation) as span:
            try:
                yield span
            except ModelError as error:
                self.metrics.count_upstream_error(error)
                raise

    def count_gateway_decision(self, decision: GatewayDecision) -> None:
        self.metrics.gateway_requests.labels(decision).inc()

    def observe_gateway_reply(self, span: ModelCallSpan, usage: Usage | None, finish_reason: str | None = None) -> None:
        span.set_reply(usage, finish_reason)
        if usage is not None:
            self.metrics.count_usage(usage)


def add_telemetry(app: FastAPI, server_state: ServerState, *, provider: TracerProvider | None = None) -> Telemetry:
    """Instruments an application and its shared state. Call it after adding all other middleware, to be outermost."""
    telemetry = Telemetry(server_state, provider=provider)
    app.state.telemetry = telemetry
    server_state.store.observe_transactions(telemetry.metrics.observe_transaction)
    server_state.subscribe(lambda tenant, event: telemetry.metrics.count_context_event(event))
    server_state.subscribe(telemetry.tracing.handle_context_event)
    server_state.turns.observer, server_state.instrument_model = telemetry.observe_turn, telemetry.instrument_model

    async def handle_quire_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, QuireError)
        # For the log line of the request.
        request.state.error_code = error_code(error)
        return error_to_response(error)

    app.add_exception_handler(QuireError, handle_quire_error)
    app.add_middleware(TelemetryMiddleware, metrics=telemetry.metrics)
    return telemetry


def get_telemetry(request: Request) -> Telemetry:
    return request.app.state.telemetry


class TelemetryMiddleware:
    """ASGI middleware that counts, times and logs each request at its end, and continues the client's trace.

    It uses methods, route templates, status codes and IDs, and never reads bodies.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, metrics = Headers(scope=scope), self._metrics
        request_id = headers.get(REQUEST_ID_HEADER, "")
        if not _VALID_REQUEST_ID.fullmatch(request_id):
            request_id = secrets.token_hex(8)
        started, response_started = time.perf_counter(), None
        status, is_stream, failure = CLIENT_CLOSED_REQUEST, False, None
        conversation: str | None = None

        async def observe_send(message: Message) -> None:
            nonlocal response_started, status, is_stream, conversation
            if message["type"] == "http.response.start":
                response_started, status = time.perf_counter(), message["status"]
                response_headers = MutableHeaders(scope=message)
                response_headers.setdefault(REQUEST_ID_HEADER, request_id)
                conversation = response_headers.get("x-quire-conversation")
                if response_headers.get("content-type", "").startswith("text/event-stream"):
                    is_stream = True
                    metrics.open_streams.inc()
            await send(message)

        with continue_trace(headers):
            try:
                await self._app(scope, receive, observe_send)
            except asyncio.CancelledError:
                status = CLIENT_CLOSED_REQUEST
                raise
            except BaseException as error:
                status, failure = 500, error
                raise
            finally:
                if is_stream:
                    metrics.open_streams.dec()
                ended = time.perf_counter()
                # The template of the path, such as `/api/conversations/{conversation}`.
                route = getattr(scope.get("route"), "path", None) or UNMATCHED_ROUTE
                wait_seconds = (response_started or ended) - started
                metrics.count_request(method=scope["method"], route=route, status=status, seconds=wait_seconds)
                if route not in _UNLOGGED_ROUTES or status >= 400:
                    caller: Caller | None = scope.get(CALLER_SCOPE_KEY)
                    log_server_event(
                        "request",
                        level=logging.ERROR if status >= 500 else logging.INFO,
                        error=failure,
                        method=scope["method"],
                        route=route,
                        status=status,
                        duration_ms=round((ended - started) * 1_000, 1),
                        first_byte_ms=round(wait_seconds * 1_000, 1) if is_stream else None,
                        request_id=request_id,
                        tenant=caller.tenant if caller is not None else None,
                        key=caller.key_id if caller is not None else None,
                        conversation=scope.get("path_params", {}).get("conversation", conversation),
                        error_code=scope.get("state", {}).get("error_code"),
                        trace_id=get_trace_id(),
                    )
