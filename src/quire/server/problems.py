"""Errors as the documents of RFC 9457: what happened, to which item, what to do next, and a code for programs.

Quire's own errors say all of that; whatever else goes wrong is said without its details, which go into the log.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from quire import errors
from quire.errors import QuireError

MEDIA_TYPE = "application/problem+json"

_STATUS: dict[type[QuireError], HTTPStatus] = {
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.Conflict: HTTPStatus.CONFLICT,
    errors.AccessDenied: HTTPStatus.FORBIDDEN,
    errors.InvalidKey: HTTPStatus.UNAUTHORIZED,
    errors.TooManyRequests: HTTPStatus.TOO_MANY_REQUESTS,
    errors.RequestTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.RequestTooSlow: HTTPStatus.REQUEST_TIMEOUT,
    errors.ContextOverflow: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.SpendCapReached: HTTPStatus.PAYMENT_REQUIRED,
    errors.StoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.StoreBusy: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.StoreError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.ModelThrottled: HTTPStatus.TOO_MANY_REQUESTS,
    errors.ModelError: HTTPStatus.BAD_GATEWAY,
    errors.SummaryFailed: HTTPStatus.BAD_GATEWAY,
    errors.MissingExtra: HTTPStatus.NOT_IMPLEMENTED,
    QuireError: HTTPStatus.BAD_REQUEST,
}
"""The nearest of an error's own classes holds."""


class Problem(BaseModel):
    """What a request that failed is answered with."""

    type: str = Field(default="about:blank", description="Always `about:blank`: `code` says which problem it is.")
    title: str = Field(description="The status in words.")
    status: int
    detail: str = Field(description="What happened, to which item, and what to do next.")
    code: str = Field(description="The problem's name, for programs.")


def status_of(error: QuireError) -> HTTPStatus:
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def code_of(error: QuireError) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


def problem(
    status: int, *, detail: str, code: str, headers: Mapping[str, str] | None = None, **more: Any
) -> JSONResponse:
    title = HTTPStatus(status).phrase
    body = Problem(title=title, status=status, detail=detail, code=code).model_dump() | more
    return JSONResponse(body, status_code=status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


def problem_of(error: QuireError) -> JSONResponse:
    status = status_of(error)
    wait = getattr(error, "retry_after", None)
    if wait is None and status == HTTPStatus.SERVICE_UNAVAILABLE:
        wait = 1
    headers = {"Retry-After": str(max(1, round(wait)))} if wait is not None else {}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return problem(status, detail=str(error), code=code_of(error), headers=headers)


def add_problems(app: FastAPI) -> None:
    app.add_exception_handler(QuireError, _quire_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unexpected)


async def _quire_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, QuireError)
    return problem_of(error)


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).name.lower()
    return problem(error.status_code, detail=str(error.detail), code=code, headers=error.headers)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = [{"where": [str(step) for step in each["loc"]], "what": each["msg"]} for each in error.errors()]
    said = "; ".join(f"{'.'.join(fault['where'])}: {fault['what']}" for fault in faults[:5])
    return problem(422, detail=f"The request is not as it must be: {said}.", code="invalid", faults=faults)


async def _unexpected(_: Request, error: Exception) -> JSONResponse:
    return problem(500, detail="Something went wrong in Quire; its log has the details.", code="unexpected")


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {
        "description": HTTPStatus(status).phrase,
        "content": {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}},
    }
    for status in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}
"""What any route may answer instead."""
