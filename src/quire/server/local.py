"""One user on a laptop: a server that only this machine reaches, and on it only who has the token.

The token comes in the address that is opened, becomes a cookie, and leaves the address. Pages of other sites cannot
use the cookie: what they ask for is refused by the name they ask under (DNS rebinding), by their origin, and by what
the browser says of them. There is no CORS. A page of another port of this machine is another site.
"""

import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from ipaddress import ip_address
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.errors import AccessDenied, ForeignRequest, InvalidConfiguration, InvalidKey
from quire.log import DEFAULT_TENANT
from quire.server.identity import ALL_SCOPES, CALLER, Caller, key_in
from quire.server.problems import problem_of

OPEN_PATHS = ("/healthz", "/readyz")
"""What answers without the token; it says nothing but yes or no."""

_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
_FRIENDLY = ("same-origin", "none")
"""What a browser says of a request that our own page makes, or that the user made by hand."""

LOCAL_CALLER = Caller(DEFAULT_TENANT, None, ALL_SCOPES)

Known = Callable[[str | None], Awaitable[object | None]]
"""Something, if this is the text of a key."""


def new_token() -> str:
    return secrets.token_urlsafe(32)


def address(host: str, port: int, token: str | None = None) -> str:
    """The address to open."""
    named = f"[{host}]" if ":" in host else host
    return f"http://{named}:{port}/" + (f"?{urlencode({'token': token})}" if token is not None else "")


def check_loopback(host: str) -> str:
    """The host, if a server that listens there is reached from this machine alone."""
    try:
        loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise InvalidConfiguration(
            f"Without keys Quire listens on this machine alone, and {host!r} is not 127.0.0.1, ::1 or localhost; "
            "make keys with `quire key create`, and serve with them."
        )
    return host


class LocalOnly:
    """ASGI middleware that lets in the user of this machine; beside the token, also keys that `known` knows."""

    def __init__(self, app: ASGIApp, *, token: str, known: Known | None = None) -> None:
        if not token:
            raise InvalidConfiguration("A local server needs a token; `new_token` makes one.")
        self._app, self._token, self._known = app, token.encode(), known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await (await self._admitted(scope))(scope, receive, send)
            case "lifespan":
                await self._app(scope, receive, send)
            case _:
                # Nothing here speaks WebSocket, which knows no same-origin rule.
                await send({"type": "websocket.close", "code": 1008})

    async def _admitted(self, scope: Scope) -> ASGIApp:
        """What answers: the application, or something in its place."""
        try:
            return await self._admit(scope) or self._app
        except AccessDenied as error:
            return problem_of(error)

    async def _admit(self, scope: Scope) -> Response | None:
        """Leaves the caller in the scope; gives a response where that is already the answer."""
        headers = Headers(scope=scope)
        check_same_site(headers)
        if scope["path"] in OPEN_PATHS:
            return None
        if (given := _token_in_address(scope)) is not None:
            return self._logged_in(scope, given)
        shown = key_in(headers)
        if self._is_token(shown) or any(map(self._is_token, _cookies(headers, _cookie_name(scope)))):
            scope[CALLER] = LOCAL_CALLER
        elif self._known is None or await self._known(shown) is None:
            raise InvalidKey("This server is for whoever started it: open the address that `quire serve` printed.")
        return None

    def _is_token(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(errors="replace"), self._token)

    def _logged_in(self, scope: Scope, given: str) -> Response:
        """The token, as a cookie from now on, and the address without it, so that no history and no log keeps it."""
        if not self._is_token(given):
            raise InvalidKey(
                "The token in this address is not, or no longer, the server's: open the one it printed last."
            )
        rest = [(name, value) for name, value in _query(scope) if name != "token"]
        headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        response = RedirectResponse("/" + (f"?{urlencode(rest)}" if rest else ""), status_code=303, headers=headers)
        response.set_cookie(_cookie_name(scope), given, httponly=True, samesite="strict", path="/")
        return response


def check_same_site(headers: Headers) -> None:
    """Raises `ForeignRequest` unless the request is for this machine, and not from another site's page."""
    hosts, origins, sites = (headers.getlist(name) for name in ("host", "origin", "sec-fetch-site"))
    if len(hosts) != 1 or _HOST.fullmatch(hosts[0]) is None:
        raise ForeignRequest("This server answers to 127.0.0.1, localhost and ::1 alone; open it under one of these.")
    # Compared with the host that was asked for, so that a forwarded port works as well as the server's own.
    if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
        raise ForeignRequest("A page of another site may ask this server for nothing; use its own page, or a key.")
    if any(site not in _FRIENDLY for site in sites):
        raise ForeignRequest("The browser says that another site asks; open this server's address by itself.")


def _token_in_address(scope: Scope) -> str | None:
    if scope["path"] != "/" or scope["method"] != "GET":
        return None
    return next((value for name, value in _query(scope) if name == "token"), None)


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _cookie_name(scope: Scope) -> str:
    """With the port, because browsers keep one set of cookies for all ports of a machine."""
    server = scope.get("server")
    return f"quire-{server[1] if server else 0}"


def _cookies(headers: Headers, name: str) -> Iterator[str]:
    for line in headers.getlist("cookie"):
        for each in line.split(";"):
            found, _, value = each.strip().partition("=")
            if found == name:
                yield value
