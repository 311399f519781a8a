"""The commands of all Markdown files run as written, each in a home of its own, with a scripted model.

By default they run this source; `just installed` runs them from the installed wheels.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_fixtures import TIDES_ID, CliHome, copy_home
from documented_commands import (
    NOT_RUN,
    PLACEHOLDER,
    ROOT,
    DocumentedCommand,
    is_run,
    list_commands,
    list_inline_commands,
    parse_quire,
)  # fmt: skip
from scripted_server import ScriptedServer, scripted_server

PROGRAMS = Path(os.environ.get("QUIRE_TEST_PROGRAMS") or Path(sys.executable).parent)
"""Folder of the `quire` that runs."""
DATA = Path(__file__).parents[1] / "importers" / "data"
WRITTEN_MODEL_URL = "http://127.0.0.1:11434/v1"
SHORTENED_ID = re.compile(r"01[a-zA-Z0-9]+…")
AGENTS = ("claude", "codex", "gemini", "my-agent", "opencode")
NAMED_CONVERSATION = "quire conversation edit --title harbour"
PREPARATIONS = {
    "quire context undo --redo": "quire context undo",
    "quire context show harbour": NAMED_CONVERSATION,
    "quire context show harbour --messages": NAMED_CONVERSATION,
    "quire tenant purge observatory --yes": (
        f"{NAMED_CONVERSATION} && quire export harbour --output harbour.jsonl && "
        "quire import harbour.jsonl --set tenant=observatory"
    ),
    "quire trust": "echo 'context_limit = 8000' > quire.toml",
    "quire trust revoke ~/gannet": (
        "mkdir ~/gannet && cd ~/gannet && echo 'context_limit = 8000' > quire.toml && quire trust"
    ),
}
"""What a reader of the page has done before the command."""
TYPED = {"quire conversation purge --value-from -": "not-in-any-conversation\n"}
"""What is typed into a command; nothing into the others."""
ASKS_IN_A_TERMINAL = ("quire hook install", "quire hook uninstall", "quire conversation purge --value-from -")
TIMEOUT_SECONDS = 120

COMMANDS = list_commands()
RUN_COMMANDS = [command for command in COMMANDS if is_run(command)]
CI_PAGES = ("README.md",)
"""Pages whose commands run in CI; test_every_command.py runs the example of every command in this process."""


def test_every_documented_command_is_run_or_listed_with_the_reason():
    unlisted = [command for command in COMMANDS if not is_run(command) and command.line not in NOT_RUN]
    assert unlisted == [], "add these to NOT_RUN in documented_commands.py, or write them so that they run"
    assert set(NOT_RUN) <= {command.line for command in COMMANDS}, "these are no longer in the docs"
    assert len(RUN_COMMANDS) >= 120


INLINE_COMMANDS = list_inline_commands()


def test_inline_commands_of_quire_have_names_and_options_that_exist():
    lines = [line for line in INLINE_COMMANDS if line.startswith("quire ")]
    assert len(lines) >= 120
    for line in lines:
        parse_quire(line)


@pytest.mark.parametrize("line", ["quire db verify", "quire context harbour", "quire scan --usage --since-when 30d"])
def test_a_command_that_does_not_exist_is_found(line: str):
    with pytest.raises(Exception, match=r"No such (command|option)"):
        parse_quire(line)


@pytest.mark.parametrize("line", [line for line in INLINE_COMMANDS if line.startswith("just ")])
def test_inline_recipes_exist(line: str):
    _, *words = shlex.split(PLACEHOLDER.sub("7", line))
    done = subprocess.run(
        [Path(sys.executable).with_name("just"), "--dry-run", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()] == []
    if words[0] == "bench" and words[1] != "7":
        program = (ROOT / "benchmarks" / f"{words[1]}.py").read_text() + (ROOT / "benchmarks/support.py").read_text()
        assert [word for word in words[2:] if word.startswith("--") and f'"{word}"' not in program] == []


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedServer]:
    with scripted_server("The spring tide comes with the new moon [#2].") as server:
        server.window = 4_096
        yield server


@pytest.fixture
def used_home(home_template: CliHome, tmp_path: Path) -> CliHome:
    """A home with conversations, transcripts of agents, an export, and agents that end at once."""
    made = copy_home(home_template, tmp_path / "home")
    for agent in AGENTS:
        program = made.path / "bin" / agent
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o755)
    shutil.copytree(DATA / "claude_code", made.path / ".claude" / "projects")
    shutil.copytree(DATA / "codex", made.path / ".codex" / "sessions")
    (made.project / "my_agent.py").write_text("import os\nos.environ['OPENAI_BASE_URL']\n")
    with zipfile.ZipFile(made.project / "export.zip", "w") as archive:
        archive.writestr("conversations.json", "[]")
    return made


def make_environment(home: CliHome, model: ScriptedServer) -> dict[str, str]:
    inherited = ("PYTHONPATH", "LANG", "TMPDIR") if "QUIRE_TEST_PROGRAMS" not in os.environ else ("LANG", "TMPDIR")
    return {
        **{name: os.environ[name] for name in inherited if name in os.environ},
        "HOME": str(home.path),
        "PATH": os.pathsep.join([str(PROGRAMS), str(home.path / "bin"), os.defpath]),
        "TZ": "UTC",
        "BROWSER": "true",
        "QUIRE_BASE_URL": model.url,
        "QUIRE_MODEL": "miller-1",
        "OPENAI_API_KEY": "none",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, marks=() if each.page in CI_PAGES else pytest.mark.nightly, id=f"{each.page}: {each.line}")
        for each in RUN_COMMANDS
    ],
)
def test_it_runs_as_written(command: DocumentedCommand, used_home: CliHome, model: ScriptedServer):
    line = SHORTENED_ID.sub(TIDES_ID, command.line).replace(WRITTEN_MODEL_URL, model.url)
    if line.startswith(ASKS_IN_A_TERMINAL):
        line += " --yes"
    environment = make_environment(used_home, model)
    if line.startswith("quire init"):
        used_home.settings.unlink()
    if line.startswith("quire serve") or "--watch" in line:
        run_until_interrupted(line, environment, used_home.project)
        return
    if command.line in PREPARATIONS:
        subprocess.run(PREPARATIONS[command.line], shell=True, env=environment, cwd=used_home.project, check=True)
    done = subprocess.run(
        line, shell=True, env=environment, cwd=used_home.project, input=TYPED.get(command.line, ""),
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr


def run_until_interrupted(line: str, environment: dict[str, str], folder: Path) -> None:
    """Runs a command that ends by Ctrl+C; interrupts it once it has printed a line."""
    words = [*line.removesuffix("&").split(), *(["--port", "0"] if "serve" in line else [])]
    with subprocess.Popen(
        words, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        executable=str(PROGRAMS / "quire"),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            if "serve" in line:
                wait_until_served(first.strip(), process)
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            process.kill()
    assert first
    assert "Traceback" not in first + rest
    assert process.returncode in (0, 130), first + rest


def wait_until_served(url: str, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS):
                return
        except urllib.error.HTTPError:
            # The page after the redirect needs a cookie, which this client does not keep.
            return
        except urllib.error.URLError:
            time.sleep(0.1)
