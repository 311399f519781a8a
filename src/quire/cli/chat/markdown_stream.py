"""Streams a Markdown reply: complete blocks are printed once, and only the last, open block is redrawn.

The redrawn part never exceeds half of the screen, so that it neither flickers nor scrolls off; without a terminal
nothing is redrawn.
"""

import re
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from quire.cli.output import sanitize

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

REFRESHES_PER_SECOND = 8
_BLOCK_MARKER_PREFIX = re.compile(r"[\s\d.)*+>#=|`~_-]*")


class MarkdownStream:
    def __init__(self, console: "Console") -> None:
        self._console = console
        self._live: Live | None = None
        self._pending = ""
        self._printed_blocks = 0
        self._status: str | None = None

    def show_status(self, status: str) -> None:
        """Shows a spinner with a status until text comes."""
        self._status = status
        self._start_live()

    def write(self, text: str) -> None:
        self._status = None
        self._pending += sanitize(text)
        self._start_live()
        if "\n" in text:
            cut = find_stable_end(self._pending)
            stable, self._pending = self._pending[:cut], self._pending[cut:]
            self._print(stable)

    def finish(self) -> None:
        """Prints the open block and stops redrawing."""
        rest, self._pending, self._status = self._pending, "", None
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
        self._print(rest)
        self._printed_blocks = 0

    def _print(self, text: str) -> None:
        if not text.strip():
            return
        with self._pause_refresh():
            if self._printed_blocks:
                self._console.print()
            self._printed_blocks += 1
            self._console.print(Markdown(text))

    def _pause_refresh(self) -> AbstractContextManager[Any]:
        """Keeps the refresh thread from drawing during a print: Rich would lose the height of what is on the screen."""
        return nullcontext() if self._live is None else self._live._lock  # pyright: ignore[reportPrivateUsage]

    def _start_live(self) -> None:
        if self._live is None and self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._render,
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def _render(self) -> "RenderableType":
        if self._status is not None:
            return Spinner("dots", Text(sanitize(self._status), style="dim"))
        return _MarkdownTail(self._pending, gap=bool(self._printed_blocks)) if self._pending.strip() else Text("")


class _MarkdownTail:
    """Renders the last lines of a Markdown text."""

    def __init__(self, text: str, *, gap: bool) -> None:
        self._text, self._gap = text, gap

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        lines = console.render_lines(Markdown(self._text), options.update(height=None), pad=False)
        if self._gap:
            lines = [[], *lines]
        for line in lines[-max(1, console.height // 2) :]:
            yield from line
            yield Segment.line()


def find_stable_end(text: str) -> int:
    """Returns the end of the stable part: all blocks but the last, which the next chunk may continue.

    An unfinished last line that may still become a block marker (`1` of `1. first`) is not parsed, because it would end
    the block before it.
    """
    complete, newline, last_line = text.rpartition("\n")
    if _BLOCK_MARKER_PREFIX.fullmatch(last_line):
        text = complete + newline
    starts = [
        token.map[0] for token in _get_parser().parse(text) if token.level == 0 and token.map and token.nesting >= 0
    ]
    if len(starts) < 2:
        return 0
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[: starts[-1]]))


@lru_cache(maxsize=1)
def _get_parser() -> "MarkdownIt":
    """Creates a parser with the same options as Rich's."""
    from markdown_it import MarkdownIt

    return MarkdownIt().enable("strikethrough").enable("table")
