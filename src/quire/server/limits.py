"""What one caller may take: so many requests a minute, so many bytes a body, so many seconds until it is there.

Rates are counted in the process: with several nodes a key has its rate on each. A refusal has the body of any other
problem, and ends the connection where the rest of a request would still come.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from typing import NamedTuple

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.errors import QuireError, RequestTooLarge, RequestTooSlow
from quire.server.problems import problem_of

COUNTED = 10_000
"""Keys whose requests are counted, those used last; one that is forgotten begins with its whole rate."""
BODY_SECONDS = 60.0
"""Seconds that a client may let the server wait for a body, from its beginning to its end."""
LINGER_SECONDS = 5.0
"""Seconds for which the rest of a body that is too large may still come, so that the client hears why."""
RATE = "quire.rate"
"""Where in an ASGI scope the caller's `Allowance` is."""


class Allowance(NamedTuple):
    """What a key has left, and in how many seconds it has all of it again."""

    limit: int
    left: int
    reset: int
    retry_after: int | None
    """Seconds until the next request is let through; None if this one is."""


class Rates:
    """A bucket for each key: a request takes a token out, and a minute fills it from empty to full.

    After a rest a key may therefore ask as often at once as otherwise in a minute.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, per_minute: int) -> Allowance:
        at = self._clock()
        tokens, since = self._buckets.pop(key, (float(per_minute), at))
        tokens = min(per_minute, tokens + (at - since) * per_minute / 60)
        granted = tokens >= 1
        tokens -= granted
        self._buckets[key] = tokens, at
        while len(self._buckets) > COUNTED:
            self._buckets.popitem(last=False)
        wait = None if granted else _seconds(1 - tokens, per_minute)
        return Allowance(per_minute, int(tokens), _seconds(per_minute - tokens, per_minute), wait)


def _seconds(tokens: float, per_minute: int) -> int:
    return max(1, ceil(tokens * 60 / per_minute))


def rate_headers(allowance: Allowance) -> dict[str, str]:
    """As the IETF's draft on RateLimit header fields has them."""
    return {
        "RateLimit-Policy": f'"key";q={allowance.limit};w=60',
        "RateLimit": f'"key";r={allowance.left};t={allowance.reset}',
    }


class Limits:
    """ASGI middleware: refuses bodies that are too large or too slow, and tells callers what they have left."""

    def __init__(self, app: ASGIApp, *, max_bytes: Callable[[], int], body_seconds: float = BODY_SECONDS) -> None:
        self._app, self._max_bytes, self._body_seconds = app, max_bytes, body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, max_bytes=self._max_bytes(), seconds=self._body_seconds)
        try:
            exchange.check_declared()
            await self._app(scope, exchange.receive, exchange.send)
        except QuireError as error:
            if error is not exchange.refusal:
                raise
        await exchange.refuse()


class _Exchange:
    """One request and its response. Once its body is refused, the refusal is the response, whatever the app says."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, max_bytes: int, seconds: float) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._max_bytes, self._bytes = max_bytes, 0
        self._seconds, self._seconds_left = seconds, seconds
        self._arrived = self._started = False
        self.refusal: QuireError | None = None

    def check_declared(self) -> None:
        """A body that is said to be too large is not read at all."""
        for name, value in self._scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self._max_bytes:
                self.refusal = self._larger()
                raise self.refusal

    async def receive(self) -> Message:
        if self._arrived:
            return await self._receive()
        if self.refusal is None:
            try:
                return await self._next_piece()
            except (RequestTooLarge, RequestTooSlow) as error:
                self.refusal = error
        if self._started:
            # Too late to say so: to the application, a client like this one is gone.
            return {"type": "http.disconnect"}
        raise self.refusal

    async def _next_piece(self) -> Message:
        message = await self._in_time()
        self._bytes += len(message.get("body", b""))
        self._arrived = not message.get("more_body", False)
        if self._bytes > self._max_bytes:
            raise self._larger()
        return message

    async def _in_time(self) -> Message:
        """Only the time counts that the server waits; what the application does between two pieces is its own."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._seconds_left):
                return await self._receive()
        except TimeoutError:
            said = (
                f"The request's body was not there after {self._seconds:g} seconds; send it again, faster or smaller."
            )
            raise RequestTooSlow(said) from None
        finally:
            self._seconds_left -= time.monotonic() - began

    def _larger(self) -> RequestTooLarge:
        return RequestTooLarge(
            f"The request's body has more than the {self._max_bytes:,} bytes that this server reads at once; send less."
        )

    async def send(self, message: Message) -> None:
        if self.refusal is not None and not self._started:
            return
        if message["type"] == "http.response.start":
            self._started = True
            allowance: Allowance | None = self._scope.get(RATE)
            if allowance is not None:
                MutableHeaders(scope=message).update(rate_headers(allowance))
        await self._send(message)

    async def refuse(self) -> None:
        """Sends the refusal, if there is one and nothing else was sent."""
        if self.refusal is None or self._started:
            return
        response = problem_of(self.refusal)
        response.headers["Connection"] = "close"
        start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": bytes(response.body), "more_body": True})
        if isinstance(self.refusal, RequestTooLarge):
            await self._linger()
        await self._send({"type": "http.response.body", "body": b""})

    async def _linger(self) -> None:
        """Lets the rest come and go. A connection closed on a client that still sends takes the answer with it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not self._arrived:
                    self._arrived = not (await self._receive()).get("more_body", False)
