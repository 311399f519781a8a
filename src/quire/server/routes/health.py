"""Whether the process lives, whether it can serve, and what it has counted so far.

For those who run it: no key is asked for, and nothing is told of anybody's conversations.
"""

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from quire.errors import SchemaOutdated, StoreError
from quire.server.problems import problem
from quire.server.serving import Serving
from quire.server.stopping import Stopping
from quire.server.telemetry import telemetry_of
from quire.server.telemetry.metrics import MEDIA_TYPE

READY_WITHIN = 2.0
"""Seconds that the database has to answer."""

router = APIRouter(tags=["health"])


class Health(BaseModel):
    status: str = Field(description="Always `ok`: a server that is not, answers with a problem or not at all.")


@router.get("/healthz")
async def alive() -> Health:
    """The process lives and answers. It says nothing of the database: a restart would not mend that."""
    return Health(status="ok")


@router.get("/readyz", response_model=Health)
async def ready(request: Request) -> Health | JSONResponse:
    """Whether requests can be served: the database answers and has the right schema, and the server is not stopping."""
    serving: Serving = request.app.state.serving
    stopping: Stopping = request.app.state.stopping
    if stopping.begun:
        return _not_ready("stopping", "The server is stopping.")
    try:
        async with asyncio.timeout(READY_WITHIN):
            await serving.store.check()
    except TimeoutError:
        return _not_ready("store_unavailable", f"The database did not answer within {READY_WITHIN:g} seconds.")
    except SchemaOutdated as error:
        return _not_ready("schema_outdated", str(error))
    except StoreError:
        # Its message may name hosts and users, which are nobody's business here.
        return _not_ready("store_unavailable", "The database cannot be reached.")
    return Health(status="ok")


def _not_ready(code: str, detail: str) -> JSONResponse:
    return problem(503, detail=detail, code=code, headers={"Retry-After": "1"})


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Counts and times, as Prometheus reads them."""
    told, serving = telemetry_of(request).metrics, request.app.state.serving
    told.connected(serving.store.connections())
    return Response(told.page(), media_type=MEDIA_TYPE)
