"""Cuts a note into passages for search: by heading, none too long to be quoted and few too short to be found.

Passages follow each other without overlap, and together they hold every word of the note. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from quire.context.vault.sections import Heading, Span

LONGEST = 2_000
"""About 500 tokens: a few of them fit beside a conversation."""
SHORTEST = 300
"""A shorter section is joined with what follows it."""
BETWEEN = " > "

_GAP = re.compile(r"\n(?:[ \t\r]*\n)+")
_LINE = re.compile(r"\n")
_BLANK = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Passage:
    title: str
    """The note's title and the headings that the passage stands under, outermost first."""
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class _Piece:
    trail: tuple[str, ...]
    span: Span

    @property
    def length(self) -> int:
        return self.span.end - self.span.start


def passages(text: str, *, title: str, headings: Sequence[Heading], prose: str, start: int = 0) -> list[Passage]:
    """The passages from `start` on; `prose` is the masked text, so that code is not cut where a line in it is blank."""
    pieces = _joined(cut for piece in _sections(text, headings, start) for cut in _cut(piece, prose))
    return [
        Passage(_titled(title, piece.trail), text[piece.span.start : piece.span.end].strip("\r\n"), piece.span.start)
        for piece in pieces
    ]


def _titled(title: str, trail: tuple[str, ...]) -> str:
    return BETWEEN.join(filter(None, trail if trail[:1] == (title,) else (title, *trail)))


def _sections(text: str, headings: Sequence[Heading], start: int) -> Iterator[_Piece]:
    """What stands right under each heading, and before the first."""
    ends = [*(heading.start for heading in headings), len(text)]
    trails = [(), *(heading.trail for heading in headings)]
    for trail, end in zip(trails, ends, strict=True):
        if text[start:end].strip():
            yield _Piece(trail, Span(start, end))
        start = end


def _cut(piece: _Piece, prose: str) -> Iterator[_Piece]:
    for span in _fitting(piece.span, prose, (_GAP, _LINE, _BLANK)):
        if prose[span.start : span.end].strip():
            yield _Piece(piece.trail, span)


def _fitting(span: Span, prose: str, ends: Sequence[re.Pattern[str]]) -> Iterator[Span]:
    """A span in parts that fit, cut at paragraphs; where one is too long, at lines, then at blanks, then anywhere."""
    if span.end - span.start <= LONGEST:
        yield span
    elif not ends:
        for start in range(span.start, span.end, LONGEST):
            yield Span(start, min(start + LONGEST, span.end))
    else:
        first, *finer = ends
        for part in _filled(_split(span, prose, first)):
            yield from _fitting(part, prose, finer)


def _split(span: Span, prose: str, end: re.Pattern[str]) -> Iterator[Span]:
    start = span.start
    for gap in end.finditer(prose, *span):
        yield Span(start, gap.end())
        start = gap.end()
    if start < span.end:
        yield Span(start, span.end)


def _filled(parts: Iterable[Span]) -> Iterator[Span]:
    """Neighbours put together as far as they fit."""
    whole: Span | None = None
    for part in parts:
        if whole and part.end - whole.start <= LONGEST:
            whole = Span(whole.start, part.end)
            continue
        if whole:
            yield whole
        whole = part
    if whole:
        yield whole


def _joined(pieces: Iterable[_Piece]) -> list[_Piece]:
    """Short pieces together with the next, and a short last one with the one before."""
    kept: list[_Piece] = []
    for piece in pieces:
        if kept and kept[-1].length < SHORTEST and _fit(kept[-1], piece):
            kept[-1] = _together(kept[-1], piece)
        else:
            kept.append(piece)
    if len(kept) > 1 and kept[-1].length < SHORTEST and _fit(kept[-2], kept[-1]):
        kept[-2:] = [_together(kept[-2], kept[-1])]
    return kept


def _fit(first: _Piece, second: _Piece) -> bool:
    return second.span.end - first.span.start <= LONGEST


def _together(first: _Piece, second: _Piece) -> _Piece:
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first.trail, second.trail, strict=False)))
    return _Piece(first.trail[:common], Span(first.span.start, second.span.end))
