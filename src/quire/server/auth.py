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
from dataclasses import replace
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, TypeGuard
from urllib.parse import parse_qsl, urlencode

from cachetools import LRUCache, TTLCache
from fastapi import FastAPI, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from quire.access.keys import ApiKey, Keys, KeyScope
from quire.access.permissions import PERMISSIONS, Action, Relation
from quire.access.users import EVERYONE
from quire.concurrency.worker_threads import set_work_owner, work_meter
from quire.errors import (
    AccessDenied,
    ConversationNotFound,
    CrossOriginRequest,
    InsufficientScope,
    InvalidConfiguration,
    InvalidKey,
    ModelNotAllowed,
    QuireError,
    RoleRequired,
    SignInRefused,
    SignInRequired,
    SignInUnavailable,
    StoreError,
    StoreUnavailable,
    TooManyRequests,
    UserNotFound,
)
from quire.model.ids import now
from quire.model.people import UserRole, make_space, split_space
from quire.server.caller import LOCAL_CALLER, Caller
from quire.server.page import make_denied_page
from quire.server.problems import error_to_response
from quire.server.rate_limits import RATE_LIMIT_SCOPE_KEY, RateLimitStatus, SharedRateLimiter
from quire.settings import Settings
from quire.settings.schema import tenant_quota_for
from quire.store import SqlStore

if TYPE_CHECKING:
    from quire.server.sign_in import SignInService

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


USER_PARAMETER = "user"
"""Query parameter of every route: the person whose conversations the request is about, by default the caller."""
TEAM_SPACE = "team"
"""Value of `USER_PARAMETER` for conversations of the tenant itself, from its API keys and workloads."""


def get_sign_in(app: FastAPI) -> "SignInService | None":
    """Returns the service by which people sign in, or None where there are only keys."""
    return app.state.sign_in


async def authorize(request: Request, action: Action, **details: str) -> Caller:
    """Returns the caller, for the tenant or person whose conversations the request is about.

    Raises `InvalidKey`, `InsufficientScope` or `TooManyRequests`. Where people sign in, also `RoleRequired`, or
    `ConversationNotFound` for what is another person's, and the audit trail has an entry, with these details, before
    anything is read.
    """
    caller = await _get_caller(request)
    if get_sign_in(request.app) is None:
        check_scope(caller, PERMISSIONS[action].scope)
        return caller
    target, relation = await _find_target(request, caller)
    permission = PERMISSIONS[action]
    has_role = caller.roles is None or permission.allows(caller.roles, relation)
    is_allowed = permission.scope in caller.scopes and has_role
    if relation in permission.audited:
        await audit_request(request, caller, action, allowed=is_allowed, **details)
    if is_allowed:
        return caller if relation == "own" else replace(caller, tenant=target)
    check_scope(caller, permission.scope)
    if relation != "own":
        raise ConversationNotFound
    held = ", ".join(sorted(caller.roles or ())) or "none"
    raise RoleRequired(f"Your roles ({held}) do not allow this: {permission.title}. Ask an owner of {caller.team!r}.")


async def _find_target(request: Request, caller: Caller) -> tuple[str, Relation]:
    """The tenant or the person's part of it that a request is about, and what it is to the caller."""
    user = request.query_params.get(USER_PARAMETER)
    if user is None or user == caller.user:
        return caller.tenant, "own"
    if caller.user is None:
        # An API key has only its conversations, and no role with which to read other people's.
        raise AccessDenied(f"The parameter `{USER_PARAMETER}` needs a session; sign in, or omit it.")
    if user == TEAM_SPACE:
        return caller.team, "other"
    team, space = request.app.state.server_state.store.for_tenant(caller.team), make_space(caller.team, user)
    if split_space(space)[1] is None or await team.users.find(user) is None:
        raise UserNotFound
    conversation = request.path_params.get("conversation")
    if conversation is not None:
        readers = await team.shares.list_readers(user, conversation)
        if EVERYONE in readers or caller.user in readers:
            return space, "shared"
    return space, "other"


