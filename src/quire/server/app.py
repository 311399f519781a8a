"""Application factory: routes, middleware and exception handlers."""

from fastapi import APIRouter, FastAPI

from quire.server import gateway
from quire.server.auth import AuthMiddleware, LocalAuthMiddleware, get_key_verifier, load_access_policy
from quire.server.gateway.response import ErrorFormatMiddleware
from quire.server.lifecycle import StreamRegistry, StreamShutdownMiddleware
from quire.server.limits import LimitsMiddleware
from quire.server.mcp_endpoint import add_mcp
from quire.server.page import add_page
from quire.server.problems import ERROR_RESPONSES, add_exception_handlers
from quire.server.routes import ROUTERS
from quire.server.state import ServerState
from quire.server.telemetry import add_telemetry

# The gateway first: it gets the most requests, and routes are matched in order. One router for all apps of a process:
# FastAPI analyses the parameters of its routes at the first request, which takes longer than most requests.
_API = APIRouter(responses=ERROR_RESPONSES)
for _router in (
    gateway.router,
    gateway.responses_router,
    gateway.conversations_router,
    gateway.gemini_router,
    *ROUTERS,
    gateway.other_paths_router,
):
    _API.include_router(_router)


def create_app(
    server_state: ServerState, *, token: str | None = None, streams: StreamRegistry | None = None
) -> FastAPI:
    """Builds the application. With a `token`, it serves only the local user who presents it.

    Several applications of one server share its `streams`, so that all of them end when it stops.
    """
    app = FastAPI(
        title="Quire",
        summary="Every message recorded, every request within budget, every decision recorded.",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        routes=_API.routes,
    )
    app.state.server_state = server_state
    app.state.streams = StreamRegistry() if streams is None else streams
    app.state.access = load_access_policy(server_state) if token is None else None
    add_exception_handlers(app)
    add_mcp(app, server_state)
    add_page(app)
    app.add_middleware(StreamShutdownMiddleware, streams=app.state.streams)
    app.add_middleware(AuthMiddleware)
    if token is not None:
        app.add_middleware(LocalAuthMiddleware, token=token, verify_key=get_key_verifier(app).verify)
    app.add_middleware(LimitsMiddleware, max_bytes=lambda: server_state.settings.max_request_bytes)
    app.add_middleware(ErrorFormatMiddleware, formats=app.state.access.error_formats if app.state.access else {})
    # Outermost, so that it also measures requests that the other middleware refuses.
    add_telemetry(app, server_state)
    return app
