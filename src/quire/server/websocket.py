"""WebSockets of the Responses API: each message of a client is answered like a POST of `/v1/responses` with a stream.

The message becomes a request to the application itself. Authentication, rate limits, body limits, recording and errors
are therefore the same as over HTTP, and the upstream is called by HTTP. Only what belongs to the connection is here:
the handshake, how many a tenant may have, how long one may be idle, and the items of its previous response.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

from cachetools import LRUCache
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from quire.concurrency.worker_threads import run_sized, set_work_owner
from quire.errors import WorkTimeout
from quire.wire.codec import UnreadableBody
from quire.wire.codecs import RESPONSES
from quire.wire.http_errors import ErrorResponse
from quire.wire.responses.websocket import CreateMessage, EventMessages, build_error_message, parse_create

RESPONSES_PATH = "/v1/responses"
TENANT_HEADER = "x-quire-tenant"
"""Header of the application's answer to a handshake, which stays in the server."""
MAX_TENANT_CONNECTIONS = 200
"""Maximum open connections of a tenant to one process. At more, Codex falls back to HTTP at once."""
MAX_TENANT_HISTORY_BYTES = 32 * 1024 * 1024
"""Maximum size of the items of all previous responses of a tenant's connections. A client whose items were dropped
sends all of them again."""
MAX_WAITING_MESSAGES = 1
"""Maximum messages that wait for the end of the response before them."""
MAX_MESSAGE_FRAMES = 10_000
"""Maximum frames of one message. Each takes memory, also an empty one."""
IDLE_SECONDS = 300.0
"""Seconds without a message after which a connection is closed, and in which a message must arrive whole."""
SHUTDOWN_TYPE = "quire.shutdown"
"""Type of the message by which the protocol informs the application that the server stops."""

_HANDSHAKE_HEADERS = frozenset({b"connection", b"upgrade", b"openai-beta", b"content-length", b"content-type"})
"""Headers of the handshake that its requests do not have. Also those that begin with `sec-websocket-`."""


class LimitedWebSocketProtocol(WebSocketsSansIOProtocol):
    """Uvicorn's protocol with a limit on frames, and a shutdown that lets the application end its response."""

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_MESSAGE_FRAMES:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"more than {MAX_MESSAGE_FRAMES:,} frames")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def shutdown(self) -> None:
        if not self.handshake_complete or self.close_sent:
            super().shutdown()
            return
        self.stop_keepalive()
        self.queue.put_nowait(cast(Any, {"type": SHUTDOWN_TYPE}))


class _TenantConnections:
    def __init__(self) -> None:
        self.count = 0
        self.histories: LRUCache[tuple[object, str], bytes] = LRUCache(MAX_TENANT_HISTORY_BYTES, getsizeof=len)
        """Items of the previous response of each connection, by the connection and the response's ID."""


