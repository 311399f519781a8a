"""What a command prints: tables for people, one JSON document for programs, errors on the other stream.

Text that comes from a log, a file or a model is shown as text: it can neither style the terminal nor steer it. Rich is
imported when something is drawn.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 100
"""Columns where nobody says how wide the output is."""
NARROW = 60
"""Below so many columns a table leaves out what is only nice to know."""

Document = Mapping[str, Any]
Draw = Callable[["Console"], "Iterable[RenderableType]"]
Cell = "str | int | float | Text | None"

_UNSHOWABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, by which a text could move the cursor or set colours, and those that turn its direction."""


def give(document: Document, draw: Draw, *, as_json: bool) -> None:
    """The outcome of a command, in the form that was asked for."""
    if as_json:
        print_json(document)
        return
    console = console_on(sys.stdout)
    if console.is_terminal:
        for drawn in draw(console):
            console.print(drawn)
        return
    with console.capture() as captured:
        for drawn in draw(console):
            console.print(drawn)
    # Tables are filled up with spaces, which a pipe has no use for.
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def print_json(document: Document) -> None:
    written = json.dumps(document, ensure_ascii=False, indent=2)
    sys.stdout.write(_UNSHOWABLE.sub(_escaped, written) + "\n")


def _escaped(sign: "re.Match[str]") -> str:
    return f"\\u{ord(sign[0]):04x}"


def console_on(stream: IO[str]) -> "Console":
    """Colours only on a terminal, and none where `NO_COLOR` is set."""
    from rich.console import Console

    known_width = stream.isatty() or os.environ.get("COLUMNS")
    return Console(file=stream, width=None if known_width else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def note(text: str) -> None:
    """Something that is not the outcome itself: on the other stream, so that a pipe does not carry it."""
    print(plain(text), file=sys.stderr)  # noqa: T201 (this is where the command line prints)


def plain(text: str) -> str:
    """The text with a sign in place of every character that would steer the terminal."""
    return _UNSHOWABLE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def one_line(text: str, limit: int = 200) -> str:
    """The beginning of a text, on one line."""
    flat = " ".join(plain(text[: 4 * limit]).split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def text(said: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(plain(said), style=style)


def table(*columns: str, rows: Iterable[Sequence[Any]], right: Sequence[str] = (), wide: Sequence[str] = ()) -> "Table":
    """Columns in `right` hold numbers; those in `wide` may be broken over several lines, the others may not."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        folded = name in wide
        made.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=not folded,
            overflow="fold" if folded else "ellipsis",
            ratio=None,
        )
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def fields(pairs: Iterable[tuple[str, Any]]) -> "Table":
    """Names and values, one pair a line; those without a value are left out."""
    from rich.table import Table

    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(no_wrap=True, style="dim")
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None:
            made.add_row(name, _cell(value))
    return made


def _cell(value: Any) -> "Text":
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
            return Text(plain(str(value)))


def moment(microseconds: int | None) -> str:
    """A time of the log for people: where they are."""
    if microseconds is None:
        return ""
    return datetime.fromtimestamp(microseconds / 1_000_000, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def timestamp(microseconds: int | None) -> str | None:
    """The same for programs."""
    if microseconds is None:
        return None
    return datetime.fromtimestamp(microseconds / 1_000_000, tz=UTC).isoformat(timespec="microseconds")


def counted(number: int, thing: str) -> str:
    """`1 message`, `2 messages`, `3 memories`."""
    if number == 1:
        return f"1 {thing}"
    plural = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return f"{number:,} {plural}"
