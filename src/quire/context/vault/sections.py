"""The parts of a note that a link can name: a heading with all below it, or a block with an id.

Spans are places in the note's whole text. Headings are compared as Obsidian does: letter case and punctuation make
no difference, unless the heading stands there exactly as written.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.context.front_matter import front_matter_end
from quire.context.vault.prose import masked
from quire.context.vault.resolve import folded

_HEADING = re.compile(r"^ {0,3}(?:(#{1,6})([ \t][^\n]*)?|(=+|-+)[ \t]*)\r?$", re.MULTILINE)
_NO_HEADING = re.compile(r"\s|[-*+>#|=]|\d+[.)]|$")
"""What begins a line that a line of dashes below does not make a heading."""
_BLOCK_ID = re.compile(r"\^([A-Za-z0-9-]+)[ \t\r]*$", re.MULTILINE)
_BLANK_LINES = re.compile(r"(?:^[ \t\r]*\n)+", re.MULTILINE)
_LINE = re.compile(r"^", re.MULTILINE)
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]")
_PUNCTUATION = re.compile(r"[!\"#$%&()*+,.:;<=>?@^`{|}~/\[\]\\]")


class Span(NamedTuple):
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int
    trail: tuple[str, ...]
    """The headings above it, outermost first, and itself."""
    start: int
    body: int
    """Where the text below it begins."""
    end: int
    """Where its section ends: at the next heading that is not below it."""


class _Mark(NamedTuple):
    start: int
    end: int
    level: int
    words: str


def headings(text: str, *, prose: str | None = None, start: int | None = None) -> list[Heading]:
    """All headings from `start` on, else after the front matter; `prose` is the masked text, where it is at hand."""
    start = front_matter_end(text) if start is None else start
    marks = list(_marks(text, masked(text) if prose is None else prose, start))
    ends = _ends([mark.start for mark in marks], [mark.level for mark in marks], len(text))
    found: list[Heading] = []
    above: list[Heading] = []
    for mark, end in zip(marks, ends, strict=True):
        while above and above[-1].level >= mark.level:
            above.pop()
        trail = (*(heading.text for heading in above), mark.words)
        found.append(Heading(mark.words, mark.level, trail, mark.start, min(mark.end + 1, len(text)), end))
        above.append(found[-1])
    return found


def _marks(text: str, prose: str, start: int, end: int | None = None) -> Iterator[_Mark]:
    for match in _HEADING.finditer(prose, start, len(prose) if end is None else end):
        if match[1]:
            yield _Mark(*match.span(), len(match[1]), _words(text, *match.span(2)))
            continue
        line = prose.rfind("\n", start, max(start, match.start() - 1)) + 1 or start
        written = text[line : match.start()].strip()
        # A heading can also be a line of text with a line of = or - below.
        if written and "\n" not in written and not _NO_HEADING.match(prose[line : match.start()].lstrip(" ")):
            yield _Mark(line, match.end(), 1 if match[3][0] == "=" else 2, written)


def _words(text: str, start: int, end: int) -> str:
    """What a heading says, without the marks that some write behind it too."""
    words = text[start:end].strip() if start >= 0 else ""
    bare = words.rstrip("#")
    return bare.rstrip() if not bare or bare[-1] in " \t" else words


def _ends(starts: Sequence[int], levels: Sequence[int], last: int) -> list[int]:
    """For each heading, where the next one stands that is not below it."""
    ends = [last] * len(starts)
    open_: list[int] = []
    for at, level in enumerate(levels):
        while open_ and levels[open_[-1]] >= level:
            ends[open_.pop()] = starts[at]
        open_.append(at)
    return ends


def section(text: str, trail: Sequence[str]) -> Span | None:
    """The section under headings that stand one below the other; the first that fits."""
    known = headings(text)
    for alike in (str.strip, plain_heading):
        wanted = [alike(name) for name in trail]
        for heading in known:
            if _leads(wanted, [alike(name) for name in heading.trail]):
                return Span(heading.start, heading.end)
    return None


def _leads(wanted: Sequence[str], trail: Sequence[str]) -> bool:
    """Whether a trail ends in the wanted heading and passes the others on its way, in order."""
    if not wanted or trail[-1:] != wanted[-1:]:
        return False
    above = iter(trail[:-1])
    return all(name in above for name in wanted[:-1])


def plain_heading(text: str) -> str:
    return folded(_PUNCTUATION.sub(" ", text))


def block(text: str, name: str) -> Span | None:
    """The paragraph, list item, quote, table or code that carries the id `^name`."""
    prose = masked(text)
    for match in _ids(prose):
        if match[1].lower() == name.lower():
            return _block_around(text, prose, match)
    return None


def block_ids(prose: str) -> list[str]:
    """The ids of all blocks in a masked text."""
    return [match[1] for match in _ids(prose)]


def _ids(prose: str) -> Iterator[re.Match[str]]:
    """An id stands at the end of a line, after a blank or alone."""
    return (
        match
        for match in _BLOCK_ID.finditer(prose)
        if prose[match.start() - 1 : match.start()] in ("", " ", "\t", "\n")
    )


def _block_around(text: str, prose: str, found: re.Match[str]) -> Span:
    line = text.rfind("\n", 0, found.start()) + 1
    alone = not text[line : found.start()].strip()
    if alone:  # The id of what stands above it: a table, a quote, a list, code.
        before = prose[:line].rstrip()
        return Span(_paragraph_start(prose, len(before)), found.end())
    if _ITEM.match(text, line):
        return Span(line, _item_end(text, line))
    start = _paragraph_start(prose, line)
    items = [item.start() for item in _lines_of(prose, start, line) if _ITEM.match(prose, item.start())]
    return Span(items[-1] if items else start, found.end())


def _paragraph_start(prose: str, place: int) -> int:
    """Where the paragraph begins that `place` stands in: after a blank line or a heading."""
    start = 0
    for gap in _BLANK_LINES.finditer(prose, 0, place):
        start = gap.end()
    for heading in _marks(prose, prose, start, place):
        start = min(heading.end + 1, place)
    return start


def _lines_of(text: str, start: int, end: int) -> Iterator[re.Match[str]]:
    return _LINE.finditer(text, start, end)


def _item_end(text: str, start: int) -> int:
    """Where a list item ends, with the items below it."""
    indent = _indent(text, start)
    place = end = _line_end(text, start)
    while place < len(text):
        below = place + 1
        place = _line_end(text, below)
        if not text[below:place].strip():
            break
        if _indent(text, below) <= indent:
            break
        end = place
    return end


def _indent(text: str, place: int) -> int:
    line = text[place : _line_end(text, place)].expandtabs(4)
    return len(line) - len(line.lstrip())


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end
