"""A fake provider on loopback, controlled to the byte: it can call tools, rate-limit, abort and hang.

A test passes one responder function per request, which writes the response itself.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class UpstreamRequest:
    """One received request, and the connection to respond on."""

    path: str
    headers: dict[str, str]
    raw: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw or b"{}")

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def respond(self, body: object, status: int = 200, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        kind = "" if "content_type" in headers else "content-type: application/json\r\n"
        await self.send(f"HTTP/1.1 {status} -\r\n{kind}content-length: {len(content)}\r\n{more}\r\n".encode() + content)

    async def start_sse(self) -> None:
        await self.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    async def send_sse(self, *pieces: bytes) -> None:
        for piece in pieces:
            await self.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0)

    async def end_sse(self) -> None:
        await self.send(b"0\r\n\r\n")

    def abort_connection(self) -> None:
        self.writer.transport.abort()

    async def wait_until_closed(self) -> bool:
        return await self.reader.read() == b""


Responder = Callable[[UpstreamRequest], Awaitable[None]]


@dataclass
class FakeUpstream:
    url: str = ""
    requests: list[UpstreamRequest] = field(default_factory=list[UpstreamRequest])
    responders: list[Responder] = field(default_factory=list[Responder])

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    def enqueue(self, *responders: Responder) -> None:
        self.responders.extend(responders)


@asynccontextmanager
async def run_fake_upstream(*responders: Responder) -> AsyncIterator[FakeUpstream]:
    """Runs a server that uses these responders in turn and repeats the last."""
    upstream = FakeUpstream(responders=list(responders))
    running: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            while (request := await _read_request(reader, writer)) is not None:
                upstream.requests.append(request)
                respond = upstream.responders.pop(0) if len(upstream.responders) > 1 else upstream.responders[0]
                await respond(request)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            running.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield upstream
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.sleep(0)


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> UpstreamRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if line)
    headers = {name.lower(): value for name, value in headers.items()}
    try:
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
    except asyncio.IncompleteReadError:
        return None
    return UpstreamRequest(first.split()[1], headers, raw, reader, writer)


def make_completion(message: dict[str, Any] | str, finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    fields = {"content": message} if isinstance(message, str) else message
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    choice = {"index": 0, "message": {"role": "assistant", **fields}, "finish_reason": finish}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "up-1", "usage": usage,
        "choices": [choice], **more,
    }  # fmt: skip


def make_chunk_event(delta: dict[str, Any] | str, finish: str | None = None, *, index: int = 0, **more: Any) -> bytes:
    fields = {"content": delta} if isinstance(delta, str) else delta
    choice = {"index": index, "delta": fields, "finish_reason": finish}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "up-1", "choices": [choice]}
    return make_sse_event(chunk | more)


def make_sse_event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


SSE_DONE = b"data: [DONE]\n\n"


def respond_with_text(message: dict[str, Any] | str, **more: Any) -> Responder:
    """Responds with a completion, or with a stream of its words if the request says so."""

    async def respond(request: UpstreamRequest) -> None:
        if not request.body.get("stream"):
            return await request.respond(make_completion(message, **more))
        text = message if isinstance(message, str) else message.get("content") or ""
        words = text.split(" ")
        await request.start_sse()
        await request.send_sse(make_chunk_event({"role": "assistant", "content": ""}))
        await request.send_sse(
            *(make_chunk_event(word if index == 0 else f" {word}") for index, word in enumerate(words))
        )
        await request.send_sse(make_chunk_event({}, "stop"), SSE_DONE)
        return await request.end_sse()

    return respond


def respond_with_stream(*pieces: bytes) -> Responder:
    """Streams these bytes and ends the response properly."""

    async def respond(request: UpstreamRequest) -> None:
        await request.start_sse()
        await request.send_sse(*pieces)
        await request.end_sse()

    return respond


def reply_in_wire_format(text: str) -> Responder:
    """Streams a text in the wire format of the request's path: Anthropic messages, or OpenAI chat completions."""

    async def respond(request: UpstreamRequest) -> None:
        is_anthropic = request.path.partition("?")[0].endswith("/messages")
        await request.start_sse()
        await request.send_sse(*(_make_anthropic_events(text) if is_anthropic else _make_openai_events(text)))
        await request.end_sse()

    return respond


def _make_openai_events(text: str) -> list[bytes]:
    return [make_chunk_event(text), make_chunk_event({}, finish="stop"), SSE_DONE]


def _make_anthropic_events(text: str) -> list[bytes]:
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "up-1", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 1},
    }  # fmt: skip
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 3},
        },
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\n".encode() + make_sse_event(event) for event in events]
