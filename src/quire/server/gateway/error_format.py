"""Errors under `/v1` in the words of the client's format, wherever in the server they arise.

The server's own errors are problem documents (RFC 9457). Clients of OpenAI's formats read an `error` object in them;
those of Anthropic's read its errors only.
"""

from http import HTTPStatus

from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.model.json_values import get_text, is_object
from quire.wire.codec import Codec
from quire.wire.codecs import CHAT, MESSAGES
from quire.wire.http_errors import PROBLEM_MEDIA_TYPE

GATEWAY_PREFIX = "/v1/"
MESSAGES_PREFIXES = ("/v1/messages", "/v1/v1/messages")


class ErrorFormatMiddleware:
    """ASGI middleware that rewrites problem documents of the gateway's routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(GATEWAY_PREFIX):
            return await self._app(scope, receive, send)
        rewriter = _ProblemRewriter(send, MESSAGES if scope["path"].startswith(MESSAGES_PREFIXES) else CHAT)
        return await self._app(scope, receive, rewriter.send)


class _ProblemRewriter:
    """Collects a problem document and sends the codec's error instead; passes everything else on."""

    def __init__(self, send: Send, codec: Codec) -> None:
        self._send, self._codec = send, codec
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
                await self._send_rewritten(self._start)
            return
        await self._send(message)

    async def _send_rewritten(self, start: Message) -> None:
        problem = from_json(self._body)
        body = self._body
        if is_object(problem) and "error" not in problem:
            detail = get_text(problem, "detail") or HTTPStatus(start["status"]).phrase
            error = self._codec.build_error(start["status"], detail, code=get_text(problem, "code") or "error")
            body = error.body
            own = Headers({**error.headers, "content-length": str(len(body))}).raw
            replaced = {name for name, _ in own}
            start = {**start, "headers": [*(pair for pair in start["headers"] if pair[0] not in replaced), *own]}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})
