"""What the tests of the MCP server share: texts of conversations, the official client, and calls of tools."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, TextContent

from quire.model import Message
from quire.wire.tokens import estimating_counter

MakeClient = Callable[..., AbstractAsyncContextManager[Client]]

SECRET = "ghp_" + "a1B2c3D4e5F6" * 3

VALVE_CHAT = (
    Message.user("Which valve do we use for the sluice gate?"),
    Message.assistant("We decided on the Rotterdam valve. TODO: test it at night. Shall I order it?"),
    Message.user("Yes, order two of them by Friday."),
    Message.assistant("Ordered two Rotterdam valves, number R-4711."),
)

READING_NAMES = ["history_search", "history_read", "history_list", "context_explain", "memory_search"]
WRITING_NAMES = ["memory_write", "context_usage", "context_drop", "context_restore"]


def get_text(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """Calls a tool that must succeed; returns its structured answer."""
    result = await client.call_tool(name, {key.rstrip("_"): value for key, value in arguments.items()})
    assert not result.is_error, get_text(result)
    assert result.structured_content is not None
    return result.structured_content


async def fail(client: Client, name: str, **arguments: Any) -> str:
    """Calls a tool that must fail; returns the error for the model."""
    result = await client.call_tool(name, {key.rstrip("_"): value for key, value in arguments.items()})
    assert result.is_error, get_text(result)
    assert result.structured_content is None
    return get_text(result)


def count_tokens(result: CallToolResult) -> int:
    """Tokens of the larger form of an answer."""
    structured = json.dumps(result.structured_content, ensure_ascii=False)
    return max(estimating_counter().count(get_text(result)), estimating_counter().count(structured))


class ClientPerCall:
    """A client that connects for each call: its task group cannot span a fixture and a test."""

    def __init__(self, make_client: MakeClient) -> None:
        self._make_client = make_client

    def __getattr__(self, name: str) -> Any:
        async def run(*args: Any, **kwargs: Any) -> Any:
            async with self._make_client() as client:
                try:
                    return await getattr(client, name)(*args, **kwargs)
                except MCPError as error:
                    failure = error
            # Outside, because the client's task group would wrap it in an exception group.
            raise failure

        return run
