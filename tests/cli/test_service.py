"""`quire service`, `quire statusline`, and the guide that removes everything again."""

import asyncio
import json
import os
import plistlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from documented_commands import ROOT, SHELL_BLOCK
from test_run import (
    PROGRAM,
    TIMEOUT_SECONDS,
    RunHome,
    run_home,  # noqa: F401 (a fixture)
    start_serve,
    wait_for_report,
    wait_until,
)

from quire.cli.service import PASSED_VARIABLES, format_agent, format_task, format_unit
from quire.cli.session_status import format_status_line
from quire.cli.statusline import NOT_RUNNING
from quire.log.types import ConversationOrigin
from quire.model import Compaction, Draft, Message, Span, Usage
from quire.store import SqlStore

WORDS = ["/opt/a b/100% $HOME/quire", "serve", "$x"]
ENVIRON = {"XDG_DATA_HOME": '/data "x"\\y', "OPENAI_API_KEY": "sk-secret"}
SYSTEMCTL = """#!/bin/sh
# Stands in for systemd, which needs a session: starts and stops what the unit names.
unit="$HOME/.config/systemd/user/quire.service"
case "$*" in
*restart*)
    sed -n 's/^ExecStart=\\(.*\\)/exec \\1 --port 0/p' "$unit" > "$HOME/start.sh"
    setsid sh "$HOME/start.sh" > /dev/null 2> "$HOME/service.log" &
    echo $! > "$HOME/service.pid" ;;
*disable*) kill "$(cat "$HOME/service.pid")"; rm "$HOME/start.sh" "$HOME/service.pid" "$HOME/service.log" ;;
esac
"""


# what is installed


def test_the_unit_runs_the_program_and_keeps_its_token_out_of_the_journal(tmp_path: Path):
    unit = format_unit(WORDS, ENVIRON)
    assert 'ExecStart="/opt/a b/100%% $HOME/quire" "serve" "$$x"' in unit
    assert "StandardOutput=null" in unit
    assert "sk-secret" not in unit
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze IS NOT INSTALLED: the unit is not verified")
    program = tmp_path / "a b%$" / "quire"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = tmp_path / "quire.service"
    path.write_text(format_unit([str(program), "serve"], ENVIRON))
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = ["systemd-analyze", "verify", "--user", "--man=no", str(path)]
    verified = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=TIMEOUT_SECONDS)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_the_launchd_agent_is_a_property_list_with_the_types_of_its_manual():
    agent = plistlib.loads(format_agent(WORDS, ENVIRON))
    types = {
        "Label": str,
        "ProgramArguments": list,
        "EnvironmentVariables": dict,
        "RunAtLoad": bool,
        "KeepAlive": dict,
        "ProcessType": str,
        "StandardOutPath": str,
    }
    assert {name: type(value) for name, value in agent.items()} == types
    assert agent["ProgramArguments"] == WORDS
    assert agent["EnvironmentVariables"] == {"XDG_DATA_HOME": ENVIRON["XDG_DATA_HOME"]}
    assert set(agent["EnvironmentVariables"]) <= set(PASSED_VARIABLES)


def test_the_task_is_well_formed_and_names_program_and_user():
    task = ElementTree.fromstring(
        format_task(["C:\\a & b\\quire.exe", "serve", "x y"], "DOMAIN\\<user>").encode("utf-16")
    )
    space = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"
    assert (task.tag, task.get("version")) == (f"{space}Task", "1.2")
    assert task.findtext(f".//{space}Command") == "C:\\a & b\\quire.exe"
    assert task.findtext(f".//{space}Arguments") == 'serve "x y"'
    assert {each.text for each in task.iter(f"{space}UserId")} == {"DOMAIN\\<user>"}


# the guide


@pytest.fixture
def user_home(run_home: RunHome) -> Iterator[RunHome]:  # noqa: F811 (the fixture)
    path = run_home.folder / "bin/systemctl"
    path.write_text(SYSTEMCTL)
    path.chmod(0o755)
    yield run_home
    pid = run_home.folder / "service.pid"
    if pid.exists():
        os.kill(int(pid.read_text()), 15)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="systemd")
