"""Authentication: by API key, and of the local user by a token.

An API key belongs to a tenant, and has scopes and a rate limit. Wrong, unknown, revoked and expired keys all get the
same error message. Verified keys are cached for `KEY_CACHE_SECONDS`, so that a turn costs no look-up. A revoked key
therefore stops working within that time on every node.

A server on a loopback address is protected by a token. It arrives in the URL, is stored as a cookie, and is removed
from the URL. Pages of other sites cannot use the cookie: their requests are refused by Host (DNS rebinding), by Origin,
and by Sec-Fetch-Site. There is no CORS. A page on another port of this machine counts as another site.
"""

import asyncio
import hmac
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from cachetools import LRUCache
from fastapi import FastAPI, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from quire.access.keys import KEY_SCOPES, ApiKey, Keys, KeyScope
from quire.access.spending import SpendingKey
from quire.concurrency.worker_threads import set_work_owner, work_meter
from quire.errors import (
    AccessDenied,
    CrossOriginRequest,
    InsufficientScope,
    InvalidConfiguration,
    InvalidKey,
    ModelNotAllowed,
    QuireError,
    StoreError,
    StoreUnavailable,
    TooManyRequests,
)
from quire.model.ids import now
from quire.server.page import make_denied_page
from quire.server.problems import error_to_response
from quire.server.rate_limits import RATE_LIMIT_SCOPE_KEY, RateLimitStatus, SharedRateLimiter
from quire.settings import Settings
from quire.settings.schema import tenant_quota_for
from quire.store import DEFAULT_TENANT

KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
"""Headers in which clients send API keys: a key of Quire, the local token, or credentials for a provider."""
OWN_KEY_HEADER = "x-quire-key"
"""Header for a key of Quire or the local token alone. With it, `KEY_HEADERS` are credentials for a provider."""

CALLER_SCOPE_KEY = "quire.caller"
"""ASGI scope key under which a middleware stores an authenticated caller. Clients cannot set it: it is no header."""

PROTECTED_PREFIXES = ("/api/", "/v1/", "/v1beta/", "/v1beta1/", "/mcp")
"""Path prefixes that need a key, whatever a route depends on."""
PUBLIC_PATHS = ("/api/openapi.json", "/api/hello")
"""Exceptions to `PROTECTED_PREFIXES`. Claude Code probes `/api/hello` without a key; it does not exist."""

ALL_SCOPES: frozenset[KeyScope] = frozenset(KEY_SCOPES)

KEY_CACHE_SECONDS = 10.0
"""Seconds before a cached key is verified again."""
KEY_CACHE_OUTAGE_SECONDS = 3_600.0
"""Seconds that a cached key stays valid while the store is down, where the gateway then passes requests through."""
KEY_CACHE_SIZE = 10_000
"""Maximum keys in the LRU cache."""

HEALTH_PATHS = ("/healthz", "/readyz")
"""Paths that need no token: they return only a status."""
_LOOPBACK_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
_TRUSTED_FETCH_SITES = ("same-origin", "none")
"""Sec-Fetch-Site of requests by our own page, or by the user (typed address)."""
VerifyKey = Callable[[str | None], Awaitable[object | None]]
"""Returns a value other than None if the argument is a valid API key."""


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: str
    key_id: str | None
    """None for the local user of a laptop."""
    scopes: frozenset[KeyScope]
    max_spend: float | None = None
    """Spend cap of the key in US dollars."""
    models: tuple[str, ...] | None = None
    """Patterns of the models that the key may call; None for all models."""

    @property
    def spending_key(self) -> SpendingKey | None:
        """The key that calls are charged to."""
        return SpendingKey(self.key_id, self.max_spend) if self.key_id is not None else None

    def allows_model(self, *names: str | None) -> bool:
        """Whether the key may call the model with these names: the client's name of it and the upstream's."""
        patterns = self.models
        return patterns is None or any(fnmatchcase(name, pattern) for name in names if name for pattern in patterns)


LOCAL_CALLER = Caller(DEFAULT_TENANT, None, ALL_SCOPES)


