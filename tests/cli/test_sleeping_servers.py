"""Commands that look start no server unless they are told to, and say what is not there because of it."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from world import run

from quire.cli.chat.talk import Wanted, opened_talk, options_from

WORKSHOP = Path(__file__).parents[1] / "agent/servers/workshop.py"
AGENT = f"""\
[servers.workshop]
command = {sys.executable!r}
args = [{str(WORKSHOP)!r}, "stdio"]

[servers.idle]
command = "no-such-program"
enabled = false
"""
NOT_STARTED = "1 server of the agent (workshop) is not started, so its tools are not here; --servers starts it."


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an agent, its server, and a conversation that began with the server's tools."""
    for name in ("QUIRE_CONFIG", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "QUIRE_DATABASE_URL", "QUIRE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes.txt"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adder.toml").write_text(AGENT)
    (tmp_path / "quire.toml").write_text('agent = "adder.toml"\ncontext_limit = 16000\n')
    return tmp_path


@pytest.fixture
def begun() -> str:
    async def begin() -> str:
        async with opened_talk(options_from([]), Wanted()) as talk:
            return talk.conversation.id

    return asyncio.run(begin())


def document(*words: str) -> Any:
    outcome = run(*words, "--json")
    assert (outcome.exit_code, outcome.stderr) == (0, ""), outcome.output
    return json.loads(outcome.stdout)


def tools(shown: Any) -> list[str]:
    return [row["name"] for row in shown["included"] if row["slot"] == "tools" and row["name"].startswith("workshop")]


@pytest.mark.usefixtures("begun")
def test_the_window_names_the_servers_that_are_not_started():
    shown = document("context", "show")
    assert (shown["servers_not_started"], tools(shown)) == (["workshop"], [])
    assert NOT_STARTED in run("context", "show").stdout


@pytest.mark.usefixtures("begun")
def test_started_their_tools_are_in_the_window():
    shown = document("context", "show", "--servers")
    assert shown["servers_not_started"] == []
    assert "workshop__add" in tools(shown)
    assert shown["total"] > document("context", "show")["total"]
    assert document("context", "why", "workshop__add", "--servers")["decision"]["included"]


@pytest.mark.usefixtures("begun")
def test_a_tool_of_the_session_is_not_said_to_be_gone_because_its_server_sleeps():
    sleeping = run("context", "items").stdout
    assert "(its server is not started)" in sleeping
    assert "no longer" not in sleeping
    assert NOT_STARTED in sleeping
    awake = run("context", "items", "--servers").stdout
    assert "Adds two numbers." in awake
    assert "not started" not in awake


@pytest.mark.usefixtures("begun")
def test_a_server_that_cannot_be_started_is_said_beside_the_outcome(home: Path):
    (home / "adder.toml").write_text('[servers.gone]\ncommand = "no-such-program"\n')
    outcome = run("context", "show", "--servers")
    assert outcome.exit_code == 0
    assert outcome.stderr.startswith("The server gone: it cannot be started")


def test_a_request_of_the_past_needs_no_server(begun: str, home: Path):
    """Its record says which tools it had."""

    async def answer() -> int:
        async with opened_talk(options_from([]), Wanted(conversation=begun)) as talk:
            await talk.conversation.prepare("How much is 2 and 3?")
            return (await talk.conversation.record("Five.")).seq

    reply = asyncio.run(answer())
    (home / "adder.toml").write_text('[servers.gone]\ncommand = "no-such-program"\n')
    shown = document("context", "show", "--reply", str(reply), "--servers")
    assert (shown["servers_not_started"], "workshop__add" in tools(shown)) == ([], True)
