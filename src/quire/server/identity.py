"""Who asks: the tenant that a key speaks for, and what the key lets it do.

A key that was found good is believed for a few seconds, so that a turn costs no look-up: one that is revoked stops
within `BELIEVED` seconds on every node. Wrong, unknown, revoked and expired keys are all refused in the same words.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import NamedTuple

from fastapi import FastAPI, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from quire.errors import InvalidKey, KeyScopeMissing, QuireError, StoreUnavailable, TooManyRequests
from quire.log import SCOPES, Key, Keys, Scope
from quire.log.fresh import now
from quire.server.limits import RATE, Rates
from quire.server.problems import problem_of

__all__ = [
    "ALL_SCOPES",
    "CALLER",
    "Caller",
    "Door",
    "KeyFirst",
    "Scope",
    "caller_with",
    "door_of",
    "identify",
    "key_in",
]

BELIEVED = 10.0
"""Seconds for which a key that was found good is not looked up again."""
OUTAGE = 3_600.0
"""Seconds for which it is, if the store cannot be reached, where the gateway then passes requests on."""
REMEMBERED = 10_000
"""Keys that are remembered so, those used last."""

CALLER = "quire.caller"
"""Where in an ASGI scope a middleware leaves a caller that it knows already. No header leads there."""

GUARDED = ("/api/", "/v1/")
"""What nobody asks for without a key, whatever a route depends on."""
OPEN_PATHS = ("/api/openapi.json",)
"""But for this."""

ALL_SCOPES: frozenset[Scope] = frozenset(SCOPES)


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: str
    key: str | None
    """The id of the key; None for the one user of a laptop."""
    scopes: frozenset[Scope]


class _Seen(NamedTuple):
    key: Key
    at: float


class Door:
    """Lets in whoever shows a key that opens, as often as that key may."""

    def __init__(self, keys: Keys, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys, self._clock = keys, clock
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()
        self.rates = Rates(clock=clock)

    async def key(self, text: str | None, *, through_outages: bool = False) -> Key | None:
        """The key that this is the text of, if it opens."""
        if text is None:
            return None
        # By digest: how long a look-up takes says nothing about the text, and no secret is held.
        mark = sha256(text.encode(errors="replace")).digest()
        seen = self._seen.get(mark)
        if seen is None or self._clock() - seen.at >= BELIEVED:
            seen = await self._looked_up(text, mark, seen, grace=OUTAGE if through_outages else 0.0)
        return seen.key if seen is not None and seen.key.opens_at(now()) else None

    def forget(self, id: str) -> None:
        """Looks this key up again before it is believed."""
        for mark in [mark for mark, seen in self._seen.items() if seen.key.id == id]:
            del self._seen[mark]

    async def _looked_up(self, text: str, mark: bytes, before: _Seen | None, *, grace: float) -> _Seen | None:
        began = self._clock()
        try:
            key = await self._keys.key_shown(text)
        except StoreUnavailable:
            if before is None or began - before.at >= grace:
                raise
            return before
        if key is None:
            self._seen.pop(mark, None)
            return None
        self._seen[mark] = seen = _Seen(key, began)
        self._seen.move_to_end(mark)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return seen


def key_in(headers: Headers) -> str | None:
    """What a request shows as its key: in `Authorization: Bearer`, else in `api-key`. Two of a kind are none."""
    for name in ("authorization", "api-key"):
        given = headers.getlist(name)
        if len(given) > 1:
            return None
        if given and name == "api-key":
            return given[0]
        if given and given[0][:7].lower() == "bearer ":
            return given[0][7:].strip()
    return None


def door_of(app: FastAPI) -> Door:
    """The application's one door, made when the first comes."""
    if not hasattr(app.state, "door"):
        app.state.door = Door(app.state.serving.store)
    return app.state.door


async def identify(request: Request, scope: Scope) -> Caller:
    """Who asks; `InvalidKey` if nobody knows, `KeyScopeMissing` if the key lacks this scope, `TooManyRequests`."""
    caller = await _known(request)
    if scope not in caller.scopes:
        raise KeyScopeMissing(f"This takes a key with the scope {scope!r}, and the key {caller.key!r} has none such.")
    return caller


class KeyFirst:
    """ASGI middleware that looks at the key before anything of a request's body is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        answering = self._app
        if scope["type"] == "http" and scope["path"].startswith(GUARDED) and scope["path"] not in OPEN_PATHS:
            try:
                await _known(Request(scope))
            except QuireError as error:
                answering = problem_of(error)
        await answering(scope, receive, send)


async def _known(request: Request) -> Caller:
    """The caller that was let in with this request, once, however often one asks."""
    caller: Caller | None = request.scope.get(CALLER)
    if caller is None:
        caller = request.scope[CALLER] = await _let_in(request)
    return caller


async def _let_in(request: Request) -> Caller:
    door, settings = door_of(request.app), request.app.state.serving.settings
    key = await door.key(key_in(request.headers), through_outages=settings.store_down == "pass")
    if key is None:
        raise InvalidKey
    per_minute = key.requests_per_minute or settings.requests_per_minute
    if per_minute is not None:
        allowance = request.scope[RATE] = door.rates.take(key.id, per_minute)
        if allowance.retry_after is not None:
            raise TooManyRequests(
                f"The key {key.id!r} may ask {per_minute:,} times a minute; "
                f"ask again in {allowance.retry_after} seconds.",
                retry_after=allowance.retry_after,
            )
    return Caller(key.tenant, key.id, key.scopes)


class CallerWith(SecurityBase):
    """A caller whose key has a scope: scheme and dependency in one, since each dependency costs every request."""

    model = HTTPBearer(
        bearerFormat="quire_<id>_<secret>",
        description="A key of `quire key create`; clients that send it as `api-key` may do so.",
    )
    scheme_name = "key"

    def __init__(self, scope: Scope) -> None:
        self._scope: Scope = scope

    async def __call__(self, request: Request) -> Caller:
        return await identify(request, self._scope)


@cache
def caller_with(scope: Scope) -> CallerWith:
    """What a route depends on to be asked only by those whose key has this scope."""
    return CallerWith(scope)
