"""How far something has come, for whoever waits: on standard error, only on a terminal, and only after a second."""

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

PATIENCE = 1.0
"""What takes less is over before a bar would be read."""


class Progress:
    """Takes note of every step; draws nothing before `PATIENCE` has passed, and nothing at all where nobody looks."""

    def __init__(self, doing: str, *, seen: bool) -> None:
        self._doing, self._seen = doing, seen
        self._began = time.monotonic()
        self._bars: Bars | None = None

    def at(self, done: float, total: float | None = None) -> None:
        """So much of so much; without a total, that it goes on."""
        if not self._seen or (self._bars is None and time.monotonic() - self._began < PATIENCE):
            return
        if self._bars is None:
            self._bars = _bars()
            self._bars.start()
            self._bars.add_task(self._doing, total=total)
        self._bars.update(self._bars.task_ids[0], completed=done, total=total)

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()


def _bars() -> "Bars":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*shown, console=Console(file=sys.stderr), transient=True)


@contextmanager
def progress(doing: str) -> Generator[Progress]:
    made = Progress(doing, seen=sys.stderr.isatty())
    try:
        yield made
    finally:
        made.close()


@contextmanager
def waiting(doing: str) -> Generator[None]:
    """The same for what cannot say how far it is: a sign that something is going on."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(file=sys.stderr).status(doing):
        yield
