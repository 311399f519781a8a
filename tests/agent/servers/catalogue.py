"""An MCP server of the official SDK with a long list of tools, in pages, some of which no model could be told of.

`python catalogue.py [hang]`; with `hang` it never answers when it is asked for the list.
"""

import asyncio
import sys
from typing import Any

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS = [
    *(Tool(name=f"tool_{number}", description="One of many.", input_schema=OBJECT) for number in range(300)),
    Tool(name="tool_7", description="Another seven.", input_schema=OBJECT),
    Tool(name="Übersetze 日本語 🦊", description="Nach überall: 🦊", input_schema=OBJECT),
    Tool(name="", input_schema=OBJECT),
    Tool(name="bell\a\x1b[31m", input_schema=OBJECT),
    Tool(name="long" * 100, input_schema=OBJECT),
    Tool(name="mistyped", input_schema={"type": "object", "properties": {"a": {"type": "strng"}}}),
    Tool(name="misread", input_schema={"type": "object", "properties": {"a": {"type": "string", "pattern": 3}}}),
]
PAGE = 64


async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
    if "hang" in sys.argv:
        await asyncio.sleep(600)
    start = int(params.cursor) if params is not None and params.cursor else 0
    following = start + PAGE
    return ListToolsResult(tools=TOOLS[start:following], next_cursor=str(following) if following < len(TOOLS) else None)


async def call_tool(ctx: Any, params: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=f"{params.name} was called")])


async def main() -> None:
    server = Server("catalogue", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


anyio.run(main)
