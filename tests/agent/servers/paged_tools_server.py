"""An MCP server of the official SDK with a long, paged list of tools, some of which cannot be offered to a model.

`python paged_tools_server.py [hang]`; with `hang` it never answers a request for the list.
"""

import asyncio
import sys
from typing import Any

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

EMPTY_OBJECT_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS = [
    *(
        Tool(name=f"tool_{number}", description="One of many.", input_schema=EMPTY_OBJECT_SCHEMA)
        for number in range(300)
    ),
    Tool(name="tool_7", description="Another seven.", input_schema=EMPTY_OBJECT_SCHEMA),
    Tool(name="Übersetze 日本語 🦊", description="Nach überall: 🦊", input_schema=EMPTY_OBJECT_SCHEMA),
    Tool(name="", input_schema=EMPTY_OBJECT_SCHEMA),
    Tool(name="bell\a\x1b[31m", input_schema=EMPTY_OBJECT_SCHEMA),
    Tool(name="long" * 100, input_schema=EMPTY_OBJECT_SCHEMA),
    Tool(name="mistyped", input_schema={"type": "object", "properties": {"a": {"type": "strng"}}}),
    Tool(name="misread", input_schema={"type": "object", "properties": {"a": {"type": "string", "pattern": 3}}}),
]
PAGE_SIZE = 64


async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
    if "hang" in sys.argv:
        await asyncio.sleep(600)
    start = int(params.cursor) if params is not None and params.cursor else 0
    following = start + PAGE_SIZE
    return ListToolsResult(tools=TOOLS[start:following], next_cursor=str(following) if following < len(TOOLS) else None)


async def call_tool(ctx: Any, params: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=f"{params.name} was called")])


async def main() -> None:
    server = Server("paged_tools_server", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


anyio.run(main)
