"""Limits of requests: maximum size and number of values of a body, body timeout, and headers on the rate limit.

A refused request gets a problem response. If the rest of its body may still arrive, the connection is closed.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.errors import QuireError, RequestTimeout, RequestTooLarge
from quire.server.problems import error_to_response
from quire.server.rate_limits import RATE_LIMIT_SCOPE_KEY, RateLimitStatus, rate_limit_headers
from quire.wire.json_limits import MAX_JSON_SEPARATORS, JsonLimit

BODY_TIMEOUT_SECONDS = 60.0
"""Total seconds that the server waits for a request body."""
DRAIN_SECONDS = 30.0
"""Seconds that the rest of a too large body is read and dropped, so that the client gets the error response."""
DRAIN_IDLE_SECONDS = 5.0
"""Seconds without a byte after which the rest is not waited for."""
UPLOAD_PATH = "/api/imports"
"""Path of uploads that are streamed to a file. They have separate limits."""
MAX_UPLOAD_BYTES = 4_000_000_000
UPLOAD_TIMEOUT_SECONDS = 3_600.0
RAW_BODY_PATHS = ("/api/blobs", "/api/import", UPLOAD_PATH, "/v1/files")
"""Paths whose bodies are not parsed as one JSON text. Every other body is checked by `JsonLimit`."""


class LimitsMiddleware:
    """ASGI middleware that refuses too large, complex or slow bodies, and adds headers to responses: RateLimit, and one
    by which browsers do not guess the type of a file."""

    def __init__(
        self, app: ASGIApp, *, max_bytes: Callable[[], int], body_timeout: float = BODY_TIMEOUT_SECONDS
    ) -> None:
        self._app, self._max_bytes, self._body_timeout = app, max_bytes, body_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_bytes, timeout = self._max_bytes(), self._body_timeout
        if scope["path"] == UPLOAD_PATH:
            max_bytes, timeout = MAX_UPLOAD_BYTES, UPLOAD_TIMEOUT_SECONDS
        exchange = _LimitedExchange(scope, receive, send, max_bytes=max_bytes, timeout=timeout)
        try:
            exchange.check_content_length()
            await self._app(scope, exchange.receive, exchange.send)
        except QuireError as error:
            if error is not exchange.refusal:
                raise
        await exchange.send_refusal()


class _LimitedExchange:
    """One request and its response. Once the body is refused, the refusal replaces the response of the application."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, max_bytes: int, timeout: float) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._max_bytes, self._bytes_received = max_bytes, 0
        self._timeout, self._seconds_left = timeout, timeout
        self._json_limit = JsonLimit() if scope["path"] not in RAW_BODY_PATHS else None
        self._body_complete = self._response_started = False
        self.refusal: QuireError | None = None

    def check_content_length(self) -> None:
        """Refuses a body with a too large Content-Length without reading it."""
        for name, value in self._scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self._max_bytes:
                self.refusal = self._too_large()
                raise self.refusal

    async def receive(self) -> Message:
        if self._body_complete:
            return await self._receive()
        if self.refusal is None:
            try:
                return await self._receive_chunk()
            except (RequestTooLarge, RequestTimeout) as error:
                self.refusal = error
        if self._response_started:
            # Too late for an error response: to the application, this client has disconnected.
            return {"type": "http.disconnect"}
        raise self.refusal

    async def _receive_chunk(self) -> Message:
        # Only time spent waiting counts, not time that the application takes between chunks.
        started_at = time.monotonic()
        try:
            async with asyncio.timeout(self._seconds_left):
                message = await self._receive()
        except TimeoutError:
            raise RequestTimeout(
                f"The request body did not arrive within {self._timeout:g} seconds; retry, with a smaller body."
            ) from None
        finally:
            self._seconds_left -= time.monotonic() - started_at
        chunk: bytes = message.get("body", b"")
        self._bytes_received += len(chunk)
        self._body_complete = not message.get("more_body", False)
        if self._bytes_received > self._max_bytes:
            raise self._too_large()
        # A body that is complete below the limit cannot have as many separators as bytes.
        may_exceed = not self._body_complete or self._bytes_received > MAX_JSON_SEPARATORS
        if self._json_limit is not None and may_exceed and self._json_limit.feed(chunk):
            raise RequestTooLarge(
                f"The request body has more than {MAX_JSON_SEPARATORS:,} JSON values or keys; send fewer at once."
            )
        return message

    def _too_large(self) -> RequestTooLarge:
        return RequestTooLarge(f"The request body exceeds the limit of {self._max_bytes:,} bytes; send a smaller body.")

    async def send(self, message: Message) -> None:
        if self.refusal is not None and not self._response_started:
            return
        if message["type"] == "http.response.start":
            self._response_started = True
            MutableHeaders(scope=message)["X-Content-Type-Options"] = "nosniff"
            status: RateLimitStatus | None = self._scope.get(RATE_LIMIT_SCOPE_KEY)
            if status is not None:
                MutableHeaders(scope=message).update(rate_limit_headers(status))
        await self._send(message)

    async def send_refusal(self) -> None:
        """Sends the refusal, if there is one and no response has started."""
        if self.refusal is None or self._response_started:
            return
        response = error_to_response(self.refusal)
        response.headers.update({"Connection": "close", "X-Content-Type-Options": "nosniff"})
        start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": bytes(response.body), "more_body": True})
        if isinstance(self.refusal, RequestTooLarge):
            # Closing the connection on a client that still sends would discard the response.
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    while not self._body_complete:
                        async with asyncio.timeout(DRAIN_IDLE_SECONDS):
                            self._body_complete = not (await self._receive()).get("more_body", False)
        await self._send({"type": "http.response.body", "body": b""})
