"""MCP servers over HTTP on the loopback: streamable, and the older way with events."""

import pytest
from support_mcp import QUICK, error, free_port, listening, of, opened, said

from quire.model.agents import ToolServer


@pytest.mark.slow
async def test_streamable_http_is_called_lost_and_found_again():
    port = free_port()
    server = ToolServer(name="s", url=f"http://127.0.0.1:{port}/mcp", transport="http")
    limits = QUICK.model_copy(update={"call_seconds": 3})
    async with opened(server, limits=limits) as servers:
        async with listening("http", port):
            assert "echo" in {tool.name for tool in await servers.tools()}
            assert said(await servers.call(of("echo"), '{"text": "über 🦊"}')) == "über 🦊"
            assert len(said(await servers.call(of("large"), '{"size": 5000000}'))) == 5_000_000
            assert "no result within 3 s" in error(await servers.call(of("wait"), '{"seconds": 600}'))
            assert said(await servers.call(of("add"), '{"a": 1, "b": 1}')) == "2"
        assert "echo failed" in error(await servers.call(of("echo"), '{"text": "?"}'))
        assert "cannot be reached" in error(await servers.call(of("echo"), '{"text": "?"}'))
        async with listening("http", port):
            assert said(await servers.call(of("echo"), '{"text": "back"}')) == "back"


@pytest.mark.parametrize("script", ["workshop", "eventful"])
async def test_http_messages_beyond_the_cap_are_dropped(script: str):
    port = free_port()
    server = ToolServer(name="s", url=f"http://127.0.0.1:{port}/mcp", transport="http", headers={"x-key": "k"})
    limits = QUICK.model_copy(update={"largest_message": 3_000_000})
    async with listening("http", port, script=script), opened(server, limits=limits) as servers:
        refused = error(await servers.call(of("large"), '{"size": 4000000}'))
        assert "more than 3,000,000 bytes" in refused or "3000000" in refused
        assert len(said(await servers.call(of("large"), '{"size": 2000000}'))) == 2_000_000


async def test_server_sent_events_are_spoken_too():
    port = free_port()
    server = ToolServer(name="s", url=f"http://127.0.0.1:{port}/sse", transport="sse")
    async with listening("sse", port), opened(server) as servers:
        assert "echo" in {tool.name for tool in await servers.tools()}
        assert said(await servers.call(of("echo"), '{"text": "e"}')) == "e"
