"""Runs docs/tutorial.md from start to end and compares the output of each command with the page.

In the page `…` matches anything on a line, and on its own line any number of lines. Lines of a chat that begin with `›`
are typed. `UPDATE_TUTORIAL=1` prints the actual output, for pasting.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from scripted_server import ScriptedServer, scripted_server

TUTORIAL_PAGE = Path(__file__).parents[2] / "docs/tutorial.md"
WRITTEN_URL = "http://127.0.0.1:8080/v1"
BLOCK = re.compile(r"^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)

REPLIES = {
    "Who lives": "The miller does.",
    "miller keep": "He keeps **every sixteenth sack**.",
    "<quire:messages ": "The user asks about water mills: 5,624 in 1086, and 12,000 in 1300 [#4].",
    "more mills": "1300, with 12,000 mills against 5,624 in 1086.",
    "What is a water mill": "A mill that grinds grain by the power of a river.",
    "How many": "5,624 in 1086, and 12,000 in 1300.",
    "wheels": "An undershot wheel stands in the stream, and the water pushes its lowest blades. " * 8,
    "stones": "The lower stone lies still; the upper one, the runner, turns above it and grinds. " * 8,
    "day": "He rises before the sun, opens the sluice, dresses the stones, and weighs the sacks. " * 8,
    "begin with": "With the question what a water mill is.",
}


class Command(NamedTuple):
    line: str
    expected: list[str]

    @property
    def typed(self) -> str:
        return "".join(f"{line.removeprefix('› ')}\n" for line in self.expected if line.startswith("› "))


def script_reply(newest: str) -> str:
    return next((reply.strip() for phrase, reply in REPLIES.items() if phrase in newest), "I do not know.")


def parse_commands(block: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        first, *rest = part.splitlines()
        yield Command(first, rest)


def build_pattern(expected: list[str]) -> re.Pattern[str]:
    lines = ["(?:.*\n)*?" if line == "…" else f"{re.escape(line).replace('…', '.*?')}\n" for line in expected]
    return re.compile("".join(lines))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server(script_reply) as server:
        server.window = 4_096
        yield server


@pytest.mark.nightly
def test_the_tutorial_does_what_it_says(tmp_path: Path, server: ScriptedServer):
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("QUIRE_", "XDG_", "COLUMNS")) and not name.endswith("_API_KEY")
    }
    programs = os.environ.get("QUIRE_TEST_PROGRAMS")
    if programs:  # The installed package, not this source.
        inherited.pop("PYTHONPATH", None)
    path = f"{programs or Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**inherited, "HOME": str(tmp_path), "PATH": path}
    ran = 0
    for block in BLOCK.finditer(TUTORIAL_PAGE.read_text()):
        if block["title"] is not None:
            path = tmp_path / block["title"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block["text"])
        elif block["kind"] == "console":
            for command in parse_commands(block["text"]):
                check_command(command, env, tmp_path, server.url)
                ran += 1
    assert ran >= 8


def check_command(command: Command, env: dict[str, str], folder: Path, url: str) -> None:
    done = subprocess.run(
        command.line.replace(WRITTEN_URL, url),
        shell=True,
        input=command.typed,
        capture_output=True,
        text=True,
        env=env,
        cwd=folder,
        check=False,
        timeout=60,
    )
    came = f"{done.stdout}{done.stderr}".replace(url, WRITTEN_URL).replace(str(folder), "~")
    came = "".join(f"{line.rstrip()}\n" for line in came.splitlines())
    if os.environ.get("UPDATE_TUTORIAL"):
        sys.__stdout__.write(f"$ {command.line}\n{came}\n")  # type: ignore[union-attr]
        return
    assert done.returncode == 0, came
    assert build_pattern(command.expected).fullmatch(came), f"$ {command.line}\n{came}"
