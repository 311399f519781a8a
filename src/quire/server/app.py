"""The application: routes, what guards them, and how errors are answered."""

from fastapi import FastAPI

from quire.server.problems import RESPONSES, add_problems
from quire.server.routes import ROUTERS
from quire.server.serving import Serving


def create_app(serving: Serving) -> FastAPI:
    app = FastAPI(
        title="Quire",
        summary="Every message kept, every request within budget, every decision on record.",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses=RESPONSES,
    )
    app.state.serving = serving
    add_problems(app)
    for router in ROUTERS:
        app.include_router(router)
    return app
