"""Commands as processes: exit codes, imports, signals, PostgreSQL, shell completion."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from cli_fixtures import (
    START_TIME,
    TIDES_ID,
    CliHome,
    create_conversations,
    freeze_time,
    invoke_cli,
    run_json,
)
from test_every_command import COMMANDS

from quire.cli import CLOSED_PIPE_EXIT_CODE

QUIRE = [sys.executable, "-c", "from quire.cli import main; main()"]
HEAVY_MODULES = (
    "numpy",
    "alembic",
    "prompt_toolkit",
    "psycopg",
    "mcp",
    "httpx2",
    "wordllama",
    "tomlkit",
    "jinja2",
    "sqlalchemy.dialects.postgresql",
    "quire.compaction.model_summary",
    "quire.compaction.extractive_summary",
    "quire.search.segments",
)


def run_quire(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*QUIRE, *words], capture_output=True, text=True, check=False, timeout=60, **options)  # pyright: ignore


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        ["context", "show", "--messages", TIDES_ID],
        ["conversation", "list", "--json"],
    ],
    ids=" ".join,
)
def test_a_reader_may_close_the_pipe(home: CliHome, words: list[str]):
    """As `quire context show | head` does."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run([*QUIRE, *words], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (CLOSED_PIPE_EXIT_CODE, "")


CONVERSATION_COMMANDS = [
    name for name, command in COMMANDS.items() if any(each.name == "conversation" for each in command.params)
]
LEADING_ARGUMENTS = {
    "context why": ["2"],
    "context pin": ["2"],
    "context drop": ["2"],
    "context restore": ["2"],
    "conversation fork": ["1"],
}
TRAILING_OPTIONS = {
    "conversation purge": ["--yes"],
    "conversation edit": ["--title", "x"],
    "context edit": ["--text", "x"],
}


def build_call(name: str, conversation: str, *more: str) -> list[str]:
    """Builds the arguments of a command for a conversation."""
    return [*name.split(), *LEADING_ARGUMENTS.get(name, []), conversation, *TRAILING_OPTIONS.get(name, []), *more]


@pytest.mark.parametrize("name", CONVERSATION_COMMANDS)
def test_a_missing_conversation_is_not_found_and_not_created(home: CliHome, name: str):
    for more in ((), ("--json",)):
        failed = invoke_cli(*build_call(name, "missing", *more))
        assert (failed.exit_code, failed.stdout) == (3, ""), failed.output
        assert failed.stderr.startswith("quire: There is no conversation 'missing'; run `quire conversation list`")
    assert len(run_json("conversation", "list")["conversations"]) == 2


BRANCH_COMMANDS = [
    name for name in CONVERSATION_COMMANDS if any("--branch" in each.opts for each in COMMANDS[name].params)
]


@pytest.mark.parametrize("name", BRANCH_COMMANDS)
def test_a_branch_that_is_not_there_is_not_found(home: CliHome, name: str):
    messages = ["--message", "2"] if name == "conversation purge" else []
    failed = invoke_cli(*build_call(name, TIDES_ID, *messages, "--branch", "7"))
    assert (failed.exit_code, failed.stdout) == (3, ""), failed.output


@pytest.mark.parametrize("words", ["context", "context nothing", "nothing", "context show --nothing", "db upgrade a b"])
def test_what_cannot_be_understood_ends_with_2(home: CliHome, words: str):
    outcome = invoke_cli(*words.split())
    assert outcome.exit_code == 2
    assert "Usage" in outcome.stderr + outcome.stdout


def test_a_mistyped_group_is_guessed(home: CliHome):
    assert "Did you mean 'context'?" in invoke_cli("contxt").stderr


def test_all_commands_stand_in_the_help(home: CliHome):
    output = invoke_cli("--help").stdout
    for name in ("context", "memory", "config", "agent", "conversation", "db", "--install-completion"):
        assert name in output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # The model's own window bounds every request. It is in the table of genai-prices, which imports httpx2.
        (["context", "show"], ["httpx2"]),
        (["conversation", "list"], []),
        (["context", "show", "--summary"], []),
        (["config", "list"], []),
    ],
)
def test_commands_that_only_look_import_nothing_heavy(home: CliHome, words: list[str], expected: list[str]):
    code = f"""
import sys
from quire.cli import main
sys.argv = ["quire", *{words!r}]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print([name for name in {HEAVY_MODULES!r} if name in sys.modules], file=sys.stderr)
"""
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stderr == f"{expected}\n"
    assert outcome.stdout


def test_the_version_needs_no_more_than_the_package():
    code = """
import sys
before = set(sys.modules)
from quire.cli import main
sys.argv = ["quire", "--version"]
main()
print(sorted({name.partition(".")[0] for name in set(sys.modules) - before} & {"typer", "rich", "pydantic", "asyncio"}))
"""
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, imported = outcome.stdout.splitlines()
    assert version.startswith("quire 0.")
    assert imported == "[]"
    assert invoke_cli("--version").stdout == f"{version}\n"


