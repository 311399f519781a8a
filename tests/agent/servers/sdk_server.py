"""An MCP server of the official SDK with a tool for each test case.

`python sdk_server.py stdio`, or `http PORT`, or `sse PORT`. It logs starts and calls to the file SERVER_LOG, if set.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.types import BlobResourceContents, EmbeddedResource, ResourceLink, TextContent, TextResourceContents

server = MCPServer("sdk_server")


def write_log(text: str) -> None:
    if path := os.environ.get("SERVER_LOG"):
        with Path(path).open("a") as log:
            log.write(f"{text}\n")


@server.tool()
def echo(text: str) -> str:
    """Says it again."""
    return text


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def words(text: str) -> list[str]:
    return text.split()


@server.tool()
def person() -> dict[str, Any]:
    return {"name": "Zoë", "age": 7}


@server.tool()
def fail(reason: str) -> str:
    raise ValueError(reason)


@server.tool()
async def wait(seconds: float) -> str:
    write_log("waiting")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        write_log("cancelled")
        raise
    return "waited"


@server.tool()
def die(code: int) -> str:
    write_log("dying")
    print("the boiler burst", file=sys.stderr, flush=True)
    os._exit(code)


@server.tool(structured_output=False)
def large(size: int) -> str:
    return "é" + "x" * (size - 1)


@server.tool()
def pid() -> int:
    return os.getpid()


@server.tool()
def environment() -> dict[str, str]:
    return dict(os.environ)


@server.tool(structured_output=False)
def mixed() -> list[Any]:
    pixel = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000020000000308060000009d74661a0000000049454e44ae426082")
    return [
        "first",
        Image(data=pixel, format="png"),
        EmbeddedResource(type="resource", resource=TextResourceContents(uri="note://a", text="a note")),
        EmbeddedResource(
            type="resource",
            resource=BlobResourceContents(uri="file:///x/report.pdf", mime_type="application/pdf", blob="JVBERi0="),
        ),
        ResourceLink(type="resource_link", name="more", uri="note://b", description="another note"),
        TextContent(type="text", text="last 🦊"),
    ]


def late(text: str) -> str:
    """A tool that is added later."""
    return text.upper()


@server.tool()
async def grow(ctx: Context) -> str:
    """Adds a tool and notifies the client."""
    server.add_tool(late)
    await ctx.notify_tools_changed()
    return "grown"


@server.tool()
def shout(lines: int) -> str:
    """Floods standard error."""
    for _ in range(lines):
        sys.stderr.write("noise " * 20 + "\n")
    sys.stderr.flush()
    return "quiet again"


def main() -> None:
    transport, *rest = sys.argv[1:]
    write_log(f"started {os.getpid()}")
    if transport == "stdio":
        server.run("stdio")
    elif transport == "http":
        server.run("streamable-http", host="127.0.0.1", port=int(rest[0]))
    else:
        server.run("sse", host="127.0.0.1", port=int(rest[0]))


if __name__ == "__main__":
    if pause := os.environ.get("START_AFTER"):
        time.sleep(float(pause))
    main()
