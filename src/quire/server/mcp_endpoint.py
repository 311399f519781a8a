"""`/mcp`: the MCP server over stateless streamable HTTP, for callers with API keys or with the local token.

A request is served by a manager of its own: without sessions there is nothing to share, and no task outlives its
request. A caller needs the scope `read`; `write` adds memory_write, and `chat` lets a hand-over call the summarizer.
"""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.errors import MissingExtra, QuireError
from quire.server.auth import CALLER_SCOPE_KEY, Caller, authorize
from quire.server.dependencies import engine_for_caller
from quire.server.problems import error_to_response, problem_response
from quire.server.state import ServerState

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from quire.mcp_server.access import HistoryAccess
    from quire.mcp_server.server import RequestContext

MCP_PATH = "/mcp"
MAX_MCP_REQUEST_BYTES = 1_000_000
"""Maximum size of a request: arguments of tools are short."""
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


def add_mcp(app: FastAPI, server_state: ServerState) -> None:
    app.router.routes.append(Route(MCP_PATH, McpEndpoint(server_state), include_in_schema=False))


class McpEndpoint:
    """ASGI application for `/mcp`. The SDK is imported by the first request, because that takes a second."""

    def __init__(self, server_state: ServerState) -> None:
        self._state, self._lock = server_state, asyncio.Lock()
        self._server: Server[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = await self._select_app(scope)
        await app(scope, receive, send)

    async def _select_app(self, scope: Scope) -> ASGIApp:
        """Returns what serves the request, or a refusal."""
        if scope["method"] != "POST":
            # There are no sessions, so there is nothing to subscribe to or to delete.
            detail = "The MCP endpoint serves POST requests, without sessions."
            headers = {"Allow": "POST"}
            return problem_response(405, detail=detail, code="method_not_allowed", headers=headers)
        refused = _find_refused_host(Headers(scope=scope), self._state.settings.mcp_hosts)
        if refused is not None:
            detail = f"/mcp is not served under {refused!r}; add that host to the setting `mcp_hosts`."
            return problem_response(HTTPStatus.MISDIRECTED_REQUEST, detail=detail, code="host_not_allowed")
        try:
            await authorize(Request(scope), "read")
            server = await self._load_server()
        except QuireError as error:
            return error_to_response(error)
        return _StatelessTransport(server)

    async def _load_server(self) -> "Server[Any]":
        async with self._lock:
            if self._server is None:
                self._server = await asyncio.to_thread(self._build_server)
        return self._server

    def _build_server(self) -> "Server[Any]":
        try:
            from quire.mcp_server.server import build_server
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
                raise
            raise MissingExtra(extra="mcp", feature="The MCP server") from error

        async def resolve_access(context: "RequestContext") -> "HistoryAccess":
            return self._access_for(_get_caller(context))

        return build_server(resolve_access, writes_memories=lambda context: "write" in _get_caller(context).scopes)

    def _access_for(self, caller: Caller) -> "HistoryAccess":
        from quire.mcp_server.access import HistoryAccess

        return HistoryAccess(
            engine=engine_for_caller(self._state, caller),
            writes_memories="write" in caller.scopes,
            calls_model="chat" in caller.scopes,
            masks_secrets=self._state.settings.mask_secrets,
        )


class _StatelessTransport:
    """Serves one request."""

    def __init__(self, server: "Server[Any]") -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
        from mcp.server.transport_security import TransportSecuritySettings

        manager = StreamableHTTPSessionManager(
            self._server,
            json_response=True,
            stateless=True,
            # The host was checked, with an error that names the setting.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=MAX_MCP_REQUEST_BYTES,
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)


def _get_caller(context: "RequestContext") -> Caller:
    assert context.request is not None
    return context.request.scope[CALLER_SCOPE_KEY]


def _find_refused_host(headers: Headers, allowed: Sequence[str]) -> str | None:
    """The host of the request, or of the page that sent it, if it is not allowed (DNS rebinding)."""
    hosts = [*headers.getlist("host"), *(urlsplit(each).netloc or each for each in headers.getlist("origin"))]
    known = {*LOOPBACK_HOSTS, *(each.lower() for each in allowed)}
    return next((each for each in hosts or [""] if not known & {each.lower(), _strip_port(each.lower())}), None)


def _strip_port(host: str) -> str:
    bare, _, port = host.rpartition(":")
    return (bare if port.isdigit() and bare else host).strip("[]")
