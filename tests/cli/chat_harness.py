"""Shared by the chat tests: a console with readable output, sessions with a scripted model, a real terminal."""

import asyncio
import io
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import pexpect
import pyte
from rich.console import Console

from quire.agent.approvals import Approvals
from quire.cli.chat.runtime import ChatRuntime
from quire.cli.chat.screen import Screen
from quire.cli.chat.session import ChatSession
from quire.engine import Engine, EngineConfig
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel, ScriptStep

QUIRE_PROGRAM = Path(sys.executable).with_name("quire")
TERMINAL_COLUMNS, TERMINAL_LINES = 100, 40


def make_test_console(*, width: int = 80, terminal: bool = False) -> Console:
    return Console(
        file=io.StringIO(), width=width, height=TERMINAL_LINES, force_terminal=terminal, markup=False, highlight=False,
        color_system="standard" if terminal else None,
    )  # fmt: skip


def read_output(on: Console) -> str:
    """What was printed, without the blanks that fill lines up."""
    assert isinstance(on.file, io.StringIO)
    return "\n".join(line.rstrip() for line in on.file.getvalue().splitlines())


async def make_session(
    store: SqlStore, *script: ScriptStep, approvals: Approvals | None = None, **given: Any
) -> ChatSession:
    """A session in a fresh conversation with a model that follows a script."""
    named = {name: given.pop(name) for name in ("agent", "vault", "tools", "summarizer") if name in given}
    runners = given.pop("runners", ())
    repeat = given.pop("repeat", False)
    chosen = {"context_limit": 4_000, "context_background_threshold": None, **given}
    engine = Engine(store, EngineConfig.create(Settings(**chosen), runs_turns=True, **named))
    model = ScriptedModel(*script, repeat=repeat)
    runtime = ChatRuntime(
        engine, await engine.conversation(), runners=runners, approvals=approvals, make_model=lambda settings: model
    )
    return ChatSession(runtime, Screen(make_test_console()))


async def wait_until(condition: Callable[[], object]) -> None:
    """Polls for a condition that has no event."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def read_session_output(session: ChatSession) -> str:
    return read_output(session.screen.console)


class _FaintScreen(pyte.HistoryScreen):
    def select_graphic_rendition(self, *attributes: int, **given: Any) -> None:
        """pyte knows nothing of faint signs: they are grey here."""
        super().select_graphic_rendition(*(_GREY if each == _FAINT else each for each in attributes), **given)


_FAINT, _GREY = 2, 90


class Terminal:
    """A program in a terminal of its own: what is typed goes in, and the screen can be read as a person sees it."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], folder: Path, lines: int = TERMINAL_LINES
    ) -> None:
        self._screen = _FaintScreen(TERMINAL_COLUMNS, lines, history=10_000, ratio=0.5)
        self._screen.write_process_input = self._write_response  # type: ignore[method-assign]
        self._stream = pyte.ByteStream(self._screen)
        self._lock = Lock()
        self._search_start = 0
        self.raw = b""
        self._child = pexpect.spawn(
            command[0],
            list(command[1:]),
            env=dict(env),
            cwd=str(folder),
            dimensions=(lines, TERMINAL_COLUMNS),
            timeout=60,
        )
        self._reader_thread = Thread(target=self._read, daemon=True)
        self._reader_thread.start()

    def _write_response(self, data: str) -> None:
        """What a terminal says when a program asks where the cursor is."""
        os.write(self._child.child_fd, data.encode())

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._child.child_fd, 65_536)
            except OSError:
                return
            if not data:
                return
            with self._lock:
                self.raw += data
                self._stream.feed(data)

    def text(self) -> str:
        """All lines from the first, those that have scrolled away too."""
        with self._lock:
            above = [
                "".join(line[x].data for x in range(TERMINAL_COLUMNS)).rstrip() for line in self._screen.history.top
            ]
            return "\n".join([*above, *(line.rstrip() for line in self._screen.display)]).rstrip()

    def cells(self) -> list[list[pyte.screens.Char]]:
        """The screen cell by cell, with colors."""
        with self._lock:
            lines = [*self._screen.history.top, *(self._screen.buffer[y] for y in range(self._screen.lines))]
            return [[line[x] for x in range(TERMINAL_COLUMNS)] for line in lines]

    def type(self, text: str) -> None:
        os.write(self._child.child_fd, text.encode())

    def wait_for(self, expected: str | re.Pattern[str] | Callable[[str], bool], *, seconds: float = 60) -> str:
        """Waits until the screen shows it, after the previous match."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            text = self.text()
            if callable(expected):
                if expected(text):
                    return text
            else:
                pattern = re.compile(re.escape(expected)) if isinstance(expected, str) else expected
                if (found := pattern.search(text, self._search_start)) is not None:
                    self._search_start = found.end()
                    return text
            time.sleep(0.05)
        raise AssertionError(f"{expected!r} did not come; the screen shows:\n{self.text()}")

    def send_line(self, line: str, expected: str | re.Pattern[str], *, seconds: float = 60) -> str:
        """Types a line at the prompt, and waits for its output and the next prompt."""
        self.type(f"{line}\r")
        self.wait_for(expected, seconds=seconds)
        return self.wait_for(re.compile(r"^›$", re.MULTILINE), seconds=seconds)

    def wait_for_exit(self) -> int:
        self._reader_thread.join(10)
        self._child.wait()
        return int(self._child.exitstatus or 0)

    def close(self) -> None:
        self._child.close(force=True)
