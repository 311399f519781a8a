"""An MCP server that misbehaves. It implements a minimum of the older protocol without the SDK, so it starts quickly.

The first argument selects how: `deaf` never answers; `rude` writes invalid lines between its messages and lists broken
tools; `stubborn` and its child ignore SIGTERM and the end of input; `loop` repeats the same page of tools for ever.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BEHAVIOR = sys.argv[1]
TOOL = {"name": "talk", "inputSchema": {"type": "object"}}
FLOOD_BYTES = 10_000_000


def write_log(text: str) -> None:
    if path := os.environ.get("SERVER_LOG"):
        with Path(path).open("a") as log:
            log.write(f"{text}\n")


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def send_message(message: dict[str, Any]) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def send_result(request: dict[str, Any], result: dict[str, Any]) -> None:
    send_message({"id": request["id"], "result": result})


def send_text_result(request: dict[str, Any], text: str) -> None:
    send_result(request, {"content": [{"type": "text", "text": text}]})


def initialize(request: dict[str, Any]) -> None:
    version = request["params"]["protocolVersion"]
    capabilities = {"tools": {"listChanged": True}}
    send_result(
        request,
        {"protocolVersion": version, "capabilities": capabilities, "serverInfo": {"name": BEHAVIOR, "version": "1"}},
    )


tools: list[Any] = [TOOL]
if BEHAVIOR == "rude":
    tools += [
        "no object",
        {"name": 5, "inputSchema": {"type": "object"}},
        {"name": "no_schema"},
        {"name": "takes_text", "inputSchema": {"type": "string"}},
        {"name": "lax", "inputSchema": {}, "description": 3, "outputSchema": {"type": "array"}, "icons": "none"},
    ]


def list_tools(request: dict[str, Any]) -> None:
    more = {"nextCursor": "again"} if BEHAVIOR == "loop" else {}
    send_result(request, {"tools": tools, **more})


def call(request: dict[str, Any]) -> None:
    match request["params"]["arguments"].get("how"):
        case "half":
            send_text_result(request, "half a fox: \ud83e")
        case "endless":
            write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":"' % request["id"])
            for _ in range(FLOOD_BYTES // 100_000):
                write(b"x" * 100_000)
            write(b'"}}\n')
        case "nonsense":
            send_result(request, {"content": "not a list"})
        case "unreadable":
            write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[\n' % request["id"])
        case "grow":
            tools.append({**TOOL, "name": "shout"})
            send_message({"method": "notifications/tools/list_changed"})
            send_text_result(request, "grown")
        case "asks":
            send_message({"id": "q", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
            reply = json.loads(sys.stdin.readline())
            send_text_result(request, f"refused: {'error' in reply}")
        case _:
            send_text_result(request, "fine")


HANDLERS = {"initialize": initialize, "tools/list": list_tools, "tools/call": call}


def main() -> None:
    write_log(f"started {os.getpid()}")
    if BEHAVIOR == "deaf":
        time.sleep(600)
    if BEHAVIOR == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        write_log(f"started {child.pid}")
    if BEHAVIOR == "rude":
        write(b"Welcome to the server!\n\xff\xfe\x00 {]\n\n[1, 2]\n" + b"[" * 5_000 + b"\n")
        write(b"".join(b"log line %d\n" % number for number in range(1_000)))
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("method") in HANDLERS:
            HANDLERS[request["method"]](request)
        elif "id" in request:
            send_message({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
    if BEHAVIOR == "stubborn":
        time.sleep(600)


main()