class WebSocketGateway:
    """ASGI application in front of the server's own. It answers WebSockets, and passes everything else on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._tenants: dict[str, _TenantConnections] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        await receive()
        refusal = _find_refusal(scope)
        tenant = None
        if refusal is None:
            tenant, refusal = await self._authenticate(scope, send)
        if refusal is not None:
            headers = [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
            await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": refusal.body})
        if tenant is None:
            return
        connections = self._tenants.setdefault(tenant, _TenantConnections())
        connections.count += 1
        try:
            set_work_owner(tenant)
            await send({"type": "websocket.accept"})
            await _Connection(self._app, scope, receive, send, connections).run()
        finally:
            connections.count -= 1
            if not connections.count:
                del self._tenants[tenant]

    async def _authenticate(self, scope: Scope, send: Send) -> tuple[str | None, ErrorResponse | None]:
        """Sends the handshake to the application, which answers a valid one with 101; passes any other answer on."""
        status, tenant = 0, None

        async def receive_nothing() -> Message:
            return {"type": "http.request", "body": b""}

        async def handle(message: Message) -> None:
            nonlocal status, tenant
            if message["type"] == "http.response.start":
                status = message["status"]
                tenant = unquote(Headers(raw=message["headers"]).get(TENANT_HEADER, "")) or None
            if status != HTTPStatus.SWITCHING_PROTOCOLS:
                await send({**message, "type": f"websocket.{message['type']}"})

        await self._app(_make_scope(scope, "GET", headers=scope["headers"]), receive_nothing, handle)
        connections = self._tenants.get(tenant) if tenant is not None else None
        if connections is not None and connections.count >= MAX_TENANT_CONNECTIONS:
            detail = f"The tenant has {MAX_TENANT_CONNECTIONS} open WebSockets, which is the maximum; use HTTP."
            return None, _build_error(HTTPStatus.UPGRADE_REQUIRED, detail, "upgrade_required", Upgrade="HTTP/1.1")
        return tenant, None


class _Connection:
    """An open connection, which answers one message at a time."""

    def __init__(
        self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, connections: _TenantConnections
    ) -> None:
        self._app, self._scope, self._receive, self._send = app, scope, receive, send
        self._histories = connections.histories
        self._is_gone = asyncio.Event()
        self._previous: tuple[object, str] | None = None
        """Key of the newest response in the histories."""

    async def run(self) -> None:
        """Answers messages until the client disconnects, is idle for too long, or the server stops."""
        waiting = deque[Message]()
        response: asyncio.Task[None] | None = None
        following = asyncio.ensure_future(self._receive())
        close: tuple[int, str] | None = None
        try:
            while close is None or response is not None:
                tasks = (following,) if response is None else (following, response)
                done, _ = await asyncio.wait(
                    tasks, timeout=IDLE_SECONDS if response is None else None, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    close = CloseCode.NORMAL_CLOSURE, f"no message for {IDLE_SECONDS:g} seconds"
                if response is not None and response.done():
                    response.result()
                    response = None
                if following in done:
                    message = following.result()
                    if message["type"] == "websocket.disconnect":
                        return
                    following = asyncio.ensure_future(self._receive())
                    if message["type"] == SHUTDOWN_TYPE:
                        close = CloseCode.SERVICE_RESTART, "the server is stopping"
                    else:
                        waiting.append(message)
                if response is None and close is None and waiting:
                    response = asyncio.ensure_future(self._respond(waiting.popleft()))
                elif len(waiting) > MAX_WAITING_MESSAGES:
                    close = CloseCode.POLICY_VIOLATION, "too many messages before the end of a response"
                    return
        finally:
            # For a running response, the client has disconnected.
            self._is_gone.set()
            following.cancel()
            if response is not None:
                await asyncio.wait((response,))
            if self._previous is not None:
                self._histories.pop(self._previous, None)
            if close is not None:
                await self._send_quietly({"type": "websocket.close", "code": int(close[0]), "reason": close[1]})

    async def _respond(self, message: Message) -> None:
        text: str | None = message.get("text")
        raw = text.encode() if text is not None else cast(bytes, message.get("bytes") or b"")
        held = self._histories.get(self._previous, b"") if self._previous is not None else b""
        try:
            create = await run_sized(len(raw) + len(held), parse_create, raw, self._find_items)
        except UnreadableBody as error:
            await self._send_error(_build_error(HTTPStatus.BAD_REQUEST, str(error), "invalid_request"))
            return
        except WorkTimeout as error:
            await self._send_error(RESPONSES.to_error_response(error))
            return
        del raw, message
        await self._forward(create)

    def _find_items(self, response_id: str) -> bytes | None:
        return self._histories.get((self, response_id))

    async def _forward(self, create: CreateMessage) -> None:
        """Sends the request to the application, and the events of its answer to the client."""
        body: bytes | None = create.body
        status, headers, error_body, events = 0, Headers(), b"", EventMessages()

        async def receive() -> Message:
            nonlocal body
            if body is not None:
                content, body = body, None
                return {"type": "http.request", "body": content}
            await self._is_gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status, headers, error_body
            if message["type"] == "http.response.start":
                status, headers = message["status"], Headers(raw=message["headers"])
                return
            chunk: bytes = message.get("body", b"")
            if not headers.get("content-type", "").startswith("text/event-stream"):
                error_body += chunk
                return
            for data in await run_sized(len(chunk), events.feed, chunk):
                if events.response_id is not None:
                    self._hold(events.response_id, create.items, events.output)
                await self._send_quietly({"type": "websocket.send", "text": data.decode(errors="replace")})

        own = [
            (name, value)
            for name, value in self._scope["headers"]
            if name not in _HANDSHAKE_HEADERS
            and not name.startswith(b"sec-websocket-")
            and name.decode("latin-1") not in create.headers
        ]
        own += [(name.encode("latin-1"), value.encode()) for name, value in create.headers.items()]
        own += [(b"content-type", b"application/json"), (b"content-length", str(len(create.body)).encode())]
        await self._app(_make_scope(self._scope, "POST", headers=own), receive, send)
        if error_body:
            await self._send_error(ErrorResponse(status, error_body, headers))

    def _hold(self, response_id: str, *items: bytes) -> None:
        """Holds the items of a response in place of the previous response's."""
        if self._previous is not None:
            self._histories.pop(self._previous, None)
        self._previous, joined = (self, response_id), b",".join(filter(None, items))
        if len(joined) <= MAX_TENANT_HISTORY_BYTES:
            self._histories[self._previous] = joined

    async def _send_error(self, error: ErrorResponse) -> None:
        status = error.status if error.status >= HTTPStatus.BAD_REQUEST else int(HTTPStatus.BAD_GATEWAY)
        text = build_error_message(status, error.body, error.headers).decode()
        await self._send_quietly({"type": "websocket.send", "text": text})

    async def _send_quietly(self, message: Message) -> None:
        """Sends a message. As over HTTP, one for a client that has disconnected is dropped."""
        try:
            await self._send(message)
        except OSError:
            self._is_gone.set()


def _find_refusal(scope: Scope) -> ErrorResponse | None:
    """Why a handshake is refused before the application sees it. Browsers open WebSockets to any site, without asking
    it first, and send the page's origin."""
    if not scope["path"].endswith(RESPONSES_PATH):
        detail = f"Only {RESPONSES_PATH} has a WebSocket: Quire does not speak real-time sessions."
        return _build_error(HTTPStatus.NOT_FOUND, detail, "not_found")
    headers = Headers(scope=scope)
    own = {f"{scheme}://{host.lower()}" for scheme in ("http", "https") for host in headers.getlist("host")}
    if any(origin.lower() not in own for origin in headers.getlist("origin")):
        detail = "WebSockets of pages of other sites are refused."
        return _build_error(HTTPStatus.FORBIDDEN, detail, "cross_origin_request")
    return None


def _make_scope(scope: Scope, method: str, *, headers: list[tuple[bytes, bytes]]) -> Scope:
    """The scope of a request of the connection. Nothing that the application adds to it is in the next one's."""
    request = {name: value for name, value in scope.items() if name not in ("subprotocols", "extensions")}
    scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], "http")
    state = dict(cast("Mapping[str, object]", scope.get("state") or {}))
    return {**request, "type": "http", "method": method, "scheme": scheme, "headers": headers, "state": state}


def _build_error(status: HTTPStatus, detail: str, code: str, **headers: str) -> ErrorResponse:
    return RESPONSES.build_error(int(status), detail, code=code, headers=headers)
