"""Rate limit, body size and body timeout, with fake clocks and a real server."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from quire.server import limits, rate_limits
from quire.server.limits import LimitsMiddleware
from quire.server.problems import add_exception_handlers
from quire.server.rate_limits import RATE_LIMIT_SCOPE_KEY, RateLimiter, RateLimitStatus

MAX_BYTES = 1_000


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# rate limit


@given(
    per_minute=st.integers(1, 500),
    waits=st.lists(st.floats(0, 30) | st.just(0.0), max_size=200),
)
def test_no_stretch_of_time_has_more_than_a_full_bucket_and_what_flows_in(per_minute: int, waits: list[float]):
    clock = Clock()
    limiter = RateLimiter(clock=clock)
    allowed: list[float] = []
    for wait in waits:
        clock.now += wait
        if limiter.acquire("key", per_minute).retry_after is None:
            allowed.append(clock.now)
    for first, since in enumerate(allowed):
        for last in range(first, len(allowed)):
            refilled = (allowed[last] - since) * per_minute / 60
            assert last - first + 1 <= per_minute + refilled + 1e-6


@given(per_minute=st.integers(1, 5_000), refused_count=st.integers(1, 60))
def test_who_waits_as_long_as_was_said_is_let_through(per_minute: int, refused_count: int):
    clock = Clock()
    limiter = RateLimiter(clock=clock)
    for _ in range(per_minute):
        assert limiter.acquire("key", per_minute).retry_after is None
    for _ in range(refused_count):
        refused = limiter.acquire("key", per_minute)
        assert refused.retry_after is not None
        assert refused.remaining == 0
    clock.now += refused.retry_after
    assert limiter.acquire("key", per_minute).retry_after is None


def test_being_refused_costs_nothing_and_keys_are_counted_apart():
    clock = Clock()
    limiter = RateLimiter(clock=clock)
    assert [limiter.acquire("a", 2).remaining for _ in range(4)] == [1, 0, 0, 0]
    assert limiter.acquire("b", 2).remaining == 1
    clock.now = 60
    assert limiter.acquire("a", 2).remaining == 1


def test_a_rate_that_is_lowered_holds_at_once():
    limiter = RateLimiter(clock=Clock())
    assert limiter.acquire("key", 1_000).remaining == 999
    assert limiter.acquire("key", 5) == RateLimitStatus(5, 4, 12, None)


def test_the_number_of_tracked_keys_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rate_limits, "MAX_TRACKED_KEYS", 3)
    limiter = RateLimiter(clock=Clock())
    for key in "abcd":
        limiter.acquire(key, 10)
    assert limiter.acquire("d", 10).remaining == 8
    assert limiter.acquire("a", 10).remaining == 9


# bodies, in process


class OrderBody(BaseModel):
    text: str


def make_app(*, body_timeout: float = 60.0) -> FastAPI:
    app = FastAPI()
    add_exception_handlers(app)

    @app.post("/json")
    async def parsed(order: OrderBody) -> int:
        return len(order.text)

    @app.post("/stream")
    async def streamed(request: Request) -> int:
        return sum([len(chunk) async for chunk in request.stream()])

    @app.post("/deaf")
    async def deaf() -> str:
        return "never read it"

    @app.post("/careless")
    async def careless(request: Request) -> str:
        try:
            await request.body()
        except Exception:  # noqa: BLE001 (careless on purpose)
            return "ignored the error"
        return "read it"

    @app.post("/long")
    async def long(request: Request) -> StreamingResponse:
        body = await request.body()

        async def chunks() -> AsyncIterator[bytes]:
            yield body
            await asyncio.sleep(0.15)
            yield b" was received"

        return StreamingResponse(chunks())

    @app.get("/rated")
    async def rated(request: Request, left: int) -> StreamingResponse:
        request.scope[RATE_LIMIT_SCOPE_KEY] = RateLimitStatus(10, left, 3, None)
        return StreamingResponse(iter([b"x"]))

    app.add_middleware(LimitsMiddleware, max_bytes=lambda: MAX_BYTES, body_timeout=body_timeout)
    return app


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(make_app(body_timeout=0.2))
    async with httpx2.AsyncClient(transport=transport, base_url="http://quire.example") as client:
        yield client


def order_json(size: int) -> bytes:
    """JSON of exactly `size` bytes."""
    return b'{"text":"' + b"x" * (size - 11) + b'"}'


async def send_in_chunks(body: bytes, *, delay: float = 0.0, size: int = 100) -> AsyncIterator[bytes]:
    for place in range(0, len(body), size):
        await asyncio.sleep(delay)
        yield body[place : place + size]


def check_refused(answer: httpx2.Response, status: int, code: str) -> None:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["connection"] == "close"
    assert {name: answer.json()[name] for name in ("status", "code", "type")} == {
        "status": status, "code": code, "type": "about:blank"
    }  # fmt: skip


@pytest.mark.parametrize("path", ["/json", "/stream"])
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
async def test_a_body_is_read_up_to_its_limit_and_not_a_byte_further(
    client: httpx2.AsyncClient, path: str, declared: bool
):
    for size, status in ((MAX_BYTES, 200), (MAX_BYTES + 1, 413), (50 * MAX_BYTES, 413)):
        content: Any = order_json(size) if declared else send_in_chunks(order_json(size))
        answer = await client.post(path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == status
        if status == 413:
            check_refused(answer, 413, "request_too_large")
            assert "1,000 bytes" in answer.json()["detail"]


async def test_the_refusal_replaces_the_response_of_the_application(client: httpx2.AsyncClient):
    check_refused(
        await client.post("/careless", content=send_in_chunks(order_json(2 * MAX_BYTES))), 413, "request_too_large"
    )
    assert (await client.post("/careless", content=send_in_chunks(order_json(MAX_BYTES)))).json() == "read it"


async def test_a_too_large_declared_length_is_refused_even_if_the_body_is_not_read(client: httpx2.AsyncClient):
    check_refused(await client.post("/deaf", content=order_json(2 * MAX_BYTES)), 413, "request_too_large")
    assert (await client.post("/deaf", content=send_in_chunks(order_json(2 * MAX_BYTES)))).status_code == 200


@pytest.mark.parametrize("path", ["/json", "/stream", "/careless"])
async def test_a_body_that_dribbles_is_given_up(client: httpx2.AsyncClient, path: str):
    check_refused(
        await client.post(path, content=send_in_chunks(order_json(MAX_BYTES), delay=0.05)), 408, "request_timeout"
    )


async def call_app(app: Any, *messages: dict[str, Any], headers: list[tuple[bytes, bytes]] | None = None) -> list[Any]:
    """Returns what the application sends when it receives these messages and then waits for a while."""
    pending, sent = iter(messages), []

    async def receive() -> dict[str, Any]:
        for message in pending:
            return message
        await asyncio.sleep(0.3)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/long", "raw_path": b"/long", "query_string": b"",
        "headers": headers or [], "http_version": "1.1", "scheme": "http", "server": None, "client": None,
    }  # fmt: skip
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize(
    "chunks",
    [[b"x" * (MAX_BYTES + 1)], [b"x" * MAX_BYTES, b"y"], [b"x"] * (MAX_BYTES + 5), [b"", b"", b"x" * 10 * MAX_BYTES]],
    ids=["at once", "in the second", "byte by byte", "after nothing"],
)
async def test_a_body_that_lies_about_its_length_is_counted(chunks: list[bytes]):
    read: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            read.append(len(message["body"]))
            more = message["more_body"]

    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    lie = [(b"content-length", b"5")]
    start, *_ = await call_app(LimitsMiddleware(app, max_bytes=lambda: MAX_BYTES), *messages, headers=lie)
    assert start["status"] == 413
    assert sum(read) <= MAX_BYTES


@pytest.mark.parametrize("length", [b"", b"-1", b"1e9", b"0x10", b"+5", b"\xb2", b"99999999999999999999999999"])
async def test_a_length_that_is_none_is_left_to_the_count(length: bytes):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    message = {"type": "http.request", "body": b"x", "more_body": False}
    start, *_ = await call_app(
        LimitsMiddleware(app, max_bytes=lambda: MAX_BYTES), message, headers=[(b"content-length", length)]
    )
    assert start["status"] == (413 if length.startswith(b"9") else 200)


async def test_once_the_answer_has_begun_a_body_that_is_too_large_is_a_client_that_is_gone():
    started = {"type": "http.response.start", "status": 200, "headers": []}
    received: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(started)
        received.extend([(await receive())["type"], (await receive())["type"]])

    chunk = {"type": "http.request", "body": b"x" * MAX_BYTES, "more_body": True}
    sent = await call_app(LimitsMiddleware(app, max_bytes=lambda: MAX_BYTES), chunk, chunk)
    assert received == ["http.request", "http.disconnect"]
    assert sent == [started]


async def test_waiting_for_a_disconnect_is_not_waiting_for_the_body():
    app = make_app(body_timeout=0.05)
    sent = await call_app(app, {"type": "http.request", "body": b"it", "more_body": False})
    assert b"".join(each.get("body", b"") for each in sent) == b"it was received"


async def test_the_time_that_the_application_takes_is_not_the_clients():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(3):
            await receive()
            await asyncio.sleep(0.1)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    chunks = [{"type": "http.request", "body": b"x", "more_body": number < 2} for number in range(3)]
    start, *_ = await call_app(LimitsMiddleware(app, max_bytes=lambda: MAX_BYTES, body_timeout=0.15), *chunks)
    assert start["status"] == 200


async def test_an_error_of_the_application_is_passed_on():
    from quire.errors import RequestTooLarge

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RequestTooLarge("of the application")

    with pytest.raises(RequestTooLarge, match="of the application"):
        await call_app(LimitsMiddleware(app, max_bytes=lambda: MAX_BYTES))


async def test_a_limit_that_is_changed_holds_from_the_next_request_on():
    max_bytes = [10]
    app = make_app()
    guarded = LimitsMiddleware(app, max_bytes=lambda: max_bytes[0])
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(guarded), base_url="http://quire.example") as client:
        assert (await client.post("/stream", content=b"x" * 20)).status_code == 413
        max_bytes[0] = 20
        assert (await client.post("/stream", content=b"x" * 20)).status_code == 200


async def test_streams_say_what_is_left_too(client: httpx2.AsyncClient):
    answer = await client.get("/rated", params={"left": 4})
    assert (answer.headers["ratelimit"], answer.headers["ratelimit-policy"]) == ('"key";r=4;t=3', '"key";q=10;w=60')


# bodies, over a socket


@pytest.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    server = uvicorn.Server(uvicorn.Config(make_app(body_timeout=0.5), port=0, log_level="critical", lifespan="off"))
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 (it has no event)
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()
    server.should_exit = True
    await running


def send_raw(address: tuple[str, int], *chunks: bytes, delay: float = 0.0) -> bytes:
    """Returns the server's response to these bytes, until it closes the connection."""
    import time

    with closing(socket.create_connection(address, timeout=10)) as connection:
        for chunk in chunks:
            try:
                connection.sendall(chunk)
            except ConnectionError:
                break
            time.sleep(delay)
        return b"".join(_read_all(connection))


