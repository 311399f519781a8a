"""Authentication of the local user: a server on a loopback address, protected by a token.

The token arrives in the URL, is stored as a cookie, and is removed from the URL. Pages of other sites cannot use the
cookie: their requests are refused by Host (DNS rebinding), by Origin, and by Sec-Fetch-Site. There is no CORS. A page
on another port of this machine counts as another site.
"""

import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.errors import AccessDenied, CrossOriginRequest, InvalidConfiguration, InvalidKey
from quire.server.addresses import CHALLENGE_HEADER, sign_challenge
from quire.server.auth import ALL_SCOPES, CALLER_SCOPE_KEY, Caller, key_from_headers
from quire.server.page import make_denied_page
from quire.server.problems import error_to_response
from quire.store import DEFAULT_TENANT

HEALTH_PATHS = ("/healthz", "/readyz")
"""Paths that need no token: they return only a status."""

_LOOPBACK_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
_TRUSTED_FETCH_SITES = ("same-origin", "none")
"""Sec-Fetch-Site of requests by our own page, or by the user (typed address)."""

LOCAL_CALLER = Caller(DEFAULT_TENANT, None, ALL_SCOPES)

VerifyKey = Callable[[str | None], Awaitable[object | None]]
"""Returns a value other than None if the argument is a valid API key."""


class LocalAuthMiddleware:
    """ASGI middleware that authenticates the local user by token; also accepts API keys if `verify_key` is given."""

    def __init__(self, app: ASGIApp, *, token: str, verify_key: VerifyKey | None = None) -> None:
        if not token:
            raise InvalidConfiguration("A local server needs a token; `generate_token` makes one.")
        self._app, self._token, self._verify_key = app, token.encode(), verify_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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

    async def _authenticate(self, scope: Scope) -> Response | None:
        """Stores the caller in the scope; returns a response if the request needs no application."""
        headers = Headers(scope=scope)
        check_same_site(headers)
        if scope["path"] in HEALTH_PATHS:
            challenge = headers.get(CHALLENGE_HEADER)
            return None if challenge is None else Response(sign_challenge(self._token.decode(), challenge))
        # The name includes the port, because browsers share cookies between all ports of a host.
        server = scope.get("server")
        cookie_name = f"quire-{server[1] if server else 0}"
        if scope["path"] == "/" and scope["method"] == "GET":
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            token = next((value for name, value in query if name == "token"), None)
            if token is not None:
                return self._log_in(token, cookie_name, [(name, value) for name, value in query if name != "token"])
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

    def _log_in(self, token: str, cookie_name: str, query: Sequence[tuple[str, str]]) -> Response:
        """Stores the token as a cookie and redirects to the URL without it, so that no history or log contains it."""
        if not self._matches_token(token):
            raise InvalidKey(
                "The token in this address is wrong or expired: open the address that `quire serve` printed last."
            )
        headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        response = RedirectResponse("/" + (f"?{urlencode(query)}" if query else ""), status_code=303, headers=headers)
        response.set_cookie(cookie_name, token, httponly=True, samesite="strict", path="/")
        return response


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
