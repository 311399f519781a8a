"""Output of the commands: tables for people, one JSON document for programs, notes and progress on standard error.

Text from a log, a file or a model is sanitized: it can neither style the terminal nor send control sequences to it.
Rich is imported only when something is drawn.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

from quire.rows.control_characters import CONTROL_CHARACTERS, escape_control_characters

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as RichProgress
    from rich.table import Table
    from rich.text import Text

    from quire.model import Compaction

PIPE_COLUMNS = 100
"""Width of the output where it is unknown."""
NARROW_COLUMNS = 60
"""Below this width tables omit optional columns."""
WIDE_COLUMNS = 100
"""From this width tables have room for counts next to a title, and for long bars."""
PROGRESS_DELAY_SECONDS = 1.0
"""Delay before a progress bar appears; shorter work needs none."""
NO_CONVERSATION = (
    "There is no conversation yet. `quire run claude` records one, `quire import` reads those that agents have stored, "
    "and `quire chat` starts one."
)


class Verbatim(str):
    """Text that is printed without wrapped lines: a key, or the input of another program."""

    __slots__ = ()


DrawFunction = Callable[["Console"], "Iterable[RenderableType]"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a command prints: one document with `--json`, else what `draw` yields for people.

    A text in place of `draw` is printed as it is.
    """

    document: object
    draw: DrawFunction | str
    exit_code: int = 0


def print_result(result: Result, *, as_json: bool) -> None:
    if as_json:
        print_document(result.document)
    else:
        print_drawing(result.draw)


def print_drawing(draw: DrawFunction | str) -> None:
    from rich.console import Group

    console = make_console(sys.stdout)
    for renderable in [make_text(draw)] if isinstance(draw, str) else draw(console):
        if isinstance(renderable, Verbatim):
            sys.stdout.write(f"{sanitize(renderable)}\n")
            continue
        is_one_line = getattr(renderable, "no_wrap", None) is True
        if console.is_terminal:
            console.print(Group(renderable), soft_wrap=is_one_line)
        else:
            with console.capture() as captured:
                console.print(Group(renderable), soft_wrap=is_one_line)
            # Strip the spaces with which tables pad their lines.
            sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def print_document(document: object) -> None:
    """Prints a document as JSON: a value, a schema, or a dictionary of them. Only this does it for a command."""
    from pydantic_core import to_jsonable_python

    sys.stdout.write(format_json(to_jsonable_python(document)) + "\n")


def format_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return escape_control_characters(text)


def make_console(stream: IO[str]) -> "Console":
    """Creates a console with colors on a terminal only, and none where `NO_COLOR` is set."""
    from rich.console import Console

    known_width = stream.isatty() or os.environ.get("COLUMNS")
    return Console(file=stream, width=None if known_width else PIPE_COLUMNS, highlight=False, markup=False, emoji=False)


def print_note(text: str) -> None:
    """Prints to standard error what is not part of the result, so that pipes do not receive it."""
    print(sanitize(text), file=sys.stderr)  # noqa: T201 (this is where the command line prints)


def sanitize(text: str) -> str:
    """Replaces every control character by U+FFFD."""
    return CONTROL_CHARACTERS.sub("\ufffd", text.replace("\r\n", "\n"))


def to_one_line(text: str, limit: int = 200) -> str:
    """Joins a text into one line of at most `limit` characters."""
    flat = " ".join(sanitize(text[: 4 * limit]).split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def make_text(content: str, style: str = "", *, wrap: bool = True) -> "Text":
    """Without `wrap` a line stays one line, which a reader can copy: the terminal breaks it, or the pipe does not."""
    from quire.cli.wrapped_text import WrappedText

    return WrappedText(sanitize(content), style=style, no_wrap=not wrap)


def make_table(
    *columns: str, rows: Iterable[Sequence[Any]], right_aligned: Sequence[str] = (), wrapped: Sequence[str] = ()
) -> "Table":
    """Creates a table; cells of `wrapped` columns may take several lines, others are cut with an ellipsis.

    Right-aligned columns, which hold numbers, are never cut.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    cells = [[*map(_to_cell, row)] for row in rows]
    for index, name in enumerate(columns):
        fold, is_number = name in wrapped, name in right_aligned
        table.add_column(
            name,
            justify="right" if is_number else "left",
            no_wrap=not fold,
            overflow="fold" if fold else "ellipsis",
            min_width=max([len(name), *(row[index].cell_len for row in cells)]) if is_number else None,
        )
    for row in cells:
        table.add_row(*row)
    return table


def make_field_table(pairs: Iterable[tuple[str, Any]]) -> "Table":
    """Creates a table with one name and value per line; pairs without a value are omitted."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None:
            table.add_row(name, _to_cell(value))
    return table


def _to_cell(value: Any) -> "Text":
    from rich.text import Text

    match value:
        case Text():
            return value
        case None:
            return Text("")
        case bool():
            return Text("yes" if value else "no")
        case int():
            return Text(f"{value:,}")
        case float():
            return Text(f"{value:.3f}")
        case _:
            return make_text(str(value))


def format_local_time(microseconds: int | None) -> str:
    """Formats a timestamp of the log for people, in local time."""
    if microseconds is None:
        return ""
    return datetime.fromtimestamp(microseconds / 1_000_000, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def pluralize(count: int, noun: str) -> str:
    """`1 message`, `2 messages`, `3 memories`."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and not noun.endswith("ey") else f"{noun}s"
    return f"{count:,} {plural}"


def describe_unfinished(count: int) -> str:
    """That replies at the end of growing transcripts wait until their agents have written them."""
    return f"{pluralize(count, 'reply')} {'is' if count == 1 else 'are'} still being written"


class ProgressBar:
    """Progress bar that appears after `PROGRESS_DELAY_SECONDS`, and never where it is not visible."""

    def __init__(self, label: str, *, visible: bool) -> None:
        self._label, self._visible = label, visible
        self._started_at = time.monotonic()
        self._rich_progress: RichProgress | None = None

    def update(self, completed: float, total: float | None = None) -> None:
        """Sets the completed amount; without a total the bar is indeterminate."""
        if not self._visible or (
            self._rich_progress is None and time.monotonic() - self._started_at < PROGRESS_DELAY_SECONDS
        ):
            return
        if self._rich_progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._rich_progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
            self._rich_progress.start()
            self._rich_progress.add_task(self._label, total=total)
        self._rich_progress.update(self._rich_progress.task_ids[0], completed=completed, total=total)

    def close(self) -> None:
        if self._rich_progress is not None:
            self._rich_progress.stop()


@contextmanager
def show_progress(label: str) -> Generator[ProgressBar]:
    bar = ProgressBar(label, visible=sys.stderr.isatty())
    try:
        yield bar
    finally:
        bar.close()


@contextmanager
def show_spinner(label: str) -> Generator[None]:
    """Shows a spinner for work without known progress."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(file=sys.stderr).status(label):
        yield


def format_compaction(compaction: "Compaction") -> str:
    covers = compaction.covers
    freed = compaction.freed_tokens
    change = f"#{covers.first} to #{covers.last} archived" if covers else "long messages shortened"
    if covers and compaction.trigger == "edit":
        change = f"you edited the summary of #{covers.first} to #{covers.last}"
    saving = f", {pluralize(freed, 'token')} freed" if freed else ""
    return f"Compaction {compaction.number}: {change}{saving}"
