"""Responses of the gateway: an ASGI writer, and cancellation when the client disconnects."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.wire.http_errors import ErrorResponse

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

    async def send_error(self, error: ErrorResponse, headers: Mapping[str, str]) -> None:
        await self.send_response(error.status, {**headers, **error.headers}, error.body)


def to_http_response(error: ErrorResponse) -> Response:
    return Response(error.body, status_code=error.status, headers=dict(error.headers))


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
