"""Command lines, signals, encodings and paths of other operating systems, as far as they can run on this one."""

import ast
import asyncio
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quire
from quire.cli import hook
from quire.cli.platforms import call_on_signals, join_command, split_command
from quire.db.database_url import parse_database_url
from quire.errors import InvalidConfiguration
from quire.server.addresses import bind_socket
from quire.server.lifecycle import call_on_exit

SOURCE = Path(quire.__file__).parent

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
    assert hook.build_command("codex") == f"{tmp_path}/quire.exe hook codex"


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


@pytest.mark.parametrize("has_readers", [True, False])
async def test_a_server_notices_the_end_of_its_parent_also_where_the_loop_watches_no_processes(
    has_readers: bool, monkeypatch: pytest.MonkeyPatch
):
    if not has_readers:
        monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse_signals)
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    process.start()
    ended = asyncio.Event()
    call_on_exit(process.sentinel, ended.set)
    await asyncio.sleep(0)
    assert not ended.is_set()
    process.kill()
    await asyncio.wait_for(ended.wait(), 30)
    await asyncio.to_thread(process.join)


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_a_port_in_use_is_refused_on_every_system(platform: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", platform)
    with bind_socket("127.0.0.1", 0) as listener:
        options = listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert bool(options) == (platform == "linux")
        with pytest.raises(InvalidConfiguration, match="Choose another port"):
            bind_socket("127.0.0.1", listener.getsockname()[1])


def test_text_files_have_an_encoding_that_does_not_depend_on_the_system():
    """Without one, Windows reads and writes text in its own code page."""
    calls = [
        (path.name, node)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and opens_text(node)
    ]
    assert len(calls) > 10
    assert {name for name, node in calls if not names_encoding(node)} == {"hook_service.py"}


def opens_text(node: ast.Call) -> bool:
    match node.func:
        case ast.Attribute(attr="read_text" | "write_text"):
            return True
        case ast.Name(id="open") | ast.Attribute(attr="open"):
            modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
            return any(mode in ("r", "w", "a", "x", "r+", "w+", "a+") for mode in modes)
        case _:
            return False


def names_encoding(node: ast.Call) -> bool:
    names = {each.arg for each in node.keywords}
    constants = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
    return "encoding" in names or any(value.startswith("utf-8") for value in constants)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437", "utf-8"])
def test_a_terminal_without_unicode_gets_question_marks(encoding: str, tmp_path: Any):
    environ = {"HOME": str(tmp_path), "PATH": "", "PYTHONIOENCODING": encoding, "PYTHONPATH": os.pathsep.join(sys.path)}
    outcome = subprocess.run(
        [sys.executable, "-m", "quire", "doctor", "--offline", "--set", "model=gpt-4o"],
        env=environ,
        capture_output=True,
        cwd=tmp_path,
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
from quire.plugins import load_plugins
assert "scan" in load_plugins("quire.commands")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
