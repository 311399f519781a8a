"""The gateway's own errors, in the form that OpenAI's clients read: a problem document with an `error` in it."""

from pydantic_core import to_json
from starlette.responses import JSONResponse

from quire.errors import ContextOverflow, ModelSilent, QuireError
from quire.server.problems import code_of, problem, problem_of


def refusal(error: QuireError) -> JSONResponse:
    """The answer for an error of Quire's, or for an upstream that gave none."""
    if isinstance(error, ContextOverflow):
        return told(400, str(error), code="context_length_exceeded")
    if isinstance(error, ModelSilent):
        return told(504, str(error), code=code_of(error))
    known = problem_of(error)
    headers = {"Retry-After": known.headers["retry-after"]} if "retry-after" in known.headers else {}
    return told(known.status_code, str(error), code=code_of(error), headers=headers)


def told(status: int, detail: str, *, code: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return problem(status, detail=detail, code=code, headers=headers, error=_said(detail, code, status))


def event_of(error: QuireError) -> bytes:
    """The same inside a stream that has begun."""
    return b"data: " + to_json({"error": _said(str(error), code_of(error), 502)}) + b"\n\n"


def _said(detail: str, code: str, status: int) -> dict[str, object]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"message": detail, "type": kind, "param": None, "code": code}
