"""An MCP server over HTTP, in the older protocol, that responds to calls with SSE streams.

`python sse_response_server.py http PORT`. It requires the API key, and starts quickly, without the SDK.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def build_result(request: dict[str, Any]) -> dict[str, Any] | None:
    match request["method"]:
        case "initialize":
            return {
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "sse_response_server", "version": "1"},
            }
        case "tools/list":
            return {"tools": [{"name": "large", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            return {"content": [{"type": "text", "text": "x" * request["params"]["arguments"]["size"]}]}
        case _:
            return None


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["x-key"] != "k":
            self.respond(401, "application/json", b"{}")
        elif "id" not in request:
            self.respond(202, "application/json", b"")
        elif (result := build_result(request)) is None:
            error = {"code": -32601, "message": "Method not found"}
            self.respond(200, "application/json", json.dumps({**_make_envelope(request), "error": error}).encode())
        else:
            event = json.dumps({**_make_envelope(request), "result": result}).encode()
            self.respond(200, "text/event-stream", b"event: message\ndata: " + event + b"\n\n")

    def do_GET(self) -> None:
        self.respond(405, "text/plain", b"")

    def respond(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _make_envelope(request: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request["id"]}


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
