"""Read-only commands start MCP servers only with `--servers`, and name the servers that are not started."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import invoke_cli

from quire.cli.chat.runtime import ChatOptions, build_overrides, open_chat

WORKSHOP = Path(__file__).parents[1] / "agent/servers/sdk_server.py"
AGENT = f"""\
[servers.workshop]
command = {sys.executable!r}
args = [{str(WORKSHOP)!r}, "stdio"]

[servers.idle]
command = "no-such-program"
enabled = false
"""
NOT_STARTED = "1 server of the agent (workshop) is not started, so its tools are missing; start it with --servers."


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an agent, its server, and a conversation that began with the server's tools."""
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "QUIRE_DATABASE_URL", "QUIRE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("SERVER_LOG", str(tmp_path / "notes.txt"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adder.toml").write_text(AGENT)
    (tmp_path / "quire.toml").write_text('agent = "adder.toml"\ncontext_limit = 16000\n')
    monkeypatch.setenv("QUIRE_CONFIG", str(tmp_path / "quire.toml"))
    return tmp_path


@pytest.fixture
def conversation_id() -> str:
    async def create() -> str:
        async with open_chat(build_overrides([]), ChatOptions()) as runtime:
            return runtime.conversation.id

    return asyncio.run(create())


def run_json_silently(*words: str) -> Any:
    outcome = invoke_cli(*words, "--json")
    assert (outcome.exit_code, outcome.stderr) == (0, ""), outcome.output
    return json.loads(outcome.stdout)


def list_workshop_tools(document: Any) -> list[str]:
    names = [row["name"] for row in document["manifest"]["decisions"] if row["included"] and row["slot"] == "tools"]
    return [name for name in names if name.startswith("workshop")]


@pytest.mark.usefixtures("conversation_id")
def test_the_window_names_the_servers_that_are_not_started():
    document = run_json_silently("context", "show")
    assert (document["servers_not_started"], list_workshop_tools(document)) == (["workshop"], [])
    assert NOT_STARTED in invoke_cli("context", "show").stdout


@pytest.mark.usefixtures("conversation_id")
def test_started_their_tools_are_in_the_window():
    document = run_json_silently("context", "show", "--servers")
    assert document["servers_not_started"] == []
    assert "workshop__add" in list_workshop_tools(document)
    assert document["manifest"]["total_tokens"] > run_json_silently("context", "show")["manifest"]["total_tokens"]


@pytest.mark.usefixtures("conversation_id")
def test_a_tool_of_a_stopped_server_is_not_reported_as_removed():
    sleeping = invoke_cli("context", "items").stdout
    assert "(its server is not started)" in sleeping
    assert "no longer" not in sleeping
    assert NOT_STARTED in sleeping
    awake = invoke_cli("context", "items", "--servers").stdout
    assert "Adds two numbers." in awake
    assert "not started" not in awake


@pytest.mark.usefixtures("conversation_id")
def test_a_server_that_cannot_be_started_is_reported_on_standard_error(home: Path):
    (home / "adder.toml").write_text('[servers.gone]\ncommand = "no-such-program"\n')
    outcome = invoke_cli("context", "show", "--servers")
    assert outcome.exit_code == 0
    assert outcome.stderr.startswith("The server gone: it cannot be started")


def test_a_request_of_the_past_needs_no_server(conversation_id: str, home: Path):
    """Its record says which tools it had."""

    async def answer() -> int:
        async with open_chat(build_overrides([]), ChatOptions(conversation=conversation_id)) as runtime:
            request = await runtime.conversation.prepare("How much is 2 and 3?")
            return (await runtime.conversation.record("Five.", request=request)).seq

    reply = asyncio.run(answer())
    (home / "adder.toml").write_text('[servers.gone]\ncommand = "no-such-program"\n')
    document = run_json_silently("context", "show", "--reply", str(reply), "--servers")
    assert (document["servers_not_started"], "workshop__add" in list_workshop_tools(document)) == ([], True)
