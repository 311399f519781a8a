"""The table in docs/context-sources.md that says where each part of the context is found: every command in it runs."""

import re
import shlex
from pathlib import Path

import pytest
from chat_harness import make_session, read_session_output
from cli_fixtures import CliHome, invoke_cli

from quire.cli.chat.commands import parse_command
from quire.context.agent_loader import load_agent
from quire.context.vault import Vault
from quire.store import SqlStore

PAGE = Path(__file__).parents[2] / "docs" / "context-sources.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text("utf-8").partition("## Where to find it")[2].splitlines()
    if line.startswith("| ") and not line.startswith("| you want")
]
SPANS = [span for _, commands, _ in ROWS for span in re.findall("`([^`]+)`", commands)]
PROGRAM_LINES = [span for span in SPANS if span.startswith("quire ")]
CHAT_LINES = [span for span in SPANS if span.startswith("/") or span.endswith("?")]


def test_every_row_has_a_command_or_a_place_on_the_page():
    assert len(ROWS) >= 10
    assert all(commands or click for _, commands, click in ROWS)
    others = {"prepare(question, documents=[…])", "history_search"}
    assert set(SPANS) == {*PROGRAM_LINES, *CHAT_LINES, *others}


@pytest.mark.parametrize("line", PROGRAM_LINES)
def test_a_command_of_the_table_runs(home: CliHome, line: str):
    outcome = invoke_cli(*shlex.split(line)[1:])
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.strip()


async def test_the_chat_lines_of_the_table_do_what_it_says(home: CliHome, store: SqlStore):
    session = await make_session(
        store, "It is deep. " * 100, repeat=True, agent=load_agent(home.agent), vault=Vault(home.project)
    )
    failures: list[BaseException] = []
    session.screen.show_error = lambda error: failures.append(error)
    printed: dict[str, str] = {}
    # Messages first: commands need something to act on.
    for line in sorted(CHAT_LINES, key=lambda line: line.startswith("/")):
        assert (parse_command(line) is not None) == line.startswith("/")
        before = len(read_session_output(session))
        await session.handle_line(line)
        printed[line] = read_session_output(session)[before:]
        assert failures == [], line
        assert printed[line].strip(), line
    assert "Type /add harbour" in printed["What does the harbour reference say?"]
    assert "preferences.md" in printed["What does @preferences.md say?"]
