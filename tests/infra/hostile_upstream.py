"""A scripted upstream for hostile load, run as `python -m infra.hostile_upstream PORT`.

The name of the model chooses the behaviour: it echoes the client's text in an error, sends one huge event, a flood of
small events, or a huge reply. Any other model gives a short reply at once. It does not parse what it receives, so that
its own work stays small.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial

from uvicorn import run

PIECE_BYTES = 64 * 1024
MEGABYTE = 1_000_000

Event = dict[str, object]
Receive = Callable[[], "asyncio.Future[Event]"]
Send = Callable[[Event], "asyncio.Future[None]"]


def _encode_reply(content: object) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    reply = {"id": "x", "object": "chat.completion", "created": 1, "model": "up", "choices": [choice], "usage": usage}
    return json.dumps(reply).encode()


def _encode_event(delta: Event, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "up", "choices": [choice]}
    return f"data: {json.dumps(chunk)}\n\n".encode()


_STREAM_END = _encode_event({}, "stop") + b"data: [DONE]\n\n"
_SHORT_REPLY = _encode_reply("Yes.")
_SHORT_STREAM = _encode_event({"role": "assistant", "content": "Yes."}) + _STREAM_END


async def _repeat(piece: bytes, total_bytes: int) -> AsyncIterator[bytes]:
    block = piece * max(1, PIECE_BYTES // len(piece))
    for _ in range(total_bytes // len(block)):
        yield block


async def _stream_huge_event(megabytes: int) -> AsyncIterator[bytes]:
    yield b'data: {"choices":[{"index":0,"delta":{"content":"'
    async for block in _repeat(b"x", megabytes * MEGABYTE):
        yield block
    yield b'"}}]}\n\n' + _STREAM_END


async def _stream_nested_event(megabytes: int) -> AsyncIterator[bytes]:
    yield b'data: {"choices":[{"index":0,"delta":{"content":"Yes."}}],"x":['
    async for block in _repeat(b"{},", megabytes * MEGABYTE):
        yield block
    yield b"{}]}\n\n" + _STREAM_END


async def _stream_event_flood(megabytes: int) -> AsyncIterator[bytes]:
    async for block in _repeat(_encode_event({"content": "a"}), megabytes * MEGABYTE):
        yield block
    yield _STREAM_END


async def _stream_call_flood(megabytes: int) -> AsyncIterator[bytes]:
    """Each event begins another tool call."""
    for number in range(megabytes * 5_000):
        function = {"name": "f", "arguments": "{"}
        yield _encode_event({"tool_calls": [{"index": number, "id": f"c{number}", "function": function}]})
    yield _STREAM_END


async def _stream_huge_reply(megabytes: int) -> AsyncIterator[bytes]:
    begin, end = _encode_reply("").split(b'"content": ""')
    yield begin + b'"content": "'
    async for block in _repeat(b" ", megabytes * MEGABYTE):
        yield block
    yield b'"' + end


async def _stream_nested_reply(megabytes: int) -> AsyncIterator[bytes]:
    yield _SHORT_REPLY[:-1] + b', "x": ['
    async for block in _repeat(b"{},", megabytes * MEGABYTE):
        yield block
    yield b"{}]}"


_STREAMS: dict[str, Callable[[int], AsyncIterator[bytes]]] = {
    "huge-event": _stream_huge_event,
    "nested-event": _stream_nested_event,
    "event-flood": _stream_event_flood,
    "call-flood": _stream_call_flood,
    "huge-reply": _stream_huge_reply,
    "nested-reply": _stream_nested_reply,
}


def _choose_response(model: str, body: bytes) -> tuple[int, str, AsyncIterator[bytes]]:
    behaviour, _, megabytes = model.partition("@")
    if behaviour == "echo":
        # As OpenAI and llama.cpp do: the message of the error repeats what the client sent.
        error = b'{"error":{"message":"Invalid value: %b","type":"invalid_request_error","code":"invalid_value"}}'
        return 400, "application/json", _once(error % body.replace(b"\\", b"").replace(b'"', b"'"))
    if behaviour in _STREAMS:
        media_type = "application/json" if behaviour.endswith("reply") else "text/event-stream"
        return 200, media_type, _STREAMS[behaviour](int(megabytes))
    if b'"stream": true' in body[-200:]:
        return 200, "text/event-stream", _once(_SHORT_STREAM)
    return 200, "application/json", _once(_SHORT_REPLY)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def app(scope: Event, receive: Receive, send: Send) -> None:
    pieces: list[bytes] = []
    while True:
        message = await receive()
        pieces.append(bytes(message.get("body", b"")))  # pyright: ignore[reportArgumentType]
        if not message.get("more_body"):
            break
    body = b"".join(pieces)
    # Clients of this upstream send the model first.
    model = body[:200].partition(b'"model": "')[2].partition(b'"')[0].decode()
    status, media_type, stream = _choose_response(model, body)
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", media_type.encode())]})
    async for piece in stream:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    # An upstream that closes idle connections would race with the next question.
    serve = partial(run, app, host="127.0.0.1", log_level="critical", lifespan="off", timeout_keep_alive=600)
    serve(port=int(sys.argv[1]))
