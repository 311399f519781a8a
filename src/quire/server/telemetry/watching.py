"""The outermost layer of the application: each request is counted, timed and written to the log when it is over.

It sees methods, route templates, statuses and ids; bodies pass through it unread.
"""

import asyncio
import logging
import re
import secrets
import time
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.identity import CALLER, Caller
from quire.server.telemetry.logs import log
from quire.server.telemetry.tracing import continued, trace_id

if TYPE_CHECKING:
    from quire.server.telemetry import Telemetry

REQUEST_ID = "x-request-id"
GONE = 499
"""The client went away before the answer was whole."""
UNMATCHED = "unmatched"
"""The route of a path that no route has; the path itself may be anything."""
_QUIET = ("/healthz", "/readyz", "/metrics")
_SANE = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Watching:
    def __init__(self, app: ASGIApp, telemetry: "Telemetry") -> None:
        self._app, self._telemetry = app, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        seen = _Seen(self._telemetry, scope, headers.get(REQUEST_ID, ""))

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.begun(message)
            await send(message)

        with continued(headers):
            try:
                await self._app(scope, receive, sending)
            except BaseException as error:
                seen.failed(error)
                raise
            finally:
                seen.over()


class _Seen:
    """One request, as it passes."""

    def __init__(self, telemetry: "Telemetry", scope: Scope, id: str) -> None:
        self._telemetry, self._scope = telemetry, scope
        self._id = id if _SANE.fullmatch(id) else secrets.token_hex(8)
        self._began = time.perf_counter()
        self._answered: float | None = None
        self._status = GONE
        self._stream = False
        self._error: BaseException | None = None
        self._headers: Headers | None = None

    def begun(self, message: Message) -> None:
        self._answered, self._status = time.perf_counter(), message["status"]
        headers = MutableHeaders(scope=message)
        headers.setdefault(REQUEST_ID, self._id)
        self._headers = headers
        if headers.get("content-type", "").startswith("text/event-stream"):
            self._stream = True
            self._telemetry.metrics.stream_opened()

    def failed(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._status = GONE
        else:
            self._status, self._error = 500, error

    def over(self) -> None:
        metrics, scope, now = self._telemetry.metrics, self._scope, time.perf_counter()
        if self._stream:
            metrics.stream_closed()
        route = route_of(scope)
        waited = (self._answered or now) - self._began
        metrics.answered(method=scope["method"], route=route, status=self._status, seconds=waited)
        if route in _QUIET and self._status < 400:
            return
        state: dict[str, Any] = scope.get("state", {})
        caller: Caller | None = scope.get(CALLER)
        log(
            "request",
            level=logging.ERROR if self._status >= 500 else logging.INFO,
            error=self._error,
            method=scope["method"],
            route=route,
            status=self._status,
            ms=round((now - self._began) * 1_000, 1),
            first_ms=round(waited * 1_000, 1) if self._stream else None,
            request=self._id,
            tenant=caller.tenant if caller is not None else None,
            key=caller.key if caller is not None else None,
            conversation=self._conversation(),
            problem=state.get("problem"),
            trace=trace_id(),
        )

    def _conversation(self) -> str | None:
        named = self._scope.get("path_params", {}).get("conversation")
        if named is None and self._headers is not None:
            return self._headers.get("x-quire-conversation")
        return named


def route_of(scope: Scope) -> str:
    """The template of the path, such as `/api/conversations/{conversation}`."""
    return getattr(scope.get("route"), "path", None) or UNMATCHED
