"""What a caller may take: requests, bytes, time. Against clocks that tell what they are told, and a real server."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from quire.server import limits
from quire.server.limits import RATE, Allowance, Limits, Rates
from quire.server.problems import add_problems

MOST = 1_000


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# rates


@given(
    per_minute=st.integers(1, 500),
    waits=st.lists(st.floats(0, 30) | st.just(0.0), max_size=200),
)
def test_no_stretch_of_time_has_more_than_a_full_bucket_and_what_flows_in(per_minute: int, waits: list[float]):
    clock = Clock()
    rates = Rates(clock=clock)
    granted: list[float] = []
    for wait in waits:
        clock.now += wait
        if rates.take("key", per_minute).retry_after is None:
            granted.append(clock.now)
    for first, since in enumerate(granted):
        for last in range(first, len(granted)):
            flowed = (granted[last] - since) * per_minute / 60
            assert last - first + 1 <= per_minute + flowed + 1e-6


@given(per_minute=st.integers(1, 5_000), asked=st.integers(1, 60))
def test_who_waits_as_long_as_was_said_is_let_through(per_minute: int, asked: int):
    clock = Clock()
    rates = Rates(clock=clock)
    for _ in range(per_minute):
        assert rates.take("key", per_minute).retry_after is None
    for _ in range(asked):
        refused = rates.take("key", per_minute)
        assert refused.retry_after is not None
        assert refused.left == 0
    clock.now += refused.retry_after
    assert rates.take("key", per_minute).retry_after is None


def test_being_refused_costs_nothing_and_keys_are_counted_apart():
    clock = Clock()
    rates = Rates(clock=clock)
    assert [rates.take("a", 2).left for _ in range(4)] == [1, 0, 0, 0]
    assert rates.take("b", 2).left == 1
    clock.now = 60
    assert rates.take("a", 2).left == 1


def test_a_rate_that_is_lowered_holds_at_once():
    rates = Rates(clock=Clock())
    assert rates.take("key", 1_000).left == 999
    assert rates.take("key", 5) == Allowance(5, 4, 12, None)


def test_only_so_many_keys_are_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "COUNTED", 3)
    rates = Rates(clock=Clock())
    for key in "abcd":
        rates.take(key, 10)
    assert rates.take("d", 10).left == 8
    assert rates.take("a", 10).left == 9


# bodies, in the process


class Order(BaseModel):
    text: str


def make_app(*, body_seconds: float = 60.0) -> FastAPI:
    app = FastAPI()
    add_problems(app)

    @app.post("/json")
    async def parsed(order: Order) -> int:
        return len(order.text)

    @app.post("/stream")
    async def streamed(request: Request) -> int:
        return sum([len(piece) async for piece in request.stream()])

    @app.post("/deaf")
    async def deaf() -> str:
        return "never read it"

    @app.post("/careless")
    async def careless(request: Request) -> str:
        try:
            await request.body()
        except Exception:  # noqa: BLE001 (as careless as can be)
            return "went on all the same"
        return "read it"

    @app.post("/long")
    async def long(request: Request) -> StreamingResponse:
        asked = await request.body()

        async def pieces() -> AsyncIterator[bytes]:
            yield asked
            await asyncio.sleep(0.15)
            yield b" was asked"

        return StreamingResponse(pieces())

    @app.get("/rated")
    async def rated(request: Request, left: int) -> StreamingResponse:
        request.scope[RATE] = Allowance(10, left, 3, None)
        return StreamingResponse(iter([b"x"]))

    app.add_middleware(Limits, max_bytes=lambda: MOST, body_seconds=body_seconds)
    return app


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_app(body_seconds=0.2))
    async with httpx.AsyncClient(transport=transport, base_url="http://quire.example") as made:
        yield made


def order(size: int) -> bytes:
    """JSON of exactly so many bytes."""
    return b'{"text":"' + b"x" * (size - 11) + b'"}'


async def in_pieces(body: bytes, *, pause: float = 0.0, size: int = 100) -> AsyncIterator[bytes]:
    for place in range(0, len(body), size):
        await asyncio.sleep(pause)
        yield body[place : place + size]


def check_refused(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["connection"] == "close"
    assert {name: answer.json()[name] for name in ("status", "code", "type")} == {
        "status": status, "code": code, "type": "about:blank"
    }  # fmt: skip


@pytest.mark.parametrize("path", ["/json", "/stream"])
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
async def test_a_body_is_read_up_to_its_limit_and_not_a_byte_further(
    client: httpx.AsyncClient, path: str, declared: bool
):
    for size, status in ((MOST, 200), (MOST + 1, 413), (50 * MOST, 413)):
        content: Any = order(size) if declared else in_pieces(order(size))
        answer = await client.post(path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == status
        if status == 413:
            check_refused(answer, 413, "request_too_large")
            assert "1,000 bytes" in answer.json()["detail"]


async def test_the_refusal_stands_whatever_the_application_makes_of_it(client: httpx.AsyncClient):
    check_refused(await client.post("/careless", content=in_pieces(order(2 * MOST))), 413, "request_too_large")
    assert (await client.post("/careless", content=in_pieces(order(MOST)))).json() == "read it"


async def test_a_declared_length_is_refused_though_nobody_would_read_the_body(client: httpx.AsyncClient):
    check_refused(await client.post("/deaf", content=order(2 * MOST)), 413, "request_too_large")
    assert (await client.post("/deaf", content=in_pieces(order(2 * MOST)))).status_code == 200


@pytest.mark.parametrize("path", ["/json", "/stream", "/careless"])
async def test_a_body_that_dribbles_is_given_up(client: httpx.AsyncClient, path: str):
    check_refused(await client.post(path, content=in_pieces(order(MOST), pause=0.05)), 408, "request_too_slow")


async def call(app: Any, *messages: dict[str, Any], headers: list[tuple[bytes, bytes]] | None = None) -> list[Any]:
    """What an application sends that is told these messages, and then nothing for a while."""
    waiting, sent = iter(messages), []

    async def receive() -> dict[str, Any]:
        for message in waiting:
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
    "pieces",
    [[b"x" * (MOST + 1)], [b"x" * MOST, b"y"], [b"x"] * (MOST + 5), [b"", b"", b"x" * 10 * MOST]],
    ids=["at once", "in the second", "byte by byte", "after nothing"],
)
async def test_a_body_that_lies_about_its_length_is_counted(pieces: list[bytes]):
    read: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            read.append(len(message["body"]))
            more = message["more_body"]

    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    lie = [(b"content-length", b"5")]
    start, *_ = await call(Limits(app, max_bytes=lambda: MOST), *messages, headers=lie)
    assert start["status"] == 413
    assert sum(read) <= MOST


@pytest.mark.parametrize("length", [b"", b"-1", b"1e9", b"0x10", b"+5", b"\xb2", b"99999999999999999999999999"])
async def test_a_length_that_is_none_is_left_to_the_count(length: bytes):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    message = {"type": "http.request", "body": b"x", "more_body": False}
    start, *_ = await call(Limits(app, max_bytes=lambda: MOST), message, headers=[(b"content-length", length)])
    assert start["status"] == (413 if length.startswith(b"9") else 200)


async def test_once_the_answer_has_begun_a_body_that_is_too_large_is_a_client_that_is_gone():
    started = {"type": "http.response.start", "status": 200, "headers": []}
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(started)
        told.extend([(await receive())["type"], (await receive())["type"]])

    piece = {"type": "http.request", "body": b"x" * MOST, "more_body": True}
    sent = await call(Limits(app, max_bytes=lambda: MOST), piece, piece)
    assert told == ["http.request", "http.disconnect"]
    assert sent == [started]


async def test_waiting_for_a_client_to_leave_is_not_waiting_for_its_body():
    app = make_app(body_seconds=0.05)
    sent = await call(app, {"type": "http.request", "body": b"it", "more_body": False})
    assert b"".join(each.get("body", b"") for each in sent) == b"it was asked"


async def test_the_time_that_the_application_takes_is_not_the_clients():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(3):
            await receive()
            await asyncio.sleep(0.1)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    pieces = [{"type": "http.request", "body": b"x", "more_body": number < 2} for number in range(3)]
    start, *_ = await call(Limits(app, max_bytes=lambda: MOST, body_seconds=0.15), *pieces)
    assert start["status"] == 200


async def test_an_error_that_is_not_ours_goes_on():
    from quire.errors import RequestTooLarge

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RequestTooLarge("somebody else's")

    with pytest.raises(RequestTooLarge, match="somebody else's"):
        await call(Limits(app, max_bytes=lambda: MOST))


async def test_a_limit_that_is_changed_holds_from_the_next_request_on():
    most = [10]
    app = make_app()
    guarded = Limits(app, max_bytes=lambda: most[0])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://quire.example") as asking:
        assert (await asking.post("/stream", content=b"x" * 20)).status_code == 413
        most[0] = 20
        assert (await asking.post("/stream", content=b"x" * 20)).status_code == 200


async def test_streams_say_what_is_left_too(client: httpx.AsyncClient):
    answer = await client.get("/rated", params={"left": 4})
    assert (answer.headers["ratelimit"], answer.headers["ratelimit-policy"]) == ('"key";r=4;t=3', '"key";q=10;w=60')


# bodies, on a wire


@pytest.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    server = uvicorn.Server(uvicorn.Config(make_app(body_seconds=0.5), port=0, log_level="critical", lifespan="off"))
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 (it has no event)
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()
    server.should_exit = True
    await running


def on_the_wire(address: tuple[str, int], *pieces: bytes, pause: float = 0.0) -> bytes:
    """What a server says to these bytes until it closes the connection."""
    import time

    with closing(socket.create_connection(address, timeout=10)) as wire:
        for piece in pieces:
            try:
                wire.sendall(piece)
            except ConnectionError:
                break
            time.sleep(pause)
        return b"".join(_received(wire))


def _received(wire: socket.socket) -> Iterator[bytes]:
    try:
        while piece := wire.recv(65_536):
            yield piece
    except ConnectionError:
        return


HEAD = b"POST /stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def test_on_the_wire_a_client_hears_why_however_much_it_sends(address: tuple[str, int]):
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{address[1]}") as asking:
        for content in (b"x" * 20_000_000, in_pieces(b"x" * 20_000_000, size=100_000)):
            check_refused(await asking.post("/stream", content=content), 413, "request_too_large")
        assert (await asking.post("/stream", content=b"x" * MOST)).json() == MOST


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([HEAD + b"Content-Length: 999999999\r\n\r\n"], 413),
        ([HEAD + b"Content-Length: 999999999\r\nExpect: 100-continue\r\n\r\n"], 413),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"800\r\n" + b"x" * 2_048 + b"\r\n"], 413),
        ([HEAD + b"Content-Length: 500\r\n\r\n", b"x" * 10], 408),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nxxxxx\r\n"], 408),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[b"1\r\nx\r\n"] * 30], 408),
    ],
    ids=["promised", "asked before", "chunked", "half", "chunked and half", "drop by drop"],
)
async def test_on_the_wire_a_client_that_sends_too_much_or_too_slowly_is_cut_off(
    address: tuple[str, int], pieces: list[bytes], status: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.3)
    answer = await asyncio.to_thread(on_the_wire, address, *pieces, pause=0.05)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"connection: close" in head.lower()
    assert json.loads(body)["status"] == status
