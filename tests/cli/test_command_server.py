"""Commands that the user's server forks: the same output, signals, and ways back to a process of their own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from documented_commands import ROOT
from test_run import PROGRAM, TIMEOUT_SECONDS, RunHome, run_home, start_serve  # noqa: F401 (a fixture)

from infra.sizes import IS_FULL_SIZE
from quire.cli.command_client import FORKED_COMMANDS, IS_SUPPORTED
from quire.model import Draft, Message, Usage
from quire.store import SqlStore

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not IS_SUPPORTED, reason="forks only on Linux")]

ALL_COMMANDS = [
    ["conversation", "list"],
    ["conversation", "list", "--json"],
    ["context", "show", "--messages", "tide"],
    ["context", "show", "--messages", "missing"],
    ["context", "show", "tide"],
    ["context", "why", "tide", "1"],
    ["search", "flood ähnlich"],
    ["search", "--no-such-option"],
    ["context", "show", "--usage", "--json"],
    ["memory", "search"],
    ["models", "gpt-4o"],
    ["context", "--help"],
]
COMMANDS = ALL_COMMANDS if IS_FULL_SIZE else [*ALL_COMMANDS[::3], ["search", "--no-such-option"]]
VARIABLES = [{}, {"COLUMNS": "50", "TZ": "Asia/Tokyo", "LANG": "C", "PYTHONIOENCODING": "ascii"}]


class ServedHome:
    """A home with a conversation, whose server forks commands."""

    def __init__(self, home: RunHome) -> None:
        self.home = home
        service = home.find_socket()
        self.socket = service.with_name(f"{service.stem}-commands.sock")

    def start(self, *words: str, **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [PROGRAM, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home.folder,
            env=self.home.build_environment(**variables),
        )

    def run(self, *words: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(*words, **variables)
        printed, noted = process.communicate("no\n", timeout=TIMEOUT_SECONDS)
        return process.returncode, printed, noted

    def find_process(self) -> int | None:
        """The process that commands are forked from."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                is_server = b"command_server" in path.read_bytes()
                if is_server and str(self.home.folder).encode() in (path.parent / "environ").read_bytes():
                    return int(path.parent.name)
            except OSError:
                continue
        return None

    def prepare(self) -> int:
        """Waits until commands are forked; returns the process that they are forked from."""
        self.run("conversation", "list")
        wait_for(self.socket.exists)
        process_id = self.find_process()
        assert process_id is not None
        return process_id

    def count_forks(self) -> int:
        """The time that forked commands have used: it grows with each."""
        stat = Path(f"/proc/{self.find_process()}/stat").read_text().rpartition(")")[2].split()
        return int(stat[13]) + int(stat[14])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
async def filled_home(run_home: RunHome) -> RunHome:  # noqa: F811 (the fixture)
    async with SqlStore.open(run_home.database_url) as store:
        await store.create_conversation("tide", title="Ebb and flood")
        reply = Draft(body=Message.assistant("On the flood, ähnlich."), usage=Usage(input_tokens=9, output_tokens=3))
        await store.append("tide", Draft(body=Message.user("When do we leave?")), reply)
    return run_home


@pytest.fixture
def served(filled_home: RunHome) -> Iterator[ServedHome]:
    with start_serve(filled_home):
        yield ServedHome(filled_home)


@pytest.mark.parametrize("variables", VARIABLES, ids=["plain", "narrow"])
def test_a_forked_command_prints_what_a_process_of_its_own_prints(filled_home: RunHome, variables: dict[str, str]):
    assert {words[0] for words in COMMANDS} <= set(FORKED_COMMANDS)
    with start_serve(filled_home):
        served = ServedHome(filled_home)
        served.prepare()
        forked = [served.run(*words, **variables) for words in COMMANDS]
        assert served.count_forks() > 0
    assert not served.socket.exists()
    assert forked == [served.run(*words, **variables) for words in COMMANDS]
    assert {code for code, *_ in forked} >= {0, 2}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_a_signal_ends_the_command_and_not_the_process_it_was_forked_from(served: ServedHome, number: signal.Signals):
    process_id = served.prepare()
    environ: Any = served.home.build_environment()
    command = pexpect.spawn(PROGRAM, ["conversation", "purge", "tide"], env=environ, timeout=TIMEOUT_SECONDS)
    command.expect_exact("Permanently erase all messages of tide?")
    children = Path(f"/proc/{process_id}/task/{process_id}/children")
    assert children.read_text() != ""
    if number is signal.SIGINT:
        command.sendintr()
    else:
        command.kill(number)
    command.expect(pexpect.EOF)
    command.close()
    assert (command.exitstatus, command.signalstatus) == ((1, None) if number is signal.SIGINT else (None, number))
    wait_for(lambda: children.read_text() == "")
    assert served.find_process() == process_id
    assert served.run("context", "show", "--messages", "tide")[0] == 0


def test_another_installation_runs_its_own_code(served: ServedHome, tmp_path: Path):
    served.prepare()
    before = served.count_forks()
    package = tmp_path / "site/quire"
    package.parent.mkdir()
    package.symlink_to(ROOT / "src/quire")
    code = "import sys; sys.argv = ['quire', 'conversation', 'list']; from quire.cli import main; main()"
    variables = {"PYTHONPATH": str(package.parent)}
    command = [sys.executable, "-c", code]
    environ = served.home.build_environment(**variables)
    printed = subprocess.run(command, capture_output=True, text=True, env=environ, check=True).stdout
    assert "Ebb and flood" in printed
    assert served.count_forks() == before


def test_changed_code_is_not_run_in_its_old_state(served: ServedHome):
    process_id = served.prepare()
    # A file of the installation that is newer than the process.
    source = ROOT / "src/quire/cli/command_groups.py"
    status = source.stat()
    os.utime(source, (time.time() + 60, time.time() + 60))
    try:
        assert "Ebb and flood" in served.run("conversation", "list")[1]
        wait_for(lambda: served.find_process() != process_id)
    finally:
        os.utime(source, (status.st_atime, status.st_mtime))


def test_a_request_that_is_cut_off_or_too_long_ends_nothing(served: ServedHome):
    process_id = served.prepare()
    for data in (b"", b"\x05\0\0\0ab", b"\xff\xff\xff\xff", b"\x03\0\0\0\0\0\0"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(served.socket))
            connection.sendall(data)
    assert "Ebb and flood" in served.run("conversation", "list")[1]
    assert served.find_process() == process_id
