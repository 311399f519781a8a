"""Authentication by API key: the tenant that a key belongs to, its scopes and its rate limit.

Wrong, unknown, revoked and expired keys all get the same error message.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from fastapi import FastAPI, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from quire.errors import (
    InsufficientScope,
    InvalidKey,
    ModelNotAllowed,
    QuireError,
    StoreError,
    TooManyRequests,
)
from quire.log import KEY_SCOPES, KeyScope
from quire.log.costs import SpendingKey
from quire.log.worker_threads import set_work_owner
from quire.server.key_verifier import KeyVerifier
from quire.server.problems import error_to_response
from quire.server.rate_limits import RATE_LIMIT_SCOPE_KEY, SharedRateLimiter
from quire.settings import Settings

__all__ = [
    "ALL_SCOPES",
    "CALLER_SCOPE_KEY",
    "KEY_HEADERS",
    "OWN_KEY_HEADER",
    "AuthMiddleware",
    "Caller",
    "KeyScope",
    "authorize",
    "check_model",
    "check_scope",
    "get_key_verifier",
    "is_still_authorized",
    "key_from_headers",
    "require_scope",
]

KEY_HEADERS = ("authorization", "x-api-key", "api-key")
"""Headers in which clients send API keys: a key of Quire, the local token, or credentials for a provider."""
OWN_KEY_HEADER = "x-quire-key"
"""Header for a key of Quire or the local token alone. With it, `KEY_HEADERS` are credentials for a provider."""

CALLER_SCOPE_KEY = "quire.caller"
"""ASGI scope key under which a middleware stores an authenticated caller. Clients cannot set it: it is no header."""

PROTECTED_PREFIXES = ("/api/", "/v1/", "/mcp")
"""Path prefixes that need a key, whatever a route depends on."""
PUBLIC_PATHS = ("/api/openapi.json", "/api/hello")
"""Exceptions to `PROTECTED_PREFIXES`. Claude Code probes `/api/hello` without a key; it does not exist."""

ALL_SCOPES: frozenset[KeyScope] = frozenset(KEY_SCOPES)


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


def get_key_verifier(app: FastAPI) -> KeyVerifier:
    """Returns the application's `KeyVerifier`, created on first use."""
    if not hasattr(app.state, "key_verifier"):
        app.state.key_verifier = KeyVerifier(app.state.server_state.store)
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
    if caller is None:
        caller = request.scope[CALLER_SCOPE_KEY] = await _authenticate(request)
    return caller


async def _authenticate(request: Request) -> Caller:
    verifier = get_key_verifier(request.app)
    settings: Settings = request.app.state.server_state.settings
    allow_stale = settings.on_store_failure == "pass_through"
    key = await verifier.verify(key_from_headers(request.headers), allow_stale=allow_stale)
    if key is None:
        raise InvalidKey
    per_minute = key.requests_per_minute or settings.requests_per_minute
    if per_minute is not None:
        status = await get_rate_limiter(request.app).acquire(key.tenant, key.id, per_minute)
        request.scope[RATE_LIMIT_SCOPE_KEY] = status
        if status.retry_after is not None:
            raise TooManyRequests(
                f"The key {key.id!r} is limited to {per_minute:,} requests a minute; "
                f"retry in {status.retry_after} seconds.",
                retry_after=status.retry_after,
            )
    return Caller(key.tenant, key.id, key.scopes, key.max_spend, key.models)


class RequireScope(SecurityBase):
    """Route dependency that requires a scope. Scheme and dependency in one: each dependency costs every request."""

    model = HTTPBearer(
        bearerFormat="quire_<id>_<secret>",
        description="An API key made by `quire key create`. Clients may also send it in `x-api-key`, `api-key` or "
        "`X-Quire-Key`.",
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