def test_a_command_of_its_own_process_says_the_same(home: CliHome):
    assert json.loads(run_quire("context", "show", "--json").stdout) == run_json("context", "show")
    failed = run_quire("context", "show", "nobody")
    assert (failed.returncode, failed.stdout) == (3, "")
    assert failed.stderr.count("\n") == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_whoever_stops_reading_is_not_told_of_it(home: CliHome, unbuffered: str):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    for words in (["context", "show", "--messages"], ["export"]):
        with subprocess.Popen(
            [*QUIRE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b"", words
            assert process.wait(30) == CLOSED_PIPE_EXIT_CODE


def test_ctrl_c_ends_a_command_that_waits(home: CliHome):
    for words in (["import", "-"], ["context", "edit", "--text", "-"]):
        process = subprocess.Popen(
            [*QUIRE, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        process.stdin.write("a")
        process.stdin.flush()
        # It waits for more once it has read this.
        while fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4)) != bytes(4):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, output) == (130, ""), errors
        assert "Traceback" not in errors
    assert len(run_json("conversation", "list")["conversations"]) == 2


@pytest.mark.parametrize("source", ["-", "tides.jsonl"])
def test_ctrl_c_while_importing_stores_nothing(home: CliHome, source: str):
    """The database's thread is stopped too, so that an interrupted import stores nothing."""
    code = """
import os, signal
from quire.cli import import_, main
track_progress = import_._track_progress
def slow(lines, *rest):
    for number, line in enumerate(track_progress(lines, *rest)):
        if number == 5:
            os.kill(os.getpid(), signal.SIGINT)
            rest[-1].wait(30)  # The event that stops the import.
        yield line
import_._track_progress = slow
import sys
sys.argv = ["quire", "import", *sys.argv[1:], "--as", "half"]
main()
"""
    lines = (home.project / "tides.jsonl").read_text() if source == "-" else None
    command = [sys.executable, "-c", code, source]
    outcome = subprocess.run(command, input=lines, capture_output=True, text=True, check=False, timeout=60)
    assert outcome.returncode == 130, outcome.stderr
    assert "half" not in [each["id"] for each in run_json("conversation", "list")["conversations"]]


@pytest.mark.every_postgres
def test_the_same_commands_work_on_postgresql(home: CliHome, database_url: str, monkeypatch: pytest.MonkeyPatch):
    # The same ids as in the home's own database: those of memories are part of a request.
    home.clock = freeze_time(monkeypatch, START_TIME)
    asyncio.run(create_conversations(home, database_url))

    def on_postgres(*words: str) -> Any:
        with patch.dict(os.environ, {"QUIRE_DATABASE_URL": database_url}):
            return run_json(*words)

    [newest, _] = on_postgres("conversation", "list")["conversations"]
    assert newest["title"] == "Tides"
    assert on_postgres("context", "show")["manifest"]["slots"] == run_json("context", "show")["manifest"]["slots"]
    assert on_postgres("conversation", "verify", "--all")["faults"] == []
    assert on_postgres("search", "spring tide")["messages"]
    assert on_postgres("context", "compact", "--clear")["entry"]
    assert on_postgres("context", "undo")["active"]["compaction"]["number"] == 1
    assert on_postgres("db", "upgrade", "--check")["current"] is True


def complete_shell(words: Sequence[str]) -> list[str]:
    environment = {
        "_QUIRE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    outcome = invoke_cli(prog_name="quire", env=environment)
    assert outcome.stderr == ""
    return outcome.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["quire", "conv"], ["conversation"]),
        (["quire", "context", "s"], ["show"]),
        (["quire", "context", "show", "01ke6p8"], [TIDES_ID]),
        (["quire", "agent", "show", "s"], ["sailor"]),
        (["quire", "config", "list", "context_thr"], ["context_threshold"]),
        (["quire", "memory", "search", "--agent", "sa"], ["sailor"]),
    ],
)
def test_the_shell_completes_commands_ids_and_names(home: CliHome, words: list[str], offered: list[str]):
    assert complete_shell(words) == offered


def test_completing_without_a_log_offers_nothing_and_makes_none(home: CliHome):
    home.database.unlink()
    assert complete_shell(["quire", "context", "show", ""]) == []
    assert not home.database.exists()


def test_completing_with_broken_settings_offers_nothing(home: CliHome):
    home.settings.write_text("broken")
    assert complete_shell(["quire", "context", "show", ""]) == []


def test_asking_for_the_status_makes_no_database(home: CliHome, tmp_path: Path):
    assert invoke_cli("db", "upgrade", "--check", f"sqlite:///{tmp_path}/none.db").exit_code == 1
    assert not (tmp_path / "none.db").exists()
    assert invoke_cli("db", "upgrade", f"sqlite:///{tmp_path}/deep/er/new.db").exit_code == 0
    assert invoke_cli("db", "upgrade", "--check", f"sqlite:///{tmp_path}/deep/er/new.db").exit_code == 0
