"""The servers that `gateway.py` measures, each in its own process: prints its port, ends with its standard input.

`upstream` answers at once, as a stream if the body says so. `bare` is a FastAPI proxy without a store. `gateway` is
Quire.
"""

import asyncio
import cProfile
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

REPLY_BODY = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "The mill runs. " * 12}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 300, "completion_tokens": 50, "total_tokens": 350},
    }
).encode()
MESSAGE_BODY = json.dumps(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "gpt-4o",
        "content": [{"type": "text", "text": "The mill runs. " * 12}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 300, "output_tokens": 50},
    }
).encode()
RESPONSE_BODY = json.dumps(
    {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": "gpt-4o",
        "output": [
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "The mill runs. " * 12, "annotations": []}],
            }
        ],
        "usage": {"input_tokens": 300, "output_tokens": 50, "total_tokens": 350},
    }
).encode()
GEMINI_BODY = json.dumps(
    {
        "candidates": [
            {
                "content": {"role": "model", "parts": [{"text": "The mill runs. " * 12}]},
                "index": 0,
                "finishReason": "STOP",
            }
        ],
        "modelVersion": "gpt-4o",
        "usageMetadata": {"promptTokenCount": 300, "candidatesTokenCount": 50, "totalTokenCount": 350},
    }
).encode()
BODIES = {
    b"/chat/completions": REPLY_BODY,
    b"/messages": MESSAGE_BODY,
    b"/responses": RESPONSE_BODY,
    b":generatecontent": GEMINI_BODY,
}
HTTP_RESPONSES = {
    path: b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    for path, body in BODIES.items()
}

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"

STREAM_CHUNKS = 50
"""Chunks of a streamed reply, in addition to the first and the last."""


def _build_stream() -> tuple[bytes, ...]:
    """Writes of a streamed chat completion: the head, then one HTTP chunk for each event."""

    def frame(event: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(event), event)

    def encode(delta: dict[str, str], finish: str | None = None, **more: object) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o", **more}
        return frame(b"data: %b\n\n" % json.dumps({**chunk, "choices": [choice]}).encode())

    usage = {"prompt_tokens": 300, "completion_tokens": 50, "total_tokens": 350}
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        encode({"role": "assistant", "content": ""}),
        *(encode({"content": f"word{number} "}) for number in range(STREAM_CHUNKS)),
        encode({}, "stop", usage=usage),
        frame(b"data: [DONE]\n\n") + b"0\r\n\r\n",
    )


STREAM_WRITES = _build_stream()

KEEP_ALIVE_SECONDS = 75
"""Idle timeout of the bare servers: the same as that of `quire serve`."""


class UpstreamProtocol(asyncio.Protocol):
    """Minimal HTTP server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body, self._buffer = self._buffer[end + 4 : end + 4 + length], self._buffer[end + 4 + length :]
            if body.endswith(b'"stream": true}'):
                self._write_stream(0)
                continue
            path = head.split(b" ", 2)[1]
            found = (each for end, each in HTTP_RESPONSES.items() if path.endswith(end))
            self._transport.write(next(found, NOT_FOUND))

    def _write_stream(self, number: int) -> None:
        """Writes one chunk in each round of the event loop, so that the reader sees most of them one by one."""
        if number < len(STREAM_WRITES):
            self._transport.write(STREAM_WRITES[number])
            asyncio.get_running_loop().call_soon(self._write_stream, number + 1)


async def serve_upstream() -> None:
    server = await asyncio.get_running_loop().create_server(UpstreamProtocol, "127.0.0.1", 0)
    print_port(server.sockets[0].getsockname()[1])
    await wait_for_stdin_close()


def print_port(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


async def wait_for_stdin_close() -> None:
    await asyncio.to_thread(sys.stdin.buffer.read)


async def serve(app: Any) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    # Asyncio sets it only on sockets that it creates; without it every response waits for an acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", timeout_keep_alive=KEEP_ALIVE_SECONDS
    )
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve([listening]))
    print_port(listening.getsockname()[1])
    await wait_for_stdin_close()
    server.should_exit = True
    await serving


async def serve_bare(upstream: str) -> None:
    import httpx2
    from fastapi import FastAPI, Request, Response

    app = FastAPI()
    async with httpx2.AsyncClient() as client:

        @app.post("/v1/chat/completions")
        async def complete(request: Request) -> Response:
            answer = await client.post(f"{upstream}/chat/completions", content=await request.body())
            return Response(answer.content, media_type="application/json")

        await serve(app)


@contextmanager
def profile_requests() -> Iterator[None]:
    """Writes a profile to the file that QUIRE_PROFILE names, if it does."""
    path = os.environ.get("QUIRE_PROFILE")
    if path is None:
        yield
        return
    # CPU time instead of wall time, because the machine may be shared.
    with cProfile.Profile(time.thread_time) as profile:
        yield
    profile.dump_stats(path)


async def serve_gateway(upstream: str, url: str, window: str) -> None:
    """Serves the gateway as in a deployment: it enqueues background jobs, and a worker would run them."""
    from quire.server.app import create_app
    from quire.server.lifecycle import THREAD_SWITCH_SECONDS
    from quire.server.process_memory import shorten_collections
    from quire.server.state import open_server_state
    from quire.settings import Settings
    from quire.settings.schema import Upstream

    settings = Settings(
        model="gpt-4o", base_url=upstream, context_limit=int(window), requests_per_minute=None,
        context_background_threshold=None,
        upstreams={
            "gpt-4o": Upstream(base_url=upstream, speaks=("chat", "messages", "responses", "gemini"), overflow="fit"),
            "gpt-4o-mini": Upstream(base_url=upstream),
        },
    )  # fmt: skip
    async with open_server_state(url, settings) as server_state:
        app = create_app(server_state)
        # As `quire serve` does.
        sys.setswitchinterval(THREAD_SWITCH_SECONDS)
        async with shorten_collections():
            with profile_requests():
                await serve(app)


def main() -> None:
    name, *arguments = sys.argv[1:]
    run = {
        "upstream": serve_upstream,
        "bare": serve_bare,
        "gateway": serve_gateway,
    }[name]
    asyncio.run(run(*arguments))


if __name__ == "__main__":
    main()
