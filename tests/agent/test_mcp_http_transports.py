"""MCP servers over HTTP on loopback: streamable HTTP, and the older SSE transport."""

import pytest
from mcp_fixtures import (
    FAST_MCP_LIMITS,
    find_free_port,
    get_error_text,
    get_text,
    make_mcp_servers,
    make_tool_item,
    run_http_server,
)

from quire.model.agents import ToolServer


@pytest.mark.slow
async def test_streamable_http_is_called_lost_and_found_again():
    port = find_free_port()
    server = ToolServer(name="s", url=f"http://127.0.0.1:{port}/mcp", transport="http")
    limits = FAST_MCP_LIMITS.model_copy(update={"call_seconds": 3})
    async with make_mcp_servers(server, limits=limits) as servers:
        async with run_http_server("http", port):
            assert "echo" in {tool.name for tool in await servers.list_tools()}
            assert get_text(await servers.call_tool(make_tool_item("echo"), '{"text": "über 🦊"}')) == "über 🦊"
            assert len(get_text(await servers.call_tool(make_tool_item("large"), '{"size": 5000000}'))) == 5_000_000
            assert "no result within 3 s" in get_error_text(
                await servers.call_tool(make_tool_item("wait"), '{"seconds": 600}')
            )
            assert get_text(await servers.call_tool(make_tool_item("add"), '{"a": 1, "b": 1}')) == "2"
        assert "echo failed" in get_error_text(await servers.call_tool(make_tool_item("echo"), '{"text": "?"}'))
        refused = get_error_text(await servers.call_tool(make_tool_item("echo"), '{"text": "?"}'))
        assert f"cannot connect to 127.0.0.1:{port}" in refused
        async with run_http_server("http", port):
            assert get_text(await servers.call_tool(make_tool_item("echo"), '{"text": "back"}')) == "back"


@pytest.mark.parametrize("script", ["sdk_server", "sse_response_server"])
async def test_http_messages_beyond_the_cap_are_dropped(script: str):
    port = find_free_port()
    server = ToolServer(name="s", url=f"http://127.0.0.1:{port}/mcp", transport="http", headers={"x-key": "k"})
    limits = FAST_MCP_LIMITS.model_copy(update={"max_message_bytes": 3_000_000})
    async with run_http_server("http", port, script=script), make_mcp_servers(server, limits=limits) as servers:
        refused = get_error_text(await servers.call_tool(make_tool_item("large"), '{"size": 4000000}'))
        assert "more than 3,000,000 bytes" in refused or "3000000" in refused
        assert len(get_text(await servers.call_tool(make_tool_item("large"), '{"size": 2000000}'))) == 2_000_000


async def test_server_sent_events_are_spoken_too():
    port = find_free_port()
    server = ToolServer(name="s", url=f"http://127.0.0.1:{port}/sse", transport="sse")
    async with run_http_server("sse", port), make_mcp_servers(server) as servers:
        assert "echo" in {tool.name for tool in await servers.list_tools()}
        assert get_text(await servers.call_tool(make_tool_item("echo"), '{"text": "e"}')) == "e"
