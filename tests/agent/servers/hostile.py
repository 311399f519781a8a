"""A program that speaks just enough of the protocol's older form to do what no decent server does.

The first argument says what: `deaf` never answers; `rude` writes rubbish between its messages and lists broken tools;
`stubborn` will not end, nor will its child; `loop` lists pages for ever. It starts quickly, without the SDK.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HOW = sys.argv[1]
TOOL = {"name": "talk", "inputSchema": {"type": "object"}}
FLOOD = 10_000_000


def note(text: str) -> None:
    if path := os.environ.get("NOTES"):
        with Path(path).open("a") as notes:
            notes.write(f"{text}\n")


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def say(message: dict[str, Any]) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def answer(request: dict[str, Any], result: dict[str, Any]) -> None:
    say({"id": request["id"], "result": result})


def text(request: dict[str, Any], said: str) -> None:
    answer(request, {"content": [{"type": "text", "text": said}]})


def initialize(request: dict[str, Any]) -> None:
    version = request["params"]["protocolVersion"]
    told = {"tools": {"listChanged": True}}
    answer(request, {"protocolVersion": version, "capabilities": told, "serverInfo": {"name": HOW, "version": "1"}})


tools: list[Any] = [TOOL]
if HOW == "rude":
    tools += [
        "no object",
        {"name": 5, "inputSchema": {"type": "object"}},
        {"name": "no_schema"},
        {"name": "takes_text", "inputSchema": {"type": "string"}},
        {"name": "lax", "inputSchema": {}, "description": 3, "outputSchema": {"type": "array"}, "icons": "none"},
    ]


def list_tools(request: dict[str, Any]) -> None:
    more = {"nextCursor": "again"} if HOW == "loop" else {}
    answer(request, {"tools": tools, **more})


def call(request: dict[str, Any]) -> None:
    match request["params"]["arguments"].get("how"):
        case "half":
            text(request, "half a fox: \ud83e")
        case "endless":
            write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":"' % request["id"])
            for _ in range(FLOOD // 100_000):
                write(b"x" * 100_000)
            write(b'"}}\n')
        case "nonsense":
            answer(request, {"content": "not a list"})
        case "unreadable":
            write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[\n' % request["id"])
        case "grow":
            tools.append({**TOOL, "name": "shout"})
            say({"method": "notifications/tools/list_changed"})
            text(request, "grown")
        case "asks":
            say({"id": "q", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
            reply = json.loads(sys.stdin.readline())
            text(request, f"refused: {'error' in reply}")
        case _:
            text(request, "fine")


ANSWERS = {"initialize": initialize, "tools/list": list_tools, "tools/call": call}


def main() -> None:
    note(f"started {os.getpid()}")
    if HOW == "deaf":
        time.sleep(600)
    if HOW == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note(f"started {child.pid}")
    if HOW == "rude":
        write(b"Welcome to the server!\n\xff\xfe\x00 {]\n\n[1, 2]\n" + b"[" * 5_000 + b"\n")
        write(b"".join(b"log line %d\n" % number for number in range(1_000)))
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("method") in ANSWERS:
            ANSWERS[request["method"]](request)
        elif "id" in request:
            say({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
    if HOW == "stubborn":
        time.sleep(600)


main()
