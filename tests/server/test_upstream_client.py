"""The HTTP client for upstreams: requests as they are sent, failures by kind, proxies, and connections that close."""

import asyncio
import gzip
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fake_upstream import UpstreamRequest, run_fake_upstream
from quire.errors import ModelError, ModelRequestRejected, ModelTimeout, ModelUnavailable
from quire.server.upstream_client import MAX_UNCHUNKED_BODY_BYTES, UpstreamClient

MAX_BYTES = 1_000_000


@asynccontextmanager
async def open_client(**options: Any) -> AsyncIterator[UpstreamClient]:
    async with UpstreamClient(**{"timeout_seconds": 0.3, **options}) as client:
        yield client


async def catch_error(url: str, *, headers: dict[str, str] | None = None) -> ModelError:
    """Calls a URL that contains secrets, and returns the error."""
    async with open_client() as client:
        with pytest.raises(ModelError) as caught:
            async with client.send("POST", url, headers=headers or {}) as response:
                await response.read(max_bytes=MAX_BYTES)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return caught.value


async def hang(request: UpstreamRequest) -> None:
    await request.wait_until_closed()


async def reset(request: UpstreamRequest) -> None:
    linger = struct.pack("ii", 1, 0)
    request.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    request.abort_connection()


async def disconnect(request: UpstreamRequest) -> None:
    request.writer.close()


async def speak_ssh(request: UpstreamRequest) -> None:
    await request.send(b"SSH-2.0-OpenSSH_9.2\r\n" + b"x" * 1_000)
    request.writer.close()


async def cut_body(request: UpstreamRequest) -> None:
    await request.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc")
    request.writer.close()


@pytest.mark.parametrize(
    ("respond", "error_class", "message"),
    [
        (hang, ModelTimeout, "No answer from {host} in time: retry later, or raise `model_timeout`."),
        (reset, ModelUnavailable, "The connection to {host} was lost: Connection reset by peer; retry later."),
        (disconnect, ModelUnavailable, "The response of {host} is incomplete or not HTTP: Server disconnected; retry"),
        (speak_ssh, ModelUnavailable, "The response of {host} is incomplete or not HTTP: "),
        (cut_body, ModelUnavailable, "The response of {host} is incomplete or not HTTP: "),
    ],
)
async def test_each_fault_of_an_upstream_has_its_message(
    respond: Callable[[UpstreamRequest], Awaitable[None]], error_class: type[ModelError], message: str
):
    async with run_fake_upstream(respond) as upstream:
        host = upstream.url.removeprefix("http://").removesuffix("/v1")
        error = await catch_error(f"http://user:secret@{host}/v1?key=secret")
    assert type(error) is error_class
    assert str(error).startswith(message.format(host=host))


async def test_a_server_without_tls_is_named():
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n" + b"x" * 1_000)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        error = await catch_error(f"https://{host}/v1?key=secret")
    assert type(error) is ModelUnavailable
    assert str(error).startswith(f"Cannot open a TLS connection to {host}: ")


@pytest.mark.parametrize("url", ["nowhere/v1", "htp://nowhere/v1?key=secret", "http://[::1/v1"])
async def test_an_invalid_url_is_a_rejected_request(url: str):
    error = await catch_error(url)
    assert type(error) is ModelRequestRejected
    assert str(error).startswith("Cannot call ")
    assert str(error).endswith("; check `base_url`.")


async def test_an_invalid_header_is_not_quoted():
    async with run_fake_upstream(_respond_ok) as upstream:
        error = await catch_error(upstream.url, headers={"authorization": "Bearer secret\n"})
    assert type(error) is ModelRequestRejected
    assert "line breaks" in str(error)


async def test_a_request_has_the_callers_headers_and_body_and_no_others():
    async with run_fake_upstream(_respond_ok) as upstream, open_client() as client:
        sizes, query = (0, 10, MAX_UNCHUNKED_BODY_BYTES + 1), "a=%2F+%20b&key"
        for size in sizes:
            async with client.send("POST", f"{upstream.url}/x y?{query}", headers={"x-id": "7"}, content=b"x" * size):
                pass
    for size, request in zip(sizes, upstream.requests, strict=True):
        assert request.path == f"/v1/x%20y?{query}"
        assert (request.raw, request.headers.pop("content-length")) == (b"x" * size, str(size))
        assert request.headers.keys() == {"host", "x-id"}


async def test_credentials_in_a_url_become_a_header():
    async with run_fake_upstream(_respond_ok) as upstream, open_client() as client:
        url = upstream.url.replace("http://", "http://user:word@")
        await client.get(url, headers={"authorization": "Bearer x"})
    assert upstream.requests[0].headers["authorization"] == "Basic dXNlcjp3b3Jk"


async def test_redirects_are_not_followed_and_cookies_not_stored():
    async def redirect(request: UpstreamRequest) -> None:
        await request.respond({}, 307, Location="/elsewhere", Set_Cookie="a=b")

    async with run_fake_upstream(redirect) as upstream, open_client() as client:
        for _ in range(2):
            with pytest.raises(ModelUnavailable, match="redirects to another address"):
                await client.get(upstream.url, headers={})
    assert [("cookie" in each.headers, each.path) for each in upstream.requests] == [(False, "/v1")] * 2


async def test_a_compressed_response_is_decompressed():
    async def respond(request: UpstreamRequest) -> None:
        await request.respond(gzip.compress(b"Yes."), Content_Encoding="gzip")

    async with run_fake_upstream(respond) as upstream, open_client() as client:
        assert await client.get(upstream.url, headers={}) == (200, b"Yes.")


async def test_the_proxy_of_the_environment_is_used_except_where_it_says_not(monkeypatch: pytest.MonkeyPatch):
    async with run_fake_upstream(_respond_ok) as upstream, run_fake_upstream(_respond_ok) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        async with open_client() as client:
            await client.get("http://api.example.com/v1", headers={})
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        async with open_client() as client:
            await client.get(upstream.url, headers={})
    assert [each.path for each in proxy.requests] == ["http://api.example.com/v1"]
    assert [each.path for each in upstream.requests] == ["/v1"]


@pytest.mark.parametrize("reads_all", [False, True])
async def test_a_connection_is_used_again_only_after_its_response_was_read(reads_all: bool):
    writers: list[object] = []

    async def respond(request: UpstreamRequest) -> None:
        writers.append(request.writer)
        await request.respond(b"x" * MAX_BYTES)

    async with run_fake_upstream(respond) as upstream, open_client() as client:
        for _ in range(2):
            async with client.send("GET", upstream.url, headers={}) as response:
                await response.read(max_bytes=MAX_BYTES if reads_all else 10)
    assert (writers[0] is writers[1]) == reads_all


async def _respond_ok(request: UpstreamRequest) -> None:
    await request.respond(b"{}")
