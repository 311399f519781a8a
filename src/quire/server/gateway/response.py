"""Responses of the gateway: an ASGI writer, cancellation when the client disconnects, errors in the client's format.

The server's own errors are problem documents (RFC 9457). Clients of OpenAI's formats read an `error` object in them,
and the clients of Anthropic and Google read only their own errors. So errors of these paths are rewritten, wherever
they arise.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlencode

from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.model.json_values import get_text, is_object
from quire.wire.codec import Codec
from quire.wire.codecs import CHAT, GEMINI, MESSAGES
from quire.wire.http_errors import PROBLEM_MEDIA_TYPE, ErrorResponse

GATEWAY_PREFIXES = ("/v1/", "/v1beta/", "/v1beta1/")
MESSAGES_PREFIXES = ("/v1/messages", "/v1/v1/messages")
GEMINI_PATH = re.compile(r"/v1beta1?/|/v1/(?:models|publishers)/.+:")

ResponseHandler = Callable[["ResponseWriter"], Awaitable[None]]
BuildError = Callable[[int, Mapping[str, Any]], ErrorResponse]
"""Makes an error of another format from the status and the problem document."""


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
        work, is_disconnected = asyncio.current_task(), False

        async def cancel_at_disconnect() -> None:
            nonlocal is_disconnected
            while (await receive())["type"] != "http.disconnect":
                pass
            is_disconnected = True
            if work is not None:
                work.cancel()

        disconnect = asyncio.ensure_future(cancel_at_disconnect())
        try:
            await self._handler(ResponseWriter(send))
        except asyncio.CancelledError:
            # The server may cancel the request too, as it does when it stops.
            if not is_disconnected or work is None or work.uncancel():
                raise
        finally:
            disconnect.cancel()


class ErrorFormatMiddleware:
    """ASGI middleware that rewrites problem documents of the gateway's routes, and of the prefixes in `formats`."""

    def __init__(self, app: ASGIApp, *, formats: Mapping[str, BuildError]) -> None:
        self._app, self._formats = app, formats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        for prefix, build_error in self._formats.items():
            if scope["type"] == "http" and path.startswith(prefix):
                return await self._app(scope, receive, _ProblemRewriter(send, build_error).send)
        if scope["type"] != "http" or not path.startswith(GATEWAY_PREFIXES):
            return await self._app(scope, receive, send)
        codec: Codec = MESSAGES if path.startswith(MESSAGES_PREFIXES) else CHAT
        if GEMINI_PATH.match(path):
            codec = GEMINI
            move_key_to_header(scope)
        return await self._app(scope, receive, _ProblemRewriter(send, partial(_build_error, codec)).send)


def move_key_to_header(scope: Scope) -> None:
    """Moves an API key from the query, where Google's clients may send it, to the header.

    No log and no upstream gets a URL with a key.
    """
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    keys = [value for name, value in query if name == "key"]
    if keys:
        scope["query_string"] = urlencode([pair for pair in query if pair[0] != "key"]).encode()
        scope["headers"] = [*scope["headers"], *((b"x-goog-api-key", key.encode()) for key in keys)]


def _build_error(codec: Codec, status: int, problem: Mapping[str, Any]) -> ErrorResponse:
    detail = get_text(problem, "detail") or HTTPStatus(status).phrase
    return codec.build_error(status, detail, code=get_text(problem, "code") or "error")


class _ProblemRewriter:
    """Collects a problem document and sends the error of another format instead; passes everything else on."""

    def __init__(self, send: Send, build_error: BuildError) -> None:
        self._send, self._build_error = send, build_error
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if Headers(raw=message["headers"]).get("content-type", "").startswith(PROBLEM_MEDIA_TYPE):
                self._start = message
                return
        elif self._start is not None and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                start, body, problem = self._start, self._body, from_json(self._body)
                if is_object(problem) and "error" not in problem:
                    error = self._build_error(start["status"], problem)
                    body = error.body
                    own = Headers({**error.headers, "content-length": str(len(body))}).raw
                    replaced = {name for name, _ in own}
                    others = [pair for pair in start["headers"] if pair[0] not in replaced]
                    start = {**start, "status": error.status, "headers": [*others, *own]}
                await self._send(start)
                await self._send({"type": "http.response.body", "body": body})
            return
        await self._send(message)
