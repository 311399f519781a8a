"""ASGI middleware, the outermost: counts, times and logs each request at its end.

It uses methods, route templates, status codes and IDs, and never reads bodies.
"""

import asyncio
import logging
import re
import secrets
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.auth import CALLER_SCOPE_KEY, Caller
from quire.server.telemetry.logs import log_server_event
from quire.server.telemetry.metrics import Metrics
from quire.server.telemetry.tracer import continue_trace, get_trace_id

REQUEST_ID_HEADER = "x-request-id"
CLIENT_CLOSED_REQUEST = 499
"""Status logged if the client disconnects before the response is complete."""
UNMATCHED_ROUTE = "unmatched"
"""Route label of unknown paths, which may contain anything."""
_UNLOGGED_ROUTES = ("/healthz", "/readyz", "/metrics")
_VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class TelemetryMiddleware:
    """Observes each HTTP request, and continues the client's trace."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        observation = _RequestObservation(self._metrics, scope, headers.get(REQUEST_ID_HEADER, ""))

        async def observe_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                observation.record_response_start(message)
            await send(message)

        with continue_trace(headers):
            try:
                await self._app(scope, receive, observe_send)
            except BaseException as error:
                observation.record_error(error)
                raise
            finally:
                observation.finish()


class _RequestObservation:
    """Timing, status and error of one request."""

    def __init__(self, metrics: Metrics, scope: Scope, id: str) -> None:
        self._metrics, self._scope = metrics, scope
        self._id = id if _VALID_REQUEST_ID.fullmatch(id) else secrets.token_hex(8)
        self._started = time.perf_counter()
        self._response_started: float | None = None
        self._status = CLIENT_CLOSED_REQUEST
        self._is_stream = False
        self._error: BaseException | None = None
        self._response_headers: Headers | None = None

    def record_response_start(self, message: Message) -> None:
        self._response_started, self._status = time.perf_counter(), message["status"]
        headers = MutableHeaders(scope=message)
        headers.setdefault(REQUEST_ID_HEADER, self._id)
        self._response_headers = headers
        if headers.get("content-type", "").startswith("text/event-stream"):
            self._is_stream = True
            self._metrics.count_stream_opened()

    def record_error(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._status = CLIENT_CLOSED_REQUEST
        else:
            self._status, self._error = 500, error

    def finish(self) -> None:
        metrics, scope, now = self._metrics, self._scope, time.perf_counter()
        if self._is_stream:
            metrics.count_stream_closed()
        route = get_route_template(scope)
        wait_seconds = (self._response_started or now) - self._started
        metrics.count_request(method=scope["method"], route=route, status=self._status, seconds=wait_seconds)
        if route in _UNLOGGED_ROUTES and self._status < 400:
            return
        state: dict[str, Any] = scope.get("state", {})
        caller: Caller | None = scope.get(CALLER_SCOPE_KEY)
        log_server_event(
            "request",
            level=logging.ERROR if self._status >= 500 else logging.INFO,
            error=self._error,
            method=scope["method"],
            route=route,
            status=self._status,
            duration_ms=round((now - self._started) * 1_000, 1),
            first_byte_ms=round(wait_seconds * 1_000, 1) if self._is_stream else None,
            request_id=self._id,
            tenant=caller.tenant if caller is not None else None,
            key=caller.key_id if caller is not None else None,
            conversation=self._find_conversation(),
            error_code=state.get("error_code"),
            trace_id=get_trace_id(),
        )

    def _find_conversation(self) -> str | None:
        conversation = self._scope.get("path_params", {}).get("conversation")
        if conversation is None and self._response_headers is not None:
            return self._response_headers.get("x-quire-conversation")
        return conversation


def get_route_template(scope: Scope) -> str:
    """Returns the path template, such as `/api/conversations/{conversation}`."""
    return getattr(scope.get("route"), "path", None) or UNMATCHED_ROUTE