def _read_all(connection: socket.socket) -> Iterator[bytes]:
    try:
        while chunk := connection.recv(65_536):
            yield chunk
    except ConnectionError:
        return


REQUEST_HEAD = b"POST /stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def test_on_the_wire_a_client_hears_why_however_much_it_sends(address: tuple[str, int]):
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{address[1]}") as client:
        for content in (b"x" * 20_000_000, send_in_chunks(b"x" * 20_000_000, size=100_000)):
            check_refused(await client.post("/stream", content=content), 413, "request_too_large")
        assert (await client.post("/stream", content=b"x" * MAX_BYTES)).json() == MAX_BYTES


async def test_on_the_wire_a_slow_client_hears_why_too(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "DRAIN_IDLE_SECONDS", 0.5)

    async def send_slowly() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100_000
            await asyncio.sleep(0.05)

    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{address[1]}") as client:
        check_refused(await client.post("/stream", content=send_slowly()), 413, "request_too_large")


@pytest.mark.parametrize(
    ("chunks", "status"),
    [
        ([REQUEST_HEAD + b"Content-Length: 999999999\r\n\r\n"], 413),
        ([REQUEST_HEAD + b"Content-Length: 999999999\r\nExpect: 100-continue\r\n\r\n"], 413),
        ([REQUEST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"800\r\n" + b"x" * 2_048 + b"\r\n"], 413),
        ([REQUEST_HEAD + b"Content-Length: 500\r\n\r\n", b"x" * 10], 408),
        ([REQUEST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nxxxxx\r\n"], 408),
        ([REQUEST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[b"1\r\nx\r\n"] * 30], 408),
    ],
    ids=["promised", "expect continue", "chunked", "half", "chunked and half", "drop by drop"],
)
async def test_on_the_wire_a_client_that_sends_too_much_or_too_slowly_is_cut_off(
    address: tuple[str, int], chunks: list[bytes], status: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "DRAIN_SECONDS", 0.3)
    answer = await asyncio.to_thread(send_raw, address, *chunks, delay=0.05)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"connection: close" in head.lower()
    assert json.loads(body)["status"] == status
