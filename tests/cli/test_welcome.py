"""`quire` alone: one screen on the first run, the help afterwards."""

import re
from pathlib import Path

import pytest
from cli_fixtures import CliHome, invoke_cli

from quire.cli.agent_programs import AGENT_PROGRAMS
from quire.cli.app import SINGLE_COMMANDS
from quire.cli.command_groups import COMMAND_GROUPS
from quire.cli.init import PROVIDER_KEYS
from quire.cli.welcome import AGENT_PROGRAM_NAMES, FirstRun, format_welcome

SCREEN_COLUMNS, SCREEN_LINES = 80, 24


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = CliHome(tmp_path / "home")
    home.project.mkdir(parents=True)
    home.activate(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for each in PROVIDER_KEYS:
        monkeypatch.delenv(each.variable, raising=False)
    return home.path


def test_an_empty_home_gets_one_screen(empty_home: Path):
    outcome = invoke_cli()
    assert outcome.exit_code == 0
    assert "OPENAI_API_KEY=…" in outcome.stdout
    assert list(empty_home.rglob("*")) == [empty_home / "project"]


def test_a_key_and_an_agent_are_found(empty_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "planted-key")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "codex"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = invoke_cli().stdout
    assert "use the key in ANTHROPIC_API_KEY" in text
    assert "quire run codex" in text
    assert "planted-key" not in text
    assert "OPENAI_API_KEY" not in text


def test_the_agents_are_those_that_quire_run_connects():
    assert set(AGENT_PROGRAM_NAMES) == set(AGENT_PROGRAMS)


def test_a_used_home_gets_the_help(home: CliHome):
    outcome = invoke_cli()
    assert outcome.exit_code == 0
    assert "Usage:" in outcome.stdout
    assert "resume" in outcome.stdout


@pytest.mark.parametrize(
    "first_run",
    [
        FirstRun(None, ()),
        FirstRun(max((each.variable for each in PROVIDER_KEYS), key=len), ("claude", "codex")),
        FirstRun("OPENAI_API_KEY", AGENT_PROGRAM_NAMES),
    ],
)
@pytest.mark.parametrize("is_windows", [False, True])
def test_it_fits_a_screen_and_names_only_commands_that_exist(first_run: FirstRun, is_windows: bool):
    text = format_welcome(first_run, is_windows=is_windows)
    lines = text.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_COLUMNS
    named = set(re.findall(r"^  quire ([\w-]+)", text, re.MULTILINE))
    assert named - {"--help"} <= {*SINGLE_COMMANDS, *COMMAND_GROUPS}
