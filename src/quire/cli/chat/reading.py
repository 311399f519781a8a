"""Where the chat's lines come from, when that is no terminal: a pipe or a file, line by line.

What is read is echoed, so that the output can be read as a conversation. Nobody is there to allow a tool.
"""

import asyncio
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Protocol

from rich.text import Text

from quire.agent.approvals import Deny, Verdict
from quire.cli.output import plain

if TYPE_CHECKING:
    from rich.console import Console

    from quire.cli.chat.completion import Choices
    from quire.model import ToolCallPart

PROMPT = "› "
MORE = "… "


class Left(Exception):
    """There is nothing more to read."""


class Interrupted(Exception):
    """Ctrl-C. No `KeyboardInterrupt`, which would end the event loop if it were raised in a task."""


class Reader(Protocol):
    async def read(self, choices: "Choices") -> str:
        """What was written; raises `Left` when somebody leaves, and `Interrupted` at Ctrl-C on an empty line."""
        ...

    async def allow(self, call: "ToolCallPart") -> Verdict:
        """Asks whether a call that is shown may be run; raises `Interrupted` if that is all to be stopped."""
        ...

    async def aside(self, show: Callable[[], None]) -> None:
        """Shows something while `read` waits."""
        ...


class PipeReader:
    def __init__(self, stream: IO[str], console: "Console") -> None:
        self._stream, self._console = stream, console

    async def read(self, choices: "Choices") -> str:
        lines = [await self._line()]
        while continues(lines[-1]):
            lines[-1] = lines[-1][:-1]
            lines.append(await self._line())
        for number, line in enumerate(lines):
            self._console.print(Text(f"{MORE if number else PROMPT}{plain(line)}", style="bold"))
        return "\n".join(lines)

    async def _line(self) -> str:
        line = await asyncio.to_thread(self._stream.readline)
        if not line:
            raise Left
        return line.rstrip("\r\n")

    async def allow(self, call: "ToolCallPart") -> Verdict:
        return Deny("The input is no terminal, so nobody can be asked.")

    async def aside(self, show: Callable[[], None]) -> None:
        show()


def continues(line: str) -> bool:
    """Whether another line follows: a backslash stands at the end, and is not itself behind one."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1
