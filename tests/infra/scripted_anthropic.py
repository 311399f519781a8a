"""A scripted provider on loopback that speaks Anthropic's messages API with SSE, for programs that run as processes."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple


class ScriptedCall(NamedTuple):
    name: str
    arguments: dict[str, Any]


ReplyScript = Callable[[list[dict[str, Any]]], str | Sequence[ScriptedCall]]
"""Maps the messages of a request to the reply: a text, or tool calls."""


def list_results(messages: list[dict[str, Any]]) -> list[str]:
    """Texts of the tool results in the newest message."""
    content = messages[-1]["content"]
    blocks = [block for block in content if isinstance(block, dict) and block["type"] == "tool_result"]
    return [_to_text(block["content"]) for block in blocks]


def _to_text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: ReplyScript
    requests: list[dict[str, Any]]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.requests.append(body)
        reply = type(self).script(body["messages"])
        data = b"".join(_encode_events(body, reply, number=len(self.requests)))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _encode_events(body: dict[str, Any], reply: str | Sequence[ScriptedCall], *, number: int) -> Iterator[bytes]:
    usage = {"input_tokens": len(json.dumps(body)) // 4, "output_tokens": 1}
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    yield _encode("message_start", message={**message, "stop_reason": None, "stop_sequence": None, "usage": usage})
    if isinstance(reply, str):
        words = reply.split(" ")
        deltas = [word if index == 0 else f" {word}" for index, word in enumerate(words)]
        yield from _encode_block(
            0, {"type": "text", "text": ""}, [{"type": "text_delta", "text": each} for each in deltas]
        )
    else:
        for index, call in enumerate(reply):
            block = {"type": "tool_use", "id": f"toolu_{number}_{index}", "name": call.name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(call.arguments)}
            yield from _encode_block(index, block, [delta])
    reason = "end_turn" if isinstance(reply, str) else "tool_use"
    yield _encode("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": 20})
    yield _encode("message_stop")


def _encode_block(index: int, block: dict[str, Any], deltas: Sequence[dict[str, Any]]) -> Iterator[bytes]:
    yield _encode("content_block_start", index=index, content_block=block)
    for delta in deltas:
        yield _encode("content_block_delta", index=index, delta=delta)
    yield _encode("content_block_stop", index=index)


def _encode(event: str, **fields: Any) -> bytes:
    return f"event: {event}\ndata: {json.dumps({'type': event, **fields})}\n\n".encode()


@contextmanager
def run_scripted_anthropic(script: ReplyScript) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Runs the provider; yields its URL and the bodies of the requests that it received."""
    requests: list[dict[str, Any]] = []
    handler = type("Handler", (_Handler,), {"script": staticmethod(script), "requests": requests})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
