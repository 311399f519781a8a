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
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlencode

from cachetools import LRUCache
from fastapi import FastAPI, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from quire.access.keys import ApiKey, Keys, KeyScope
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
from quire.model.people import UserRole, split_space
from quire.plugins import load_plugins
from quire.server.caller import LOCAL_CALLER, Caller
from quire.server.page import make_denied_page
from quire.server.problems import error_to_response
from quire.server.rate_limits import RATE_LIMIT_SCOPE_KEY, RateLimitStatus, SharedRateLimiter
from quire.settings import Settings
from quire.settings.schema import tenant_quota_for
from quire.wire.http_errors import ErrorResponse

if TYPE_CHECKING:
    from quire.server.state import ServerState

KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
"""Headers in which clients send API keys: a key of Quire, the local token, or credentials for a provider."""
OWN_KEY_HEADER = "x-quire-key"
"""Header for a key of Quire or the local token alone. With it, `KEY_HEADERS` are credentials for a provider."""

ALL_KEY_HEADERS = (OWN_KEY_HEADER, *KEY_HEADERS)

CALLER_SCOPE_KEY = "quire.caller"
"""ASGI scope key under which a middleware stores an authenticated caller. Clients cannot set it: it is no header."""

PROTECTED_PREFIXES = ("/api/", "/v1/", "/v1beta/", "/v1beta1/", "/mcp", "/scim/")
"""Path prefixes that need a key, whatever a route depends on."""
PUBLIC_PATHS = ("/api/openapi.json", "/api/hello")
"""Exceptions to `PROTECTED_PREFIXES`. Claude Code probes `/api/hello` without a key. It does not exist."""

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
        """Returns the key with this text if it is valid. A cached key counts up to `max_age_seconds`. With
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


SCOPES_BY_ACTION: dict[str, KeyScope] = {
    "read": "read",
    "search": "read",
    "export": "read",
    "read_transcript": "read",
    "write": "write",
    "edit": "write",
    "chat": "chat",
    "approve": "approve",
    "purge": "admin",
    "list_keys": "admin",
    "create_key": "admin",
    "revoke_key": "admin",
    "change_settings": "admin",
}
"""What routes do, and the scope that a key needs for it."""


class AccessPolicy(Protocol):
    """Who callers are and what they may do beyond API keys and their scopes: what an entry point `quire.access` makes
    of the server's state."""

    error_formats: Mapping[str, Callable[[int, Mapping[str, Any]], ErrorResponse]]
    """Errors of other formats, made of status and problem document, by the prefix of their paths."""

    def run(self) -> AbstractAsyncContextManager[None]:
        """Background work while the server runs."""
        ...

    async def authenticate(self, request: Request, presented: str | None) -> Caller | None:
        """The caller of a request without an API key, or None if the key has to be verified."""
        ...

    async def find_key_roles(self, team: str, user: str) -> frozenset[UserRole] | None:
        """Roles of an API key that belongs to a person. None if the person may not use it any more."""
        ...

    async def authorize(self, request: Request, caller: Caller, action: str) -> Caller:
        """Decides in place of scopes alone. Returns the caller for the tenant that the request is about, or raises."""
        ...

    async def is_still_authorized(self, request: Request, caller: Caller, presented: str | None) -> bool | None:
        """Whether a caller whom it authenticated may go on. None for a caller with an API key."""
        ...

    async def redirect_visit(self, request: Request) -> Response | None:
        """Where a browser that opens the page has to go first."""
        ...


def load_access_policy(server_state: "ServerState") -> AccessPolicy | None:
    """The first policy for which the settings ask. None where there are only keys."""
    made = (make(server_state) for make in load_plugins("quire.access").values())
    return next((policy for policy in made if policy is not None), None)


def get_access_policy(app: FastAPI) -> AccessPolicy | None:
    """Returns the application's access policy, or None where there are only keys."""
    return app.state.access


async def authorize(request: Request, action: str) -> Caller:
    """Returns the caller, for the tenant or person whose conversations the request is about.

    Raises `InvalidKey`, `InsufficientScope` or `TooManyRequests`, and what an access policy raises.
    """
    caller = await get_caller(request)
    if (policy := get_access_policy(request.app)) is not None:
        return await policy.authorize(request, caller, action)
    check_scope(caller, SCOPES_BY_ACTION[action])
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
    caller, presented = await get_caller(request), key_from_headers(request.headers)
    if caller.key_id is None:
        return True
    try:
        if (policy := get_access_policy(request.app)) is not None:
            answer = await policy.is_still_authorized(request, caller, presented)
            if answer is not None:
                return answer
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
                set_work_owner((await get_caller(Request(scope))).tenant)
            except QuireError as error:
                app = error_to_response(error)
        elif (
            scope["type"] == "http" and scope["path"] == "/" and (policy := get_access_policy(scope["app"])) is not None
        ):
            app = await policy.redirect_visit(Request(scope)) or app
        await app(scope, receive, send)


