"""Command lines, signals, encodings and paths of other operating systems, as far as they can run on this one."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cli import hook_settings
from quire.cli.platforms import call_on_signals, join_command, split_command
from quire.log.database_url import parse_database_url

WINDOWS_WORDS = st.text(st.characters(codec="ascii", exclude_characters='"\x00\r\n\t'), min_size=1).filter(
    lambda word: not word.endswith("\\") and word.strip(" ") == word and "'" not in word
)


@pytest.mark.parametrize(
    ("path", "is_windows", "expected"),
    [
        (PureWindowsPath(r"C:\Program Files\Quire\quire.exe"), True, r'"C:\Program Files\Quire\quire.exe" hook codex'),
        (PureWindowsPath(r"C:\Users\ada\quire.exe"), True, r"C:\Users\ada\quire.exe hook codex"),
        (PurePosixPath("/Users/ada/Library/my tools/quire"), False, "'/Users/ada/Library/my tools/quire' hook codex"),
    ],
)
def test_a_hooks_command_is_quoted_for_its_shell(path: Any, is_windows: bool, expected: str):
    command = join_command([str(path), "hook", "codex"], is_windows=is_windows)
    assert command == expected
    assert split_command(command, is_windows=is_windows)[0] == str(path)


@given(words=st.lists(st.text(min_size=1), min_size=1))
def test_posix_commands_are_split_into_the_words_that_were_joined(words: list[str]):
    assert split_command(join_command(words, is_windows=False), is_windows=False) == words


@given(words=st.lists(WINDOWS_WORDS, min_size=1))
def test_windows_commands_are_split_into_the_words_that_were_joined(words: list[str]):
    assert split_command(join_command(words, is_windows=True), is_windows=True) == words


def test_a_program_with_the_suffix_of_windows_is_recognized(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "quire.exe")])
    assert hook_settings.build_command("codex") == f"{tmp_path}/quire.exe hook codex"


@pytest.mark.parametrize("path", [r"C:\Users\ada\AppData\Local\quire\quire.db", "/Users/ada/Library/quire.db"])
def test_database_urls_hold_paths_of_every_system(path: str):
    assert parse_database_url(f"sqlite:///{path}").database == path


def refuse_signals(*_: Any) -> None:
    raise NotImplementedError


@pytest.mark.parametrize("has_signals", [True, False])
async def test_a_signal_stops_a_command_also_where_the_loop_has_none(
    has_signals: bool, monkeypatch: pytest.MonkeyPatch
):
    before = signal.getsignal(signal.SIGTERM)
    loop = asyncio.get_running_loop()
    if not has_signals:
        monkeypatch.setattr(loop, "add_signal_handler", refuse_signals)
        monkeypatch.setattr(loop, "remove_signal_handler", refuse_signals)
    stopped = asyncio.Event()
    with call_on_signals(stopped.set):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stopped.wait(), 10)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437", "utf-8"])
def test_a_terminal_without_unicode_gets_question_marks(encoding: str, tmp_path: Any):
    environ = {"HOME": str(tmp_path), "PATH": "", "PYTHONIOENCODING": encoding, "PYTHONPATH": os.pathsep.join(sys.path)}
    outcome = subprocess.run(
        [sys.executable, "-m", "quire", "doctor", "--offline"], env=environ, capture_output=True, cwd=tmp_path
    )
    assert b"Traceback" not in outcome.stderr
    arrow = "→".encode(encoding, errors="replace")
    assert arrow + b" Set it" in outcome.stdout


def test_commands_can_be_imported_without_the_modules_of_posix():
    modules = ("fcntl", "termios", "pwd", "grp", "resource")
    code = f"""
import sys
for name in {modules}:
    sys.modules[name] = None
import importlib
from quire.cli.app import COMMAND_GROUPS, SINGLE_COMMANDS
for name in (*COMMAND_GROUPS, *SINGLE_COMMANDS):
    importlib.import_module("quire.cli." + ("import_" if name == "import" else name))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
