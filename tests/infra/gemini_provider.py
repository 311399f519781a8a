"""A Gemini API on loopback that replies with one text, for Gemini CLI."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

REPLY = "Done."


@dataclass
class GeminiProvider:
    """The running provider."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Bodies of the requests for a streamed reply; side calls are not streamed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    provider: GeminiProvider

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        usage = {"promptTokenCount": 100, "candidatesTokenCount": 2, "totalTokenCount": 102}
        candidate = {"content": {"parts": [{"text": REPLY}], "role": "model"}, "index": 0, "finishReason": "STOP"}
        reply = json.dumps({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-pro"})
        is_stream = ":streamGenerateContent" in self.path
        if is_stream:
            self.provider.requests.append(body)
        data = (f"data: {reply}\r\n\r\n" if is_stream else reply).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if is_stream else "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def run_gemini_provider() -> Iterator[GeminiProvider]:
    provider = GeminiProvider()
    handler = type("Handler", (_Handler,), {"provider": provider})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        provider.url = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.05}).start()
        try:
            yield provider
        finally:
            server.shutdown()
