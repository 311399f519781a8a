"""Transport errors: every kind has one message, which names the host and what to do, and contains no secret."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from quire.agent.mcp.connection import describe_mcp_error
from quire.errors import ModelError, ModelRequestRejected, ModelTimeout, ModelUnavailable, StoreUnavailable
from quire.llm import Prompt, get_model
from quire.llm.embedding_endpoint import EndpointEmbedder
from quire.llm.error_mapping import map_transport_error
from quire.model import Message

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def no_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails every DNS lookup as a resolver without an answer does."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)


@asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[str]:
    """Runs a server for one kind of fault; yields its address."""
    running: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.sleep(0)


async def close(writer: asyncio.StreamWriter) -> None:
    """Closes the connection with FIN, after all bytes are sent."""
    writer.close()
    await writer.wait_closed()


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    # With a linger time of zero, closing sends RST instead of FIN.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def disconnect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    await close(writer)


async def speak_ssh(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n" + b"x" * 1_000)
    await writer.drain()
    await close(writer)


async def cut_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc")
    await writer.drain()
    await close(writer)


async def catch_error(url: str, **headers: str) -> ModelError:
    """Calls a URL that contains secrets, and returns the mapped error."""
    async with httpx2.AsyncClient(timeout=0.3) as client:
        try:
            await client.get(url, headers=headers)
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            error = map_transport_error(exc)
            assert error is not None
            assert "secret" not in str(error)
            assert len(str(error)) < 500
            return error
    raise AssertionError("No error was raised.")


@pytest.mark.parametrize(
    ("handler", "scheme", "error_class", "message"),
    [
        (hang, "http", ModelTimeout, "No answer from {host} in time: retry later, or raise the timeout."),
        (reset, "http", ModelUnavailable, "The connection to {host} was lost: Connection reset by peer; retry later."),
        (disconnect, "http", ModelUnavailable, "The response of {host} is incomplete or not HTTP: Server disconnected"),
        (speak_ssh, "http", ModelUnavailable, "The response of {host} is incomplete or not HTTP: "),
        (cut_body, "http", ModelUnavailable, "The response of {host} is incomplete or not HTTP: peer closed"),
        (speak_ssh, "https", ModelUnavailable, "Cannot open a TLS connection to {host}: wrong version number; check"),
    ],
)
async def test_each_fault_of_a_server_has_its_message(
    handler: Handler, scheme: str, error_class: type[ModelError], message: str
):
    async with serve(handler) as host:
        error = await catch_error(f"{scheme}://user:secret@{host}/v1?key=secret")
    assert type(error) is error_class
    assert str(error).startswith(message.format(host=host))


async def test_a_refused_connection_names_the_address():
    error = await catch_error("http://127.0.0.1:9/v1?key=secret")
    assert type(error) is ModelUnavailable
    assert str(error) == (
        "Cannot connect to 127.0.0.1:9: connection refused; check `base_url` and that the server is running."
    )


@pytest.mark.parametrize("url", ["nowhere/v1", "htp://nowhere/v1?key=secret", "http://[::1/v1"])
async def test_an_invalid_url_is_a_rejected_request(url: str):
    error = await catch_error(url)
    assert type(error) is ModelRequestRejected
    assert str(error).startswith("Cannot call ")
    assert str(error).endswith("; check `base_url`.")


async def test_an_invalid_header_is_not_quoted():
    async with serve(disconnect) as host:
        error = await catch_error(f"http://{host}/v1", authorization="Bearer secret\n")
    assert type(error) is ModelRequestRejected
    assert "line breaks" in str(error)


@pytest.mark.usefixtures("no_dns")
class TestUnknownHost:
    """A host that DNS does not know gives the same message wherever a call is made."""

    MESSAGE = "Cannot find api.openai.com: check {} and the network"

    async def test_by_a_call_of_the_http_client(self):
        error = await catch_error("https://user:secret@api.openai.com/v1?key=secret")
        assert type(error) is ModelUnavailable
        assert str(error) == f"{self.MESSAGE.format('`base_url`')}."

    @pytest.mark.parametrize("name", ["gpt-4o", "anthropic:claude-x"])
    async def test_by_a_model(self, name: str):
        model = get_model(name, base_url="https://api.openai.com/v1", api_key="secret")
        prompt = Prompt(system=None, messages=(Message.user("Hello"),))
        with pytest.raises(ModelUnavailable) as caught:
            await model.complete(prompt)
        assert str(caught.value) == f"{self.MESSAGE.format('`base_url`')}."
        with pytest.raises(ModelUnavailable) as caught:
            await anext(model.stream(prompt))
        assert str(caught.value) == f"{self.MESSAGE.format('`base_url`')}."

    async def test_by_an_embedder(self):
        embedder = EndpointEmbedder("https://api.openai.com/v1", "m", "secret", dimensions=3, attempts=1)
        with pytest.raises(ModelUnavailable) as caught:
            await embedder.embed_async(["a"])
        assert str(caught.value) == f"{self.MESSAGE.format('the URL for embeddings')}."

    async def test_by_an_mcp_server(self):
        async with httpx2.AsyncClient() as client:
            with pytest.raises(httpx2.ConnectError) as caught:
                await client.get("https://api.openai.com/mcp?key=secret")
        described = describe_mcp_error(ExceptionGroup("task group", [caught.value]))
        assert described == f"cannot find {self.MESSAGE.format('its URL').removeprefix('Cannot find ')}"


@pytest.mark.parametrize(
    ("exc", "message"),
    [
        (httpx2.ConnectTimeout("slow"), "Cannot connect to m in time: check `base_url` and the network."),
        (httpx2.ReadTimeout("slow"), "No answer from m in time: retry later, or raise the timeout."),
        (TimeoutError(), "No answer from m in time: retry later, or raise the timeout."),
        (ConnectionResetError(104, "Connection reset by peer"), "The connection to m was lost: Connection reset"),
        (httpx2.TooManyRedirects("Exceeded 20 redirects."), "The call of m failed: Exceeded 20 redirects; retry"),
        (OSError(24, "Too many open files"), "The call of m failed: Too many open files; retry later."),
    ],
)  # fmt: skip
def test_without_a_host_the_target_is_named(exc: Exception, message: str):
    assert str(map_transport_error(exc, target="m")).startswith(message)


def test_other_errors_are_not_mapped():
    wrapped = StoreUnavailable("The database is gone.")
    wrapped.__cause__ = ConnectionResetError("reset")
    for exc in (ValueError("a mistake of ours"), wrapped):
        assert map_transport_error(exc) is None
