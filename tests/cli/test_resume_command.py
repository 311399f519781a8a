"""`quire resume`: the session that it writes, what it prints, and how it starts the agent."""

import json
import shlex
import sys
from asyncio import to_thread
from pathlib import Path

import pytest
from cli_fixtures import TIDES_ID, CliHome, invoke_cli, run_json

from quire.model import Message
from quire.store import SqlStore


@pytest.fixture(autouse=True)
def no_agent_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agents have their folders in the test's home."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("program", ["claude", "codex", "opencode", "gemini"])
def test_a_session_is_written_and_the_command_printed(program: str, home: CliHome):
    document = run_json("resume", TIDES_ID, "--in", program)
    assert Path(document["path"]).is_relative_to(Path.home())
    assert Path(document["path"]).is_file()
    assert document["folder"] == str(Path.cwd())
    assert document["command"].startswith(f"cd {Path.cwd()} && {program} ")
    assert document["command"].endswith(document["session"])
    assert document["messages"] > 0
    result = invoke_cli("resume", TIDES_ID, "--in", program)
    assert result.exit_code == 0, result.output
    command = result.stdout.splitlines()[-1]
    assert shlex.split(command)[:3] == ["cd", str(Path.cwd()), "&&"]


def test_a_number_names_the_last_entry(home: CliHome):
    whole, begun = (run_json("resume", name, "--in", "codex") for name in (TIDES_ID, f"{TIDES_ID}@3"))
    assert begun["last"] == 3 < whole["last"]
    assert 0 < begun["messages"] < whole["messages"]
    assert run_json("resume", "@3", "--in", "codex")["conversation"] == TIDES_ID
    assert "has no entry #9999" in invoke_cli("resume", f"{TIDES_ID}@9999", "--in", "codex").stderr


async def test_an_id_that_ends_like_a_number_is_an_id(home: CliHome):
    async with SqlStore.open(home.url) as store:
        await store.create_conversation("ann@7")
        await store.append("ann@7", Message.user("Hello"))
    assert (await to_thread(run_json, "resume", "ann@7", "--in", "codex"))["conversation"] == "ann@7"
    assert (await to_thread(run_json, "resume", "ann@7@1", "--in", "codex"))["last"] == 1


def test_the_agent_starts_in_the_folder_of_the_session(
    home: CliHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    # A program that prints what it was started with stands for the agent.
    program = tmp_path / "bin" / "gemini"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([os.getcwd(), *sys.argv[1:]]))\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    result = invoke_cli("resume", TIDES_ID, "--in", "gemini", "--run")
    assert result.exit_code == 0, result.output
    folder, option, session = json.loads(capfd.readouterr().out)
    assert (folder, option) == (str(Path.cwd()), "--resume")
    [path] = (Path.home() / ".gemini").rglob("session-*.jsonl")
    assert json.loads(path.read_text().splitlines()[0])["sessionId"] == session


def test_a_missing_agent_is_named_with_its_installation(home: CliHome, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    result = invoke_cli("resume", TIDES_ID, "--in", "codex", "--run")
    assert result.exit_code == 127
    assert "npm install -g @openai/codex" in result.stderr
