"""Scripted OpenAI-compatible server on loopback, in a thread, for commands that run as processes."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

ReplyScript = Callable[[str], str]
"""Maps the newest message to the reply."""


class ScriptedServer:
    def __init__(
        self, script: ReplyScript, *, models: Sequence[str] = ("miller-1",), delay_seconds: float = 0.0
    ) -> None:
        self.script, self.models, self.delay_seconds = script, models, delay_seconds
        self.requests: list[dict[str, Any]] = []
        self.window: int | None = None
        self.url = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: ScriptedServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send_json(200, {"object": "list", "data": [{"id": model} for model in self.state.models]})
        elif self.path == "/props" and self.state.window is not None:
            self._send_json(200, {"default_generation_settings": {"n_ctx": self.state.window}})
        else:
            self._send_json(404, {"error": "not here"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.state.requests.append(body)
        words = self.state.script(body["messages"][-1]["content"]).split(" ")
        if not body.get("stream"):
            message = {"role": "assistant", "content": " ".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._send_json(
                200, {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
            )
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        with suppress(OSError):  # The client may disconnect.
            for number, word in enumerate(words):
                self._send_event({"content": word if number == 0 else f" {word}"})
                time.sleep(self.state.delay_seconds)
            self._send_event({}, finish="stop")
            self._write("data: [DONE]\n\n")
        self.close_connection = True

    def _send_event(self, delta: dict[str, Any], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        event = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        self._write(f"data: {json.dumps(event)}\n\n")

    def _write(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def _send_json(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def scripted_server(script: ReplyScript | str, **options: Any) -> Iterator[ScriptedServer]:
    state = ScriptedServer((lambda newest: script) if isinstance(script, str) else script, **options)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
