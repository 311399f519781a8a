"""Input of the chat: the `InputReader` protocol, the reader of pipes, and Ctrl-C handling.

The pipe reader echoes each line, so that the output reads as a conversation, and denies every approval request.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Protocol

from rich.text import Text

from quire.agent.approvals import ApprovalDecision, Deny
from quire.cli.output import sanitize

if TYPE_CHECKING:
    from rich.console import Console

    from quire.cli.chat.completion import CompletionSources
    from quire.model import ToolCallPart

PROMPT = "› "
CONTINUATION_PROMPT = "… "


class InputEnded(Exception):
    """The input has ended."""


class InputInterrupted(Exception):
    """Ctrl-C was pressed. Not a `KeyboardInterrupt`, which would end the event loop if raised in a task."""


class InputReader(Protocol):
    async def read(self, completions: "CompletionSources") -> str:
        """Reads one input; raises `InputEnded` at its end, and `InputInterrupted` at Ctrl-C on an empty line."""
        ...

    async def ask_approval(self, call: "ToolCallPart") -> ApprovalDecision:
        """Asks the user to approve a displayed call; raises `InputInterrupted` to stop the turn."""
        ...

    async def print_above_prompt(self, show: Callable[[], None]) -> None:
        """Calls `show` while `read` waits."""
        ...


class PipeReader:
    def __init__(self, stream: IO[str], console: "Console") -> None:
        self._stream, self._console = stream, console

    async def read(self, completions: "CompletionSources") -> str:
        lines = [await self._read_line()]
        while is_continued(lines[-1]):
            lines[-1] = lines[-1][:-1]
            lines.append(await self._read_line())
        for number, line in enumerate(lines):
            self._console.print(Text(f"{CONTINUATION_PROMPT if number else PROMPT}{sanitize(line)}", style="bold"))
        return "\n".join(lines)

    async def _read_line(self) -> str:
        line = await asyncio.to_thread(self._stream.readline)
        if not line:
            raise InputEnded
        return line.rstrip("\r\n")

    async def ask_approval(self, call: "ToolCallPart") -> ApprovalDecision:
        return Deny("The input is not a terminal, so approval is not possible.")

    async def print_above_prompt(self, show: Callable[[], None]) -> None:
        show()


def is_continued(line: str) -> bool:
    """Whether the line ends in an unescaped backslash, so that another line follows."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Generator[None]:
    """Makes Ctrl-C call `stop`, and restores the previous handler afterwards."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (NotImplementedError, RuntimeError, ValueError):  # Windows, and threads other than the first
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


@contextmanager
def disable_echo(stream: IO[str]) -> Generator[None]:
    """Turns the terminal's echo off, so that text typed during a reply does not appear in it."""
    if os.name != "posix" or not stream.isatty():
        yield
        return
    import termios

    number = stream.fileno()
    before = termios.tcgetattr(number)
    quiet = list(before)
    quiet[3] = before[3] & ~termios.ECHO
    try:
        termios.tcsetattr(number, termios.TCSADRAIN, quiet)
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(number, termios.TCSADRAIN, before)
