"""The real Claude Code and Codex with `quire mcp`: they list its tools, and find a message of an imported session.

A session of the real Codex is imported with `quire import codex`; the other agent then searches for it.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.real_agents import Claude, Codex, McpServer
from infra.scripted_provider import ScriptedCall, ScriptedProvider, ScriptedReply, call_tool, play
from quire.mcp_server.arguments import READING_TOOLS

pytestmark = pytest.mark.slow

MakeClaude = Callable[..., Claude]
MakeCodex = Callable[..., Codex]

TOOL_NAMES = [each.tool_name for each in READING_TOOLS]
SEARCH = {"query": "Rotterdam valve", "source": "codex"}
TOKEN = "ghp_" + "a1B2c3D4e5F6" * 3
QUIRE = (sys.executable, "-m", "quire")


@pytest.fixture
async def quire_server(tmp_path: Path, provider: ScriptedProvider, make_codex: MakeCodex) -> McpServer:
    """`quire mcp` on a log with an imported session of the real Codex."""
    provider.script = play(ScriptedReply(f"We decided on the Rotterdam valve for the sluice gate. Token: {TOKEN}"))
    codex = make_codex(provider.url)
    run = await codex.run("Which valve do we use for the sluice gate?")
    assert run.exit_code == 0, run.stderr
    override = ("--set", f"database_url=sqlite:///{tmp_path / 'log.db'}")
    process = await asyncio.create_subprocess_exec(*QUIRE, "import", "codex", str(codex.home), *override)
    assert await process.wait() == 0
    return McpServer("quire", (*QUIRE, "mcp", *override))


def check_result(result: str) -> None:
    assert "Rotterdam valve" in result
    assert '"source":"codex"' in result
    assert "quoted data of stored conversations" in result
    assert "masked GitHub token" in result
    assert TOKEN not in result


async def test_claude_code_lists_the_tools_and_finds_a_message_of_codex(
    provider: ScriptedProvider, make_claude: MakeClaude, quire_server: McpServer, tmp_path: Path
):
    names = [f"mcp__quire__{name}" for name in TOOL_NAMES]
    config = tmp_path / "mcp.json"
    program, *arguments = quire_server.command
    config.write_text(json.dumps({"mcpServers": {"quire": {"command": program, "args": arguments}}}))
    provider.script = call_tool(ScriptedCall(names[0], SEARCH), text="The Rotterdam valve.")
    # Without these, the first request may leave before the server has answered, and names the tools without schemas.
    env = {"MCP_CONNECTION_NONBLOCKING": "false", "MCP_CONNECT_TIMEOUT_MS": "60000", "ENABLE_TOOL_SEARCH": "false"}
    claude = make_claude(provider.url, allowed_tools=",".join(names), env=env)
    run = await claude.run("Which valve?", "--mcp-config", str(config), "--strict-mcp-config")
    assert (run.exit_code, run.answer) == (0, "The Rotterdam valve."), run.stderr
    first, second = provider.requests[-2:]
    assert set(names) <= set(first.tool_names)
    assert "mcp__quire__memory_write" not in first.tool_names
    assert "before you ask the user what was decided" in first.raw.decode()
    [result] = second.newest_results
    check_result(result)


@pytest.mark.nightly
async def test_codex_lists_the_tools_and_finds_the_message(
    provider: ScriptedProvider, make_codex: MakeCodex, quire_server: McpServer
):
    provider.script = call_tool(ScriptedCall("history_search", SEARCH, namespace="mcp__quire"), text="That one.")
    run = await make_codex(provider.url, mcp_servers=(quire_server,)).run("Which valve?")
    assert (run.exit_code, run.answer) == (0, "That one."), run.stderr
    first, second = provider.requests[-2:]
    assert {f"mcp__quire__{name}" for name in TOOL_NAMES} <= set(first.tool_names)
    [result] = second.newest_results
    check_result(result)
