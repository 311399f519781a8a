"""A reply as it comes: finished blocks of its Markdown are printed for good, and only the open one is drawn again.

What is redrawn never grows beyond half of the screen, so that nothing flickers or is left behind; where there is no
terminal nothing is redrawn at all.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from quire.cli.output import plain

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

REFRESHES = 8
"""In a second."""


class Streaming:
    def __init__(self, console: "Console") -> None:
        self._console = console
        self._live: Live | None = None
        self._open = ""
        self._printed = 0
        self._label: str | None = None

    def wait(self, label: str) -> None:
        """Says what is waited for, until something comes."""
        self._label = label
        self._start()

    def say(self, text: str) -> None:
        self._label = None
        self._open += plain(text)
        self._start()
        if "\n" in text:
            cut = finished(self._open)
            done, self._open = self._open[:cut], self._open[cut:]
            self._print(done)

    def finish(self) -> None:
        """Prints what is open, and draws nothing any more."""
        rest, self._open, self._label = self._open, "", None
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
        self._print(rest)
        self._printed = 0

    def _print(self, text: str) -> None:
        if not text.strip():
            return
        if self._printed:
            self._console.print()
        self._printed += 1
        self._console.print(Markdown(text))

    def _start(self) -> None:
        if self._live is None and self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._drawn,
                refresh_per_second=REFRESHES,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def _drawn(self) -> "RenderableType":
        if self._label is not None:
            return Spinner("dots", Text(plain(self._label), style="dim"))
        return _Tail(self._open, gap=bool(self._printed)) if self._open.strip() else Text("")


class _Tail:
    """The last lines of a text in Markdown."""

    def __init__(self, text: str, *, gap: bool) -> None:
        self._text, self._gap = text, gap

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        lines = console.render_lines(Markdown(self._text), options.update(height=None), pad=False)
        if self._gap:
            lines = [[], *lines]
        for line in lines[-max(1, console.height // 2) :]:
            yield from line
            yield Segment.line()


def finished(text: str) -> int:
    """How far a text in Markdown is beyond change: all but its last block, which what comes next may continue."""
    starts = [token.map[0] for token in _parser().parse(text) if token.level == 0 and token.map and token.nesting >= 0]
    if len(starts) < 2:
        return 0
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[: starts[-1]]))


@lru_cache(maxsize=1)
def _parser() -> "MarkdownIt":
    """The one that Rich draws with, set as there."""
    from markdown_it import MarkdownIt

    return MarkdownIt().enable("strikethrough").enable("table")
