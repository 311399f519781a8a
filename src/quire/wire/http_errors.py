"""Errors over HTTP: the status and code of each error, and the response that a codec makes of it."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from quire import errors
from quire.errors import QuireError

PROBLEM_MEDIA_TYPE = "application/problem+json"

_STATUS_BY_ERROR: dict[type[QuireError], HTTPStatus] = {
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.Conflict: HTTPStatus.CONFLICT,
    errors.AccessDenied: HTTPStatus.FORBIDDEN,
    errors.InvalidKey: HTTPStatus.UNAUTHORIZED,
    errors.TooManyRequests: HTTPStatus.TOO_MANY_REQUESTS,
    errors.RequestTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.RequestTimeout: HTTPStatus.REQUEST_TIMEOUT,
    # Not a status upon which clients retry by themselves.
    errors.WorkTimeout: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.StorageQuotaReached: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.ContextOverflow: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.SpendCapReached: HTTPStatus.PAYMENT_REQUIRED,
    errors.IntegrityViolation: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.StoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.StoreBusy: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ObjectStorageUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.SignInUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.StoreError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.ModelRateLimited: HTTPStatus.TOO_MANY_REQUESTS,
    errors.ModelError: HTTPStatus.BAD_GATEWAY,
    errors.SummaryFailed: HTTPStatus.BAD_GATEWAY,
    errors.MissingExtra: HTTPStatus.NOT_IMPLEMENTED,
    QuireError: HTTPStatus.BAD_REQUEST,
}
"""HTTP status of an error: the one of the nearest class in its MRO."""


class ErrorResponse(NamedTuple):
    """An error as a client's wire format has it, without an HTTP framework."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def http_status(error: QuireError) -> HTTPStatus:
    return next(_STATUS_BY_ERROR[kind] for kind in type(error).__mro__ if kind in _STATUS_BY_ERROR)


def error_code(error: QuireError) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


def retry_headers(error: QuireError) -> dict[str, str]:
    """The header that says when to try again, for errors that pass."""
    retry_after = getattr(error, "retry_after", None)
    if retry_after is None and http_status(error) == HTTPStatus.SERVICE_UNAVAILABLE:
        retry_after = 1
    return {"Retry-After": str(max(1, round(retry_after)))} if retry_after is not None else {}


def build_problem(status: int, *, detail: str, code: str) -> dict[str, Any]:
    """A problem document (RFC 9457). Some statuses of upstreams have no phrase, such as Anthropic's 529."""
    try:
        title = HTTPStatus(status).phrase
    except ValueError:
        title = "Server Error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "Client Error"
    return {"type": "about:blank", "title": title, "status": status, "detail": detail, "code": code}
