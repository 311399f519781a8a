"""Archived messages that are shown again for one question: how they are written out, and which of them fit.

They stand in one labelled block, in the order of the log, each with its number and speaker under the day on which it
was said. What a message says cannot pass for the next one: a line that looks like a head is set off.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from quire.model import Entry, FilePart, ImagePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.view.labels import labelled
from quire.view.tokens import Counter

Piece = tuple[int, int]
"""Characters of a message's text: from, up to."""

_LOOKS_LIKE_A_HEAD = re.compile(
    r"(?:^|(?<=[\r\v\f\x1c-\x1e\x85\u2028\u2029]))(?=#\d+ |\[\d{1,2} [A-Z][a-z]{2} \d{4}\])", re.MULTILINE
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LABEL = 38
"""About what the label's two lines take; if it is more, the last message makes room."""
_LEAST = 8
"""No message with its number and speaker takes fewer tokens."""


class Candidate(NamedTuple):
    """An archived message that bears on the question. `pieces` are what is shown of it where the whole does not fit."""

    entry: Entry
    score: float
    pieces: tuple[Piece, ...] | None = None


def told(message: Message) -> str:
    """What a message says, in words: its texts, what its tools gave, and which it called."""
    return "\n".join(said for part in message.parts if (said := _told(part)))


def _told(part: Part) -> str:
    match part:
        case TextPart(text=text):
            return text
        case ToolResultPart(content=content):
            return "\n".join(_told(piece) for piece in content)
        case ToolCallPart(name=name, arguments=arguments):
            return f"[called {name} with {arguments}]"
        case ImagePart():
            return "[image]"
        case FilePart(name=name):
            return f"[file {name}]" if name else "[file]"
        case ThinkingPart():
            return ""


def recalled_text(shown: Iterable[Candidate]) -> str:
    """The block that a request carries; the same entries always give the same bytes."""
    return _block((candidate.entry.seq, _day(candidate.entry), _line(candidate)) for candidate in shown)


def _block(written: Iterable[tuple[int, str, str]]) -> str:
    """Number, day and line of each message, as one block in the order of the log."""
    lines: list[str] = []
    day = ""
    for _, today, line in sorted(written):
        if today != day:
            day = today
            lines.append(day)
        lines.append(line)
    return labelled("recalled", "\n".join(lines))


def _day(entry: Entry) -> str:
    """Written so that it takes few tokens: every day that is shown has one."""
    time = entry.time
    return f"[{time.day} {_MONTHS[time.month - 1]} {time.year}]"


def _line(candidate: Candidate) -> str:
    entry = candidate.entry
    message = entry.message
    text = told(message)
    if candidate.pieces is not None:
        text = _shown(text, candidate.pieces, entry.seq)
    speaker = " ".join(message.name.split()) if message.name else message.role
    return f"#{entry.seq} {speaker}: {_LOOKS_LIKE_A_HEAD.sub(' ', text)}"


def _shown(text: str, pieces: Sequence[Piece], number: int) -> str:
    """The pieces, with what is left out between them said, and the number by which it can be read."""
    said = "".join(f"{'' if start == 0 else ' … '}{text[start:end].strip()}" for start, end in pieces)
    ending = "" if pieces and pieces[-1][1] >= len(text) else " …"
    left_out = len(text) - sum(end - start for start, end in pieces)
    return f"{said}{ending} [{left_out} of {len(text)} characters left out; read #{number}]"


class Fitted(NamedTuple):
    candidate: Candidate
    tokens: int
    day: str
    line: str


def fitted_text(shown: Iterable[Fitted]) -> str:
    """As `recalled_text`, of what is written out already."""
    return _block((each.candidate.entry.seq, each.day, each.line) for each in shown)


def fit(candidates: Sequence[Candidate], *, room: int, counter: Counter) -> list[Fitted]:
    """Those that fit into `room`, taken in the order in which they are given: whole, else what matters of them."""
    left = room - _LABEL
    taken: list[Fitted] = []
    days: set[str] = set()
    for candidate in candidates:
        if left < _LEAST:
            break
        day = _day(candidate.entry)
        dated = 0 if day in days else counter.count(f"{day}\n")
        for form in _forms(candidate):
            line = _line(form)
            tokens = dated + counter.count(f"{line}\n")
            if tokens <= left:
                left -= tokens
                days.add(day)
                taken.append(Fitted(form, tokens, day, line))
                break
    return taken


def _forms(candidate: Candidate) -> tuple[Candidate, ...]:
    whole = candidate._replace(pieces=None)
    return (whole,) if candidate.pieces is None else (whole, candidate)
