"""What tests of the chat share: a console whose output can be read, talks with a scripted model, a real terminal."""

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
from quire.cli.chat.screen import Screen
from quire.cli.chat.session import Session
from quire.cli.chat.talk import Talk
from quire.engine import Engine
from quire.log import Store
from quire.settings import Settings
from quire.testing.scripted import ScriptedModel, Step

QUIRE = Path(sys.executable).with_name("quire")
COLUMNS, LINES = 100, 40


def console(*, width: int = 80, terminal: bool = False) -> Console:
    return Console(
        file=io.StringIO(), width=width, height=LINES, force_terminal=terminal, markup=False, highlight=False,
        color_system="standard" if terminal else None,
    )  # fmt: skip


def printed(on: Console) -> str:
    """What was printed, without the blanks that fill lines up."""
    assert isinstance(on.file, io.StringIO)
    return "\n".join(line.rstrip() for line in on.file.getvalue().splitlines())


async def session_on(store: Store, *script: Step, approvals: Approvals | None = None, **given: Any) -> Session:
    """A session in a fresh conversation with a model that follows a script."""
    named = {name: given.pop(name) for name in ("agent", "vault", "tools", "summarizer") if name in given}
    runners = given.pop("runners", ())
    repeat = given.pop("repeat", False)
    chosen = {"context_limit": 4_000, "context_background_threshold": None, **given}
    engine = Engine(store, settings=Settings(**chosen), **named)
    model = ScriptedModel(*script, repeat=repeat)
    talk = Talk(
        engine, await engine.conversation(), runners=runners, approvals=approvals, make_model=lambda settings: model
    )
    return Session(talk, Screen(console()))


async def until(condition: Callable[[], object]) -> None:
    """Waits for what no event tells."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def shown(session: Session) -> str:
    return printed(session.screen.console)


class _Screen(pyte.HistoryScreen):
    def select_graphic_rendition(self, *attributes: int, **given: Any) -> None:
        """pyte knows nothing of faint signs: they are grey here."""
        super().select_graphic_rendition(*(_GREY if each == _FAINT else each for each in attributes), **given)


_FAINT, _GREY = 2, 90


class Terminal:
    """A program in a terminal of its own: what is typed goes in, and the screen can be read as a person sees it."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], folder: Path, lines: int = LINES) -> None:
        self._screen = _Screen(COLUMNS, lines, history=10_000, ratio=0.5)
        self._screen.write_process_input = self._answer  # type: ignore[method-assign]
        self._stream = pyte.ByteStream(self._screen)
        self._lock = Lock()
        self._seen = 0
        self.raw = b""
        self._child = pexpect.spawn(
            command[0], list(command[1:]), env=dict(env), cwd=str(folder), dimensions=(lines, COLUMNS), timeout=60
        )
        self._pump = Thread(target=self._read, daemon=True)
        self._pump.start()

    def _answer(self, data: str) -> None:
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
            above = ["".join(line[x].data for x in range(COLUMNS)).rstrip() for line in self._screen.history.top]
            return "\n".join([*above, *(line.rstrip() for line in self._screen.display)]).rstrip()

    def cells(self) -> list[list[pyte.screens.Char]]:
        """The same sign by sign, with colours."""
        with self._lock:
            lines = [*self._screen.history.top, *(self._screen.buffer[y] for y in range(self._screen.lines))]
            return [[line[x] for x in range(COLUMNS)] for line in lines]

    def type(self, text: str) -> None:
        os.write(self._child.child_fd, text.encode())

    def wait(self, wanted: str | re.Pattern[str] | Callable[[str], bool], *, seconds: float = 60) -> str:
        """Until the screen shows it, after all that was waited for before."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            text = self.text()
            if callable(wanted):
                if wanted(text):
                    return text
            else:
                pattern = re.compile(re.escape(wanted)) if isinstance(wanted, str) else wanted
                if (found := pattern.search(text, self._seen)) is not None:
                    self._seen = found.end()
                    return text
            time.sleep(0.05)
        raise AssertionError(f"{wanted!r} did not come; the screen shows:\n{self.text()}")

    def say(self, line: str, wanted: str | re.Pattern[str], *, seconds: float = 60) -> str:
        """Types a line at the prompt, and waits for what it leads to and for the next prompt."""
        self.type(f"{line}\r")
        self.wait(wanted, seconds=seconds)
        return self.wait(re.compile(r"^›$", re.MULTILINE), seconds=seconds)

    def end(self) -> int:
        self._pump.join(10)
        self._child.wait()
        return int(self._child.exitstatus or 0)

    def close(self) -> None:
        self._child.close(force=True)