def test_the_guide_leaves_nothing(user_home: RunHome):
    folder = user_home.folder
    hidden = ("XDG_", "QUIRE_DATABASE_URL")
    environ = {name: value for name, value in user_home.build_environment().items() if not name.startswith(hidden)}
    environ |= {"TMPDIR": str(folder / "tmp"), "XDG_RUNTIME_DIR": str(folder / "runtime"), "QUIRE_MODEL": "qwen3"}
    environ["PATH"] = f"{Path(PROGRAM).parent}:{environ['PATH']}"
    for name in ("tmp", "runtime"):
        (folder / name).mkdir(mode=0o700)
    before = {each for each in folder.rglob("*") if "bin" not in each.parts}

    def run(command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-ec", command], capture_output=True, text=True, cwd=folder, env=environ, timeout=TIMEOUT_SECONDS
        )

    installed = run("quire service install && quire service status")
    assert installed.returncode == 0, installed.stderr
    assert installed.stdout.startswith("Quire ")
    used = run(
        "quire config set strategy hybrid; quire run claude; quire hook install claude-code --yes; quire models qwen3; "
        "quire hook install codex --yes; echo '{}' | quire statusline; quire trust list"
    )
    assert used.returncode == 0, used.stderr
    assert "“Hello from the agent”" in used.stderr
    assert "today $" in used.stdout
    written = [each for each in folder.rglob("*") if each.is_file()]
    assert any(each.name == "quire.db" for each in written)
    guide = (ROOT / "docs/uninstall.md").read_text()
    blocks = [re.sub(r"^\$ ", "", block["text"], flags=re.MULTILINE) for block in SHELL_BLOCK.finditer(guide)]
    for block in blocks[:-1]:
        removed = run(block)
        assert removed.returncode == 0, removed.stderr
    assert blocks[-1].startswith("pip uninstall")
    # Empty folders of the desktop's and of the agents' own remain.
    left = {each for each in folder.rglob("*") if "bin" not in each.parts} - before
    assert [each for each in left if not each.is_dir() and each.name != "report.json"] == []
    assert [each for each in left if "quire" in each.name] == []
    assert run("quire service status").returncode == 1


# the status line


@pytest.mark.slow
async def test_the_status_line_of_a_session(run_home: RunHome):  # noqa: F811 (the fixture)
    event = {
        "session_id": "none",
        "context_window": {
            "context_window_size": 200_000,
            "current_usage": {
                "input_tokens": 1_000,
                "cache_creation_input_tokens": 9_000,
                "cache_read_input_tokens": 40_000,
            },
        },
    }

    def print_line(data: str) -> str:
        command = [PROGRAM, "statusline"]
        environ = run_home.build_environment()
        return subprocess.run(command, input=data, capture_output=True, text=True, check=True, env=environ).stdout

    assert print_line(json.dumps(event)) == f"{NOT_RUNNING}\n"
    with start_serve(run_home):
        run_home.find_socket()
        expected = "50,000 of 200,000 tokens (25%) · cache 80% · session not recorded · today $0.00\n"
        assert await asyncio.to_thread(print_line, json.dumps(event, indent=2)) == expected
        for hostile in ("{}", "", "[]", '{"context_window": 3, "session_id": {}}'):
            assert print_line(hostile) == "session not recorded · today $0.00\n"
        assert print_line("not JSON") == f"{NOT_RUNNING}\n"


@pytest.mark.slow
def test_a_runs_own_server_answers_the_status_line_and_serves_later_runs(run_home: RunHome):  # noqa: F811 (the fixture)
    folder = run_home.folder / "calls"
    folder.mkdir()
    environ = run_home.build_environment(FAKE_AGENT_FOLDER=str(folder))
    first = subprocess.Popen([PROGRAM, "run", "claude"], stderr=subprocess.PIPE, text=True, env=environ)
    wait_for_report(run_home, first)
    line = subprocess.run(
        [PROGRAM, "statusline"], input="{}", capture_output=True, text=True, check=True, env=environ
    ).stdout
    assert line == "session not recorded · today $0.00\n"
    (run_home.folder / "report.json").unlink()
    second = subprocess.Popen([PROGRAM, "run", "claude"], stderr=subprocess.PIPE, text=True, env=environ)
    children = wait_for_report(run_home, second)
    assert not [pid for pid in children if b"run_host" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    first.terminate()
    first.communicate(timeout=TIMEOUT_SECONDS)
    # A server that stays takes over the socket; the run keeps the one that it has.
    with start_serve(run_home):
        (folder / "call-1").touch()
        wait_until((folder / "answer-1").exists)
        (folder / "end").touch()
        _, errors = second.communicate(timeout=TIMEOUT_SECONDS)
        assert run_home.read_served_requests() == []
        status = subprocess.run([PROGRAM, "service", "status"], capture_output=True, text=True, check=True, env=environ)
        assert status.stdout.startswith("Quire ")
    assert (folder / "answer-1").read_text() == "200"
    assert "“Hello from the agent”" in errors


async def test_a_session_has_the_cost_and_the_compactions_of_its_conversations(store: SqlStore):
    for name, purpose in (("main", None), ("title", "side")):
        origin = ConversationOrigin(client="claude-code", session="s1", purpose=purpose)
        await store.create_conversation(name, origin=origin)
        reply = Draft(body=Message.assistant("Hi"), usage=Usage(input_tokens=9, output_tokens=3), cost_usd=0.21)
        await store.append(name, Draft(body=Message.user("Hello")), reply)
    await store.append("main", Draft(body=Compaction(number=1, covers=Span(first=1, last=1), summary="We met. [#1]")))
    line = await format_status_line(store, {"session_id": "s1"})
    assert line == "session $0.42 · today $0.42 · 1 compaction"


def test_the_status_line_imports_little():
    """`socket` alone takes a quarter of the CPU time that a status line may take."""
    code = "import sys, quire.cli.statusline; print({'socket', 'json', 'typing', 'pathlib', 're'} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "set()\n"
