"""Exception handlers: errors as problem details (RFC 9457) with a machine-readable `code`.

A `QuireError` is returned with its message, a database error with a fixed text. Any other exception is returned without
details, which go into the log.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from quire import errors
from quire.errors import QuireError, error_detail
from quire.schemas.turn_events import Problem

PROBLEM_MEDIA_TYPE = "application/problem+json"
UNEXPECTED_DETAIL = "An unexpected error occurred in Quire; the server log has the details."

_STATUS_BY_ERROR: dict[type[QuireError], HTTPStatus] = {
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.Conflict: HTTPStatus.CONFLICT,
    errors.AccessDenied: HTTPStatus.FORBIDDEN,
    errors.InvalidKey: HTTPStatus.UNAUTHORIZED,
    errors.TooManyRequests: HTTPStatus.TOO_MANY_REQUESTS,
    errors.RequestTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.RequestTimeout: HTTPStatus.REQUEST_TIMEOUT,
    errors.ContextOverflow: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.SpendCapReached: HTTPStatus.PAYMENT_REQUIRED,
    errors.IntegrityViolation: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.StoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.StoreBusy: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.StoreError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.ModelRateLimited: HTTPStatus.TOO_MANY_REQUESTS,
    errors.ModelError: HTTPStatus.BAD_GATEWAY,
    errors.SummaryFailed: HTTPStatus.BAD_GATEWAY,
    errors.MissingExtra: HTTPStatus.NOT_IMPLEMENTED,
    QuireError: HTTPStatus.BAD_REQUEST,
}
"""HTTP status of an error: that of the nearest class in its MRO."""


def http_status(error: QuireError) -> HTTPStatus:
    return next(_STATUS_BY_ERROR[kind] for kind in type(error).__mro__ if kind in _STATUS_BY_ERROR)


def error_code(error: QuireError) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


def error_to_problem(error: QuireError) -> Problem:
    status = http_status(error)
    return Problem(title=status.phrase, status=status, detail=error_detail(error), code=error_code(error))


UNEXPECTED_PROBLEM = Problem(
    title=HTTPStatus.INTERNAL_SERVER_ERROR.phrase, status=500, detail=UNEXPECTED_DETAIL, code="unexpected"
)
"""For exceptions that are not a `QuireError`, whose details go only into the log."""


def problem_response(
    status: int, *, detail: str, code: str, headers: Mapping[str, str] | None = None, **extra_fields: Any
) -> JSONResponse:
    body = Problem(title=_get_title(status), status=status, detail=detail, code=code).model_dump() | extra_fields
    return JSONResponse(body, status_code=status, media_type=PROBLEM_MEDIA_TYPE, headers=dict(headers or {}))


def _get_title(status: int) -> str:
    """The standard phrase; an upstream may respond with a status that has none, such as Anthropic's 529."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Server Error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "Client Error"


def error_to_response(error: QuireError) -> JSONResponse:
    status = http_status(error)
    retry_after = getattr(error, "retry_after", None)
    if retry_after is None and status == HTTPStatus.SERVICE_UNAVAILABLE:
        retry_after = 1
    headers = {"Retry-After": str(max(1, round(retry_after)))} if retry_after is not None else {}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return problem_response(status, detail=error_detail(error), code=error_code(error), headers=headers)


def add_exception_handlers(app: FastAPI) -> None:
    app.add_exception_handler(QuireError, _handle_quire_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(Exception, _handle_unexpected_error)


async def _handle_quire_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, QuireError)
    return error_to_response(error)


async def _handle_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).name.lower()
    return problem_response(error.status_code, detail=str(error.detail), code=code, headers=error.headers)


async def _handle_validation_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = [{"location": [str(step) for step in each["loc"]], "message": each["msg"]} for each in error.errors()]
    summary = "; ".join(f"{'.'.join(fault['location'])}: {fault['message']}" for fault in faults[:5])
    return problem_response(422, detail=f"The request is invalid: {summary}.", code="invalid", errors=faults)


async def _handle_unexpected_error(_: Request, error: Exception) -> JSONResponse:
    return problem_response(500, detail=UNEXPECTED_DETAIL, code="unexpected")


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {
        "description": HTTPStatus(status).phrase,
        "content": {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}},
    }
    for status in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}
"""OpenAPI description of the errors that any route may return."""
