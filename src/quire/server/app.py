"""The application: routes, what guards them, and how errors are answered."""

from fastapi import FastAPI

from quire.server import gateway
from quire.server.identity import KeyFirst, door_of
from quire.server.limits import Limits
from quire.server.local import LocalOnly
from quire.server.page import add_page
from quire.server.problems import RESPONSES, add_problems
from quire.server.routes import ROUTERS
from quire.server.serving import Serving
from quire.server.stopping import EndOfStreams, Stopping
from quire.server.telemetry import add_telemetry


def create_app(serving: Serving, *, token: str | None = None) -> FastAPI:
    """Everything that a server answers. With a `token` it is for the one user of this machine who has it."""
    app = FastAPI(
        title="Quire",
        summary="Every message kept, every request within budget, every decision on record.",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses=RESPONSES,
    )
    app.state.serving, app.state.stopping = serving, Stopping()
    add_problems(app)
    # The gateway first: it is asked most, and routes are tried in their order.
    for router in (gateway.router, *ROUTERS):
        app.include_router(router)
    add_page(app)
    app.add_middleware(EndOfStreams, stopping=app.state.stopping)
    app.add_middleware(KeyFirst)
    if token is not None:
        app.add_middleware(LocalOnly, token=token, known=door_of(app).key)
    app.add_middleware(Limits, max_bytes=lambda: serving.settings.max_request_bytes)
    # The outermost of all, so that it sees what the others refuse.
    add_telemetry(app, serving)
    return app
