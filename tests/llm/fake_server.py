"""A provider on loopback that does what the local model cannot: calls tools, throttles, breaks off, hangs.

A test hands it one function a request, which writes the answer itself, to the byte.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Answer = Callable[["Exchange"], Awaitable[None]]


@dataclass
class Exchange:
    """One request, and the connection that it came by."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send_json(self, status: int, body: object, **headers: str) -> None:
        data = json.dumps(body).encode()
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n{more}\r\n"
        await self.send(head.encode() + data)

    async def open_events(self) -> None:
        """Begin a stream in chunks, so that its end can be told from a broken connection."""
        await self.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    async def send_event(self, event: object) -> None:
        data = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end_events(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        self.writer.transport.abort()

    async def closed_by_client(self) -> bool:
        return await self.reader.read() == b""


@dataclass
class FakeServer:
    url: str = ""
    requests: list[Exchange] = field(default_factory=list)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]


@asynccontextmanager
async def fake_server(*answers: Answer) -> AsyncIterator[FakeServer]:
    """A server that gives these answers in turn."""
    fake, script = FakeServer(), iter(answers)
    under_way: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        under_way.add(task)
        try:
            while (exchange := await _read(reader, writer)) is not None:
                fake.requests.append(exchange)
                await next(script)(exchange)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            under_way.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield fake
    finally:
        server.close()
        for task in list(under_way):
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    data = await reader.readexactly(int(headers.get("content-length", "0")))
    return Exchange(first.split()[1], headers, json.loads(data or b"{}"), reader, writer)


def completion(message: dict[str, Any], finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "fake-1", "usage": usage,
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}], **more,
    }  # fmt: skip


def delta(message: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake-1",
        "choices": [{"index": 0, "delta": message, "finish_reason": finish}],
    }  # fmt: skip