def key_from_headers(headers: Headers) -> str | None:
    """Extracts the key from `OWN_KEY_HEADER`, else from `KEY_HEADERS`.

    A repeated header, or different values in several headers, count as no key.
    """
    names = (OWN_KEY_HEADER,) if OWN_KEY_HEADER in headers else KEY_HEADERS
    presented: set[str] = set()
    for name in names:
        values = headers.getlist(name)
        if len(values) > 1:
            return None
        if values and name != "authorization":
            presented.add(values[0])
        elif values and values[0][:7].lower() == "bearer ":
            presented.add(values[0][7:].strip())
    return presented.pop() if len(presented) == 1 else None


class _CachedKey(NamedTuple):
    key: ApiKey
    verified_at: float


class KeyVerifier:
    """Verifies API keys, with an LRU cache. Simultaneous requests with one key share a look-up."""

    def __init__(self, keys: Keys, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys, self._clock = keys, clock
        self._cache: LRUCache[bytes, _CachedKey] = LRUCache(KEY_CACHE_SIZE)
        self._lookups: dict[bytes, asyncio.Task[_CachedKey | None]] = {}

    async def verify(
        self, presented: str | None, *, allow_stale: bool = False, max_age_seconds: float = KEY_CACHE_SECONDS
    ) -> ApiKey | None:
        """Returns the key with this text if it is valid; a cached key counts up to `max_age_seconds`. With
        `allow_stale`, the cache outlives a store outage."""
        if presented is None:
            return None
        # Cached by digest: the timing of a look-up says nothing about the text, and no secret stays in memory.
        digest = sha256(presented.encode(errors="replace")).digest()
        cached = self._cache.get(digest)
        if cached is None or self._clock() - cached.verified_at >= max_age_seconds:
            lookup = self._lookups.get(digest)
            if lookup is None:
                lookup = asyncio.get_running_loop().create_task(self._look_up(presented, digest))
                self._lookups[digest] = lookup
            try:
                # Shielded: a request that ends does not end the look-up of others.
                cached = await asyncio.shield(lookup)
            except StoreUnavailable:
                grace_seconds = KEY_CACHE_OUTAGE_SECONDS if allow_stale else 0.0
                if cached is None or self._clock() - cached.verified_at >= grace_seconds:
                    raise
        return cached.key if cached is not None and cached.key.is_valid_at(now()) else None

    async def _look_up(self, presented: str, digest: bytes) -> _CachedKey | None:
        started_at, task = self._clock(), asyncio.current_task()
        try:
            key = await self._keys.verify(presented)
            verified = _CachedKey(key, started_at) if key is not None else None
            # Where a key was evicted meanwhile, what this look-up found may be outdated.
            if self._lookups.get(digest) is task:
                if verified is not None:
                    self._cache[digest] = verified
                else:
                    self._cache.pop(digest, None)
            return verified
        finally:
            if self._lookups.get(digest) is task:
                del self._lookups[digest]

    def evict(self, key_id: str) -> None:
        """Drops a key from the cache, so that its next use is verified in the store. So are all keys that another key
        has created: those that were created with this one are among them."""
        self._lookups.clear()
        keys = [(digest, cached.key) for digest, cached in self._cache.items()]
        for digest, key in keys:
            if key.id == key_id or key.created_by is not None:
                del self._cache[digest]


def get_key_verifier(app: FastAPI) -> KeyVerifier:
    """Returns the application's `KeyVerifier`, created on first use."""
    if not hasattr(app.state, "key_verifier"):
        app.state.key_verifier = KeyVerifier(app.state.server_state.store.keys)
    return app.state.key_verifier


def get_rate_limiter(app: FastAPI) -> SharedRateLimiter:
    """Returns the application's rate limiter, created on first use."""
    if not hasattr(app.state, "rate_limiter"):
        app.state.rate_limiter = SharedRateLimiter(app.state.server_state.store)
    return app.state.rate_limiter


async def authorize(request: Request, scope: KeyScope) -> Caller:
    """Returns the caller; raises `InvalidKey`, `InsufficientScope` or `TooManyRequests`."""
    caller = await _get_caller(request)
    check_scope(caller, scope)
    return caller


def check_scope(caller: Caller, scope: KeyScope) -> None:
    """Raises `InsufficientScope` if the caller's key lacks the scope."""
    if scope not in caller.scopes:
        raise InsufficientScope(
            f"This request needs the scope {scope!r}, which the key {caller.key_id!r} does not have; "
            "use a key that has it."
        )


def check_model(caller: Caller, model: str, upstream_model: str | None) -> None:
    """Raises `ModelNotAllowed` if the caller's key allows neither the client's nor the upstream's name of a model."""
    if caller.models is not None and not caller.allows_model(model, upstream_model):
        raise ModelNotAllowed(model, allowed=caller.models)


async def is_still_authorized(request: Request, max_age_seconds: float) -> bool:
    """Verifies the key of an authenticated request again, for a response that may outlive it.

    While the store is down the answer is yes: no key can be revoked then.
    """
    caller = await _get_caller(request)
    if caller.key_id is None:
        return True
    presented = key_from_headers(request.headers)
    try:
        key = await get_key_verifier(request.app).verify(presented, max_age_seconds=max_age_seconds)
    except StoreError:
        return True
    return key is not None and key.id == caller.key_id


class AuthMiddleware:
    """ASGI middleware that authenticates a request before any of its body is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        app = self._app
        if (
            scope["type"] == "http"
            and scope["path"].startswith(PROTECTED_PREFIXES)
            and scope["path"] not in PUBLIC_PATHS
        ):
            try:
                set_work_owner((await _get_caller(Request(scope))).tenant)
            except QuireError as error:
                app = error_to_response(error)
        await app(scope, receive, send)


async def _get_caller(request: Request) -> Caller:
    """Authenticates once per request, so that a request counts once against the rate limit."""
    caller: Caller | None = request.scope.get(CALLER_SCOPE_KEY)
    if caller is not None:
        return caller
    settings: Settings = request.app.state.server_state.settings
    allow_stale = settings.on_store_failure == "pass_through"
    key = await get_key_verifier(request.app).verify(key_from_headers(request.headers), allow_stale=allow_stale)
    if key is None:
        raise InvalidKey
    limiter, statuses = get_rate_limiter(request.app), list[RateLimitStatus]()
    if (per_minute := key.requests_per_minute or settings.requests_per_minute) is not None:
        statuses.append(await limiter.acquire(key.tenant, key.id, per_minute))
    quota = tenant_quota_for(settings, key.tenant)
    if (per_minute := quota.requests_per_minute) is not None:
        statuses.append(await limiter.acquire_for_tenant(key.tenant, per_minute))
    # The response names the stricter of the two.
    for status in sorted(statuses, key=lambda each: (each.retry_after is None, each.remaining))[:1]:
        request.scope[RATE_LIMIT_SCOPE_KEY] = status
        if status.retry_after is not None:
            limited = f"key {key.id!r}" if status.holder == "key" else f"tenant {key.tenant!r}"
            raise TooManyRequests(
                f"The {limited} is limited to {status.limit:,} requests a minute; "
                f"retry in {status.retry_after} seconds.",
                retry_after=status.retry_after,
            )
    if (seconds := quota.worker_seconds) is not None and (wait := work_meter.measure_wait(key.tenant, seconds)):
        raise TooManyRequests(
            f"The tenant {key.tenant!r} has used its {seconds:g} seconds of computation a minute; retry in {wait} "
            "seconds, or send shorter messages.",
            retry_after=wait,
        )
    caller = request.scope[CALLER_SCOPE_KEY] = Caller(key.tenant, key.id, key.scopes, key.max_spend, key.models)
    return caller


class RequireScope(SecurityBase):
    """Route dependency that requires a scope. Scheme and dependency in one: each dependency costs every request."""

    model = HTTPBearer(
        bearerFormat="quire_<id>_<secret>",
        description="An API key made by `quire key create`. Clients may also send it in `x-api-key`, `api-key`, "
        "`x-goog-api-key` or `X-Quire-Key`.",
    )
    scheme_name = "key"

    def __init__(self, scope: KeyScope) -> None:
        self._scope: KeyScope = scope

    async def __call__(self, request: Request) -> Caller:
        return await authorize(request, self._scope)


@cache
def require_scope(scope: KeyScope) -> RequireScope:
    """Returns the dependency for a scope; cached, so that a request resolves each one once."""
    return RequireScope(scope)


class LocalAuthMiddleware:
    """ASGI middleware that authenticates the local user by token; also accepts API keys if `verify_key` is given."""

    def __init__(self, app: ASGIApp, *, token: str, verify_key: VerifyKey | None = None) -> None:
        if not token:
            raise InvalidConfiguration("A local server needs a token; `generate_token` makes one.")
        self._app, self._token, self._verify_key = app, token.encode(), verify_key

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                try:
                    app = await self._authenticate(scope) or self._app
                except AccessDenied as error:
                    accepts_html = "text/html" in Headers(scope=scope).get("accept", "")
                    # A person who opens the page in a browser gets the reason as a page, not as JSON.
                    is_visit = scope["path"] == "/" and scope["method"] == "GET" and accepts_html
                    is_outdated = isinstance(error, InvalidKey) and is_visit
                    app = make_denied_page(str(error)) if is_outdated else error_to_response(error)
                await app(scope, receive, send)
            case "lifespan":
                await self._app(scope, receive, send)
            case _:
                # There are no WebSocket routes, and WebSocket has no same-origin rule.
                await send({"type": "websocket.close", "code": 1008})

    async def _authenticate(self, scope: ASGIScope) -> Response | None:
        """Stores the caller in the scope; returns a response if the request needs no application."""
        headers = Headers(scope=scope)
        check_same_site(headers)
        if scope["path"] in HEALTH_PATHS:
            return None
        # The name includes the port, because browsers share cookies between all ports of a host.
        server = scope.get("server")
        cookie_name = f"quire-{server[1] if server else 0}"
        if scope["path"] == "/" and scope["method"] == "GET":
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            token = next((value for name, value in query if name == "token"), None)
            if token is not None:
                if not self._matches_token(token):
                    raise InvalidKey(
                        "The token in this address is wrong or expired: open the address that `quire serve` printed "
                        "last."
                    )
                # Stores the token as a cookie and redirects to the URL without it, so that no history or log has it.
                rest = urlencode([(name, value) for name, value in query if name != "token"])
                private = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
                response = RedirectResponse(f"/?{rest}" if rest else "/", status_code=303, headers=private)
                response.set_cookie(cookie_name, token, httponly=True, samesite="strict", path="/")
                return response
        key = key_from_headers(headers)
        cookies = (each.strip().partition("=") for line in headers.getlist("cookie") for each in line.split(";"))
        candidates = [key, *(value for name, _, value in cookies if name == cookie_name)]
        if any(map(self._matches_token, candidates)):
            scope[CALLER_SCOPE_KEY] = LOCAL_CALLER
        elif self._verify_key is None or await self._verify_key(key) is None:
            raise InvalidKey("This server needs its token: open the address that `quire serve` printed.")
        # No later step needs the token, and the gateway forwards headers.
        scope["headers"] = [(name, value) for name, value in scope["headers"] if self._token not in value]
        return None

    def _matches_token(self, candidate: str | None) -> bool:
        return candidate is not None and hmac.compare_digest(candidate.encode(errors="replace"), self._token)


def check_same_site(headers: Headers) -> None:
    """Raises `CrossOriginRequest` unless the request is for this machine, and not from another site's page."""
    hosts, origins, sites = (headers.getlist(name) for name in ("host", "origin", "sec-fetch-site"))
    if len(hosts) != 1 or _LOOPBACK_HOST.fullmatch(hosts[0]) is None:
        raise CrossOriginRequest(
            "This server answers only to the hosts 127.0.0.1, localhost and ::1; open it under one of these."
        )
    # Compared with the Host header, so that a forwarded port works as well as the server's own.
    if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
        raise CrossOriginRequest(
            "Requests from pages of other sites are refused; use this server's page or an API key."
        )
    if any(site not in _TRUSTED_FETCH_SITES for site in sites):
        raise CrossOriginRequest("The browser reports a request from another site; open this server directly.")
