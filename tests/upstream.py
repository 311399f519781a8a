"""A provider on loopback that does as it is told, to the byte: calls tools, throttles, breaks off, hangs.

A test hands it one function a request, which writes the answer itself.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Asked:
    """One request as it came to the upstream, and the connection to answer it by."""

    path: str
    headers: dict[str, str]
    raw: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, body: object, status: int = 200, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        kind = "" if "content_type" in headers else "content-type: application/json\r\n"
        await self.send(f"HTTP/1.1 {status} -\r\n{kind}content-length: {len(content)}\r\n{more}\r\n".encode() + content)

    async def begin_events(self) -> None:
        await self.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    async def events(self, *pieces: bytes) -> None:
        for piece in pieces:
            await self.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0)

    async def end_events(self) -> None:
        await self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        self.writer.transport.abort()

    async def until_closed(self) -> bool:
        return await self.reader.read() == b""


Answer = Callable[[Asked], Awaitable[None]]


@dataclass
class Upstream:
    url: str = ""
    asked: list[Asked] = field(default_factory=list[Asked])
    script: list[Answer] = field(default_factory=list[Answer])

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [asked.body for asked in self.asked]

    def then(self, *answers: Answer) -> None:
        self.script.extend(answers)


@asynccontextmanager
async def upstream(*answers: Answer) -> AsyncIterator[Upstream]:
    """A server that gives these answers in turn, and repeats the last."""
    told = Upstream(script=list(answers))
    under_way: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        under_way.add(task)
        try:
            while (asked := await _read(reader, writer)) is not None:
                told.asked.append(asked)
                answer = told.script.pop(0) if len(told.script) > 1 else told.script[0]
                await answer(asked)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            under_way.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    told.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield told
    finally:
        server.close()
        for task in list(under_way):
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if line)
    headers = {name.lower(): value for name, value in headers.items()}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(first.split()[1], headers, raw, reader, writer)


def completion(message: dict[str, Any] | str, finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    said = {"content": message} if isinstance(message, str) else message
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": finish}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "up-1", "usage": usage,
        "choices": [choice], **more,
    }  # fmt: skip


def event(delta: dict[str, Any] | str, finish: str | None = None, *, index: int = 0, **more: Any) -> bytes:
    said = {"content": delta} if isinstance(delta, str) else delta
    choice = {"index": index, "delta": said, "finish_reason": finish}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "up-1", "choices": [choice]}
    return data(chunk | more)


def data(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


def says(message: dict[str, Any] | str, **more: Any) -> Answer:
    """A whole answer, or a stream of its words, as the client asks for."""

    async def answer(asked: Asked) -> None:
        if not asked.body.get("stream"):
            return await asked.answer(completion(message, **more))
        text = message if isinstance(message, str) else message.get("content") or ""
        words = text.split(" ")
        await asked.begin_events()
        await asked.events(event({"role": "assistant", "content": ""}))
        await asked.events(*(event(word if place == 0 else f" {word}") for place, word in enumerate(words)))
        await asked.events(event({}, "stop"), DONE)
        return await asked.end_events()

    return answer


def streams(*pieces: bytes) -> Answer:
    """These bytes, and a proper end."""

    async def answer(asked: Asked) -> None:
        await asked.begin_events()
        await asked.events(*pieces)
        await asked.end_events()

    return answer
