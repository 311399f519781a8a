"""A proxy of a chat completions server that adds tool calls: a small model answers, but calls no tools by itself.

A request whose last message is the user's gets the scripted call, if there is one; every other goes to the server, and
its response, an error too, comes back byte for byte.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple

import httpx2

Json = dict[str, Any]
CallChooser = Callable[[str], Json | None]
"""Returns the function call, with `name` and `arguments`, that answers a message of the user; None for no call."""
_TIMEOUT_SECONDS = 600


class ProxiedRequest(NamedTuple):
    body: Json
    status: int
    response: Json
    is_forwarded: bool
    """Whether the server answered; otherwise a scripted call did."""


@dataclass
class ToolCallingProxy:
    url: str = ""
    requests: list[ProxiedRequest] = field(default_factory=list[ProxiedRequest])

    @property
    def forwarded(self) -> list[ProxiedRequest]:
        return [each for each in self.requests if each.is_forwarded]


@contextmanager
def run_tool_calling_proxy(server_url: str, choose_call: CallChooser) -> Iterator[ToolCallingProxy]:
    """Runs the proxy in front of the server at `server_url`, which ends in `/v1`."""
    proxy, client = ToolCallingProxy(), httpx2.Client(timeout=_TIMEOUT_SECONDS)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            body = json.loads(raw)
            call = _find_call(body, choose_call)
            if call is not None:
                status, content = 200, json.dumps(_make_completion(call, number=len(proxy.requests))).encode()
            else:
                headers = {"content-type": "application/json"}
                answer = client.post(f"{server_url}/chat/completions", content=raw, headers=headers)
                status, content = answer.status_code, answer.content
            proxy.requests.append(ProxiedRequest(body, status, json.loads(content), call is None))
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that was killed is no error."""

    with client, Server(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        proxy.url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield proxy
        finally:
            server.shutdown()


def _find_call(body: Json, choose_call: CallChooser) -> Json | None:
    last = body["messages"][-1]
    if last["role"] != "user":
        return None
    content = last["content"]
    return choose_call(content if isinstance(content, str) else "".join(part.get("text", "") for part in content))


def _make_completion(call: Json, *, number: int) -> Json:
    tool_call = {"id": f"call_{number}", "type": "function", "function": call}
    message = {"role": "assistant", "content": None, "tool_calls": [tool_call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return {"id": f"scripted-{number}", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
