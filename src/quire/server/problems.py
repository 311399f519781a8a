"""Exception handlers: errors as problem details (RFC 9457) with a machine-readable `code`.

A `QuireError` is returned with its message, a database error with a fixed text. Any other exception is returned without
details, which go into the log.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from quire.errors import QuireError, error_detail
from quire.schemas.turn_events import Problem
from quire.wire.http_errors import PROBLEM_MEDIA_TYPE, build_problem, error_code, http_status, retry_headers

UNEXPECTED_DETAIL = "An unexpected error occurred in Quire; the server log has the details."


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
    body = build_problem(status, detail=detail, code=code) | extra_fields
    return JSONResponse(body, status_code=status, media_type=PROBLEM_MEDIA_TYPE, headers=dict(headers or {}))


def error_to_response(error: QuireError) -> JSONResponse:
    status, headers = http_status(error), retry_headers(error)
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    # The kind of error in SCIM's own words, from which its routes make their errors.
    scim = {"scim_type": kind} if (kind := getattr(error, "scim_type", None)) is not None else {}
    return problem_response(status, detail=error_detail(error), code=error_code(error), headers=headers, **scim)


def add_exception_handlers(app: FastAPI) -> None:
    async def handle_quire_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, QuireError)
        return error_to_response(error)

    async def handle_http_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = HTTPStatus(error.status_code).name.lower()
        return problem_response(error.status_code, detail=str(error.detail), code=code, headers=error.headers)

    async def handle_validation_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        faults = [{"location": [str(step) for step in each["loc"]], "message": each["msg"]} for each in error.errors()]
        summary = "; ".join(f"{'.'.join(fault['location'])}: {fault['message']}" for fault in faults[:5])
        return problem_response(422, detail=f"The request is invalid: {summary}.", code="invalid", errors=faults)

    async def handle_unexpected_error(_: Request, error: Exception) -> JSONResponse:
        return problem_response(500, detail=UNEXPECTED_DETAIL, code="unexpected")

    app.add_exception_handler(QuireError, handle_quire_error)
    app.add_exception_handler(HTTPException, handle_http_error)
    app.add_exception_handler(RequestValidationError, handle_validation_error)
    app.add_exception_handler(Exception, handle_unexpected_error)


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {
        "description": HTTPStatus(status).phrase,
        "content": {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}},
    }
    for status in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}
"""OpenAPI description of the errors that any route may return."""
