"""Responses of the gateway: an ASGI writer, cancellation when the client disconnects, and OpenAI error objects."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from quire.errors import ContextOverflow, ModelTimeout, QuireError
from quire.server.problems import error_code, error_detail, error_to_response, problem_response

ResponseHandler = Callable[["ResponseWriter"], Awaitable[None]]


class ResponseWriter:
    """Writes one HTTP response, whole or in chunks."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.is_started = True
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def send_response(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        await self.start(status, {**headers, "content-length": str(len(body))})
        await self.write(body, last=True)

    async def send_error(self, response: Response, headers: Mapping[str, str]) -> None:
        own = {name: value for name, value in response.headers.items() if name != "content-length"}
        await self.send_response(response.status_code, {**own, **headers}, bytes(response.body))


class CancellableResponse(Response):
    """Runs `handler` to write the response, and cancels it if the client disconnects."""

    def __init__(self, request: Request, handler: ResponseHandler) -> None:
        super().__init__()
        self._request, self._handler = request, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._handler(ResponseWriter(send)))
        disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((work, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait((work,))
            raise
        finally:
            disconnect.cancel()
        if not work.cancelled():
            work.result()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def to_error_response(error: QuireError) -> JSONResponse:
    """Converts an error to a response that OpenAI clients understand."""
    if isinstance(error, ContextOverflow):
        return build_openai_error(400, str(error), code="context_length_exceeded")
    if isinstance(error, ModelTimeout):
        return build_openai_error(504, str(error), code=error_code(error))
    response = error_to_response(error)
    headers = {"Retry-After": response.headers["retry-after"]} if "retry-after" in response.headers else {}
    return build_openai_error(response.status_code, error_detail(error), code=error_code(error), headers=headers)


def build_openai_error(status: int, detail: str, *, code: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Builds a problem document (RFC 9457) with OpenAI's `error` object inside."""
    return problem_response(
        status, detail=detail, code=code, headers=headers, error=_build_error_object(detail, code, status)
    )


def to_error_event(error: QuireError) -> bytes:
    """Converts an error to an SSE event, for a stream that has started."""
    return b"data: " + to_json({"error": _build_error_object(error_detail(error), error_code(error), 502)}) + b"\n\n"


def _build_error_object(detail: str, code: str, status: int) -> dict[str, object]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"message": detail, "type": kind, "param": None, "code": code}