async def audit_request(request: Request, caller: Caller, action: str, *, allowed: bool = True, **target: str) -> None:
    """Appends an entry to the audit trail of the caller's tenant: who, what, and from where."""
    store: SqlStore = request.app.state.server_state.store
    route = getattr(request.scope.get("route"), "path", request.url.path)
    parameters = {name: str(value)[:200] for name, value in request.path_params.items()}
    about = {USER_PARAMETER: user[:200]} if (user := request.query_params.get(USER_PARAMETER)) is not None else {}
    await store.for_tenant(caller.team).audit.append(
        action,
        actor=caller.key_id or "",
        target={"route": f"{request.method} {route}", **about, **parameters, **target},
        allowed=allowed,
        address=request.client.host if request.client is not None else "",
    )


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
    sign_in = get_sign_in(request.app)
    if sign_in is not None and caller.user is not None:
        try:
            _, relation = await _find_target(request, caller)
            session = await sign_in.find_session(request)
        except StoreError:
            return True
        return session is not None and PERMISSIONS["read"].allows(session[2].user.roles, relation)
    presented = key_from_headers(request.headers)
    try:
        if sign_in is not None and is_jwt(presented):
            return await sign_in.authenticate_workload(presented) == caller
        key = await get_key_verifier(request.app).verify(presented, max_age_seconds=max_age_seconds)
    except (StoreError, SignInUnavailable):
        return True
    except SignInRefused:
        return False
    return key is not None and key.id == caller.key_id


class AuthMiddleware:
    """ASGI middleware that authenticates a request before any of its body is read.

    Where people sign in, it also sends a browser without a session to the identity provider, instead of to the page."""

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
        elif scope["type"] == "http" and scope["path"] == "/" and (sign_in := get_sign_in(scope["app"])) is not None:
            request = Request(scope)
            if await sign_in.find_session(request) is None:
                app = RedirectResponse(sign_in.make_login_path(f"/?{request.url.query}".rstrip("?")), status_code=303)
        await app(scope, receive, send)


async def _get_caller(request: Request) -> Caller:
    """Authenticates once per request, so that a request counts once against the rate limit."""
    caller: Caller | None = request.scope.get(CALLER_SCOPE_KEY)
    if caller is not None:
        return caller
    sign_in, presented = get_sign_in(request.app), key_from_headers(request.headers)
    per_minute = None
    if sign_in is not None and presented is None and not any(name in request.headers for name in ALL_KEY_HEADERS):
        caller = await sign_in.authenticate(request)
    elif sign_in is not None and is_jwt(presented):
        try:
            caller = await sign_in.authenticate_workload(presented)
        except SignInRefused as error:
            raise SignInRequired(str(error)) from error
    else:
        caller, per_minute = await _verify_key(request, presented)
    await _limit_rate(request, caller, per_minute)
    request.scope[CALLER_SCOPE_KEY] = caller
    return caller


def is_jwt(presented: str | None) -> TypeGuard[str]:
    """Whether what was presented as an API key has the form of a JSON Web Token."""
    return presented is not None and presented.count(".") == 2 and presented.startswith("ey")


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
    if not hasattr(request.app.state, "active_users"):
        request.app.state.active_users = TTLCache[str, bool](KEY_CACHE_SIZE, KEY_CACHE_SECONDS)
    active: TTLCache[str, bool] = request.app.state.active_users
    if key.tenant not in active:
        found = await request.app.state.server_state.store.for_tenant(team).users.find(user)
        active[key.tenant] = found is not None and found.may_use_keys_at(now())
    if not active.get(key.tenant, False):
        raise InvalidKey("The person of this API key has left, or must sign in again to confirm it.")
    roles = frozenset[UserRole]({"member"})
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

    def __init__(self, action: Action) -> None:
        self.action: Action = action

    async def __call__(self, request: Request) -> Caller:
        return await authorize(request, self.action)


@cache
def require_action(action: Action) -> RequireAction:
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
