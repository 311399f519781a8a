"""`/mcp`: the MCP server over stateless streamable HTTP, for callers with API keys or with the local token.

Each request has its own session manager: without sessions there is nothing to share, and no task outlives its
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
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from quire.errors import MissingExtra, QuireError
from quire.server.auth import CALLER_SCOPE_KEY, authorize
from quire.server.caller import Caller
from quire.server.dependencies import engine_for_caller
from quire.server.problems import error_to_response, problem_response
from quire.server.state import ServerState

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

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
        refusal = _find_refusal(scope, self._state.settings.mcp_hosts)
        if refusal is None:
            try:
                await authorize(Request(scope), "read")
                async with self._lock:
                    self._server = self._server or await asyncio.to_thread(self._build_server)
            except QuireError as error:
                refusal = error_to_response(error)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        assert self._server is not None
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

    def _build_server(self) -> "Server[Any]":
        try:
            from quire.mcp_server.access import HistoryAccess
            from quire.mcp_server.server import build_server
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
                raise
            raise MissingExtra(extra="mcp", feature="The MCP server") from error

        async def resolve_access(context: "RequestContext") -> HistoryAccess:
            caller = _get_caller(context)
            return HistoryAccess(
                engine=engine_for_caller(self._state, caller),
                may_write="write" in caller.scopes,
                calls_model="chat" in caller.scopes,
            )

        return build_server(resolve_access, may_write=lambda context: "write" in _get_caller(context).scopes)


def _get_caller(context: "RequestContext") -> Caller:
    assert context.request is not None
    return context.request.scope[CALLER_SCOPE_KEY]


def _find_refusal(scope: Scope, allowed_hosts: Sequence[str]) -> Response | None:
    """Returns the response to a request with another method than POST, or for a host that is not allowed."""
    if scope["method"] != "POST":
        # There are no sessions, so there is nothing to subscribe to or to delete.
        detail = "The MCP endpoint serves POST requests, without sessions."
        return problem_response(405, detail=detail, code="method_not_allowed", headers={"Allow": "POST"})
    # The host of the request, and of the page that sent it (DNS rebinding).
    headers = Headers(scope=scope)
    hosts = [*headers.getlist("host"), *(urlsplit(each).netloc or each for each in headers.getlist("origin"))]
    known = {*LOOPBACK_HOSTS, *(each.lower() for each in allowed_hosts)}
    for host in hosts or [""]:
        bare, _, port = host.lower().rpartition(":")
        without_port = (bare if port.isdigit() and bare else host.lower()).strip("[]")
        if not known & {host.lower(), without_port}:
            detail = f"/mcp is not served under {host!r}; add that host to the setting `mcp_hosts`."
            return problem_response(HTTPStatus.MISDIRECTED_REQUEST, detail=detail, code="host_not_allowed")
    return None
