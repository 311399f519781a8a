"""Liveness, readiness and Prometheus metrics, for operators.

These routes need no API key and reveal nothing about conversations.
"""

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from quire.errors import SchemaOutdated, StoreError, StoreFull, StoreReadOnly, error_detail
from quire.server.lifecycle import StreamRegistry
from quire.server.problems import problem_response
from quire.server.state import get_server_state
from quire.server.telemetry import get_telemetry
from quire.server.telemetry.metrics import METRICS_MEDIA_TYPE
from quire.wire.http_errors import error_code

READINESS_TIMEOUT_SECONDS = 2.0
"""Seconds that the database has to answer the readiness check."""
READINESS_CACHE_SECONDS = 1.0
"""Time for which the result of the write test counts: it connects and commits."""

router = APIRouter(tags=["health"])


class HealthSchema(BaseModel):
    status: str = Field(description="`ok`; a failing server returns a problem, or does not answer.")


@router.get("/healthz")
async def check_liveness() -> HealthSchema:
    """Liveness: the process answers. Does not check the database, because a restart would not repair it."""
    return HealthSchema(status="ok")


@router.get("/readyz", response_model=HealthSchema)
async def check_readiness(request: Request) -> HealthSchema | JSONResponse:
    """Readiness: the database accepts writes and has the right schema, and the server is not stopping."""
    server_state = get_server_state(request)
    streams: StreamRegistry = request.app.state.streams
    if streams.is_shutting_down:
        return _not_ready_response("stopping", "The server is stopping.")
    try:
        async with asyncio.timeout(READINESS_TIMEOUT_SECONDS):
            await server_state.store.check(max_age_seconds=READINESS_CACHE_SECONDS)
    except TimeoutError:
        return _not_ready_response(
            "store_unavailable", f"The database did not answer within {READINESS_TIMEOUT_SECONDS:g} seconds."
        )
    except SchemaOutdated as error:
        return _not_ready_response("schema_outdated", str(error))
    except (StoreReadOnly, StoreFull) as error:
        return _not_ready_response(error_code(error), error_detail(error))
    except StoreError:
        # The message may contain host and user names, which must not be public.
        return _not_ready_response("store_unavailable", "The database cannot be reached.")
    return HealthSchema(status="ok")


def _not_ready_response(code: str, detail: str) -> JSONResponse:
    return problem_response(503, detail=detail, code=code, headers={"Retry-After": "1"})


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def get_metrics(request: Request) -> Response:
    """Returns metrics in the Prometheus text format."""
    server_state = get_server_state(request)
    metrics = get_telemetry(request).metrics
    metrics.set_connections(server_state.store.get_pool_stats())
    return Response(metrics.export(), media_type=METRICS_MEDIA_TYPE)