async def get_caller(request: Request) -> Caller:
    """Authenticates once per request, so that a request counts once against the rate limit."""
    caller: Caller | None = request.scope.get(CALLER_SCOPE_KEY)
    if caller is not None:
        return caller
    policy, presented, per_minute = get_access_policy(request.app), key_from_headers(request.headers), None
    if policy is not None:
        caller = await policy.authenticate(request, presented)
    if caller is None:
        caller, per_minute = await _verify_key(request, presented)
    await _limit_rate(request, caller, per_minute)
    request.scope[CALLER_SCOPE_KEY] = caller
    return caller


async def _verify_key(request: Request, presented: str | None) -> tuple[Caller, int | None]:
    """The caller with this key, and the key's own rate limit."""
    settings: Settings = request.app.state.server_state.settings
    allow_stale = settings.on_store_failure == "pass_through"
    key = await get_key_verifier(request.app).verify(presented, allow_stale=allow_stale)
    if key is None:
        raise InvalidKey
    team, user = split_space(key.tenant)
    if user is None:
        return Caller(key.tenant, key.id, key.scopes, key.max_spend, key.models), key.requests_per_minute
    # The keys of a person end with the person.
    policy = get_access_policy(request.app)
    roles = await policy.find_key_roles(team, user) if policy is not None else None
    if roles is None:
        raise InvalidKey("The person of this API key has left, or must sign in again to confirm it.")
    return Caller(key.tenant, key.id, key.scopes, key.max_spend, key.models, roles), key.requests_per_minute


async def _limit_rate(request: Request, caller: Caller, per_minute: int | None) -> None:
    """Counts the request against the rate limits of the key and of the tenant. Raises `TooManyRequests`."""
    settings: Settings = request.app.state.server_state.settings
    limiter, statuses, key_id = get_rate_limiter(request.app), list[RateLimitStatus](), caller.key_id or ""
    if (per_minute := per_minute or settings.requests_per_minute) is not None:
        statuses.append(await limiter.acquire(caller.tenant, key_id, per_minute))
    quota = tenant_quota_for(settings, caller.tenant)
    if (per_minute := quota.requests_per_minute) is not None:
        statuses.append(await limiter.acquire_for_tenant(caller.tenant, per_minute))
    # The response names the stricter of the two.
    for status in sorted(statuses, key=lambda each: (each.retry_after is None, each.remaining))[:1]:
        request.scope[RATE_LIMIT_SCOPE_KEY] = status
        if status.retry_after is not None:
            limited = f"key {key_id!r}" if status.holder == "key" else f"tenant {caller.tenant!r}"
            raise TooManyRequests(
                f"The {limited} is limited to {status.limit:,} requests a minute; "
                f"retry in {status.retry_after} seconds.",
                retry_after=status.retry_after,
            )
    if (seconds := quota.worker_seconds) is not None and (wait := work_meter.measure_wait(caller.tenant, seconds)):
        raise TooManyRequests(
            f"The tenant {caller.tenant!r} has used its {seconds:g} seconds of computation a minute; retry in {wait} "
            "seconds, or send shorter messages.",
            retry_after=wait,
        )


class RequireAction(SecurityBase):
    """Route dependency that authorizes the caller for an action.

    Scheme and dependency in one: each dependency costs every request.
    """

    model = HTTPBearer(
        bearerFormat="quire_<id>_<secret>",
        description="An API key made by `quire key create`. Clients may also send it in `x-api-key`, `api-key`, "
        "`x-goog-api-key` or `X-Quire-Key`.",
    )
    scheme_name = "key"

    def __init__(self, action: str) -> None:
        self.action = action

    async def __call__(self, request: Request) -> Caller:
        return await authorize(request, self.action)


@cache
def require_action(action: str) -> RequireAction:
    """Returns the dependency for an action; cached, so that a request resolves each one once."""
    return RequireAction(action)


class LocalAuthMiddleware:
    """ASGI middleware that authenticates the local user by token. Also accepts API keys if `verify_key` is given."""

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
        """Stores the caller in the scope. Returns a response if the request needs no application."""
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
