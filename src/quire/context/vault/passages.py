"""Splits a note into passages (chunks) for search: by heading, bounded in length, with short ones merged.

Passages are consecutive and do not overlap; together they hold every word of the note. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from quire.context.vault.sections import Heading, TextSpan

MAX_PASSAGE_CHARS = 2_000
"""About 500 tokens: a few passages fit into a request with a conversation."""
MIN_PASSAGE_CHARS = 300
"""A shorter section is merged with the next one."""
TITLE_SEPARATOR = " > "

_PARAGRAPH_BREAK = re.compile(r"\n(?:[ \t\r]*\n)+")
_LINE_BREAK = re.compile(r"\n")
_WHITESPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class NotePassage:
    title: str
    """The note's title and the headings above the passage, outermost first."""
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    heading_path: tuple[str, ...]
    span: TextSpan

    @property
    def length(self) -> int:
        return self.span.end - self.span.start


def split_note(
    text: str, *, title: str, headings: Sequence[Heading], masked_text: str, start: int = 0
) -> list[NotePassage]:
    """Splits the text from `start` on; `masked_text` prevents cuts at blank lines within code."""
    chunks = _merge_short_chunks(
        part for section in _split_sections(text, headings, start) for part in _split_chunk(section, masked_text)
    )
    return [
        NotePassage(
            _format_title(title, chunk.heading_path),
            text[chunk.span.start : chunk.span.end].strip("\r\n"),
            chunk.span.start,
        )
        for chunk in chunks
    ]


def _format_title(title: str, heading_path: tuple[str, ...]) -> str:
    return TITLE_SEPARATOR.join(filter(None, heading_path if heading_path[:1] == (title,) else (title, *heading_path)))


def _split_sections(text: str, headings: Sequence[Heading], start: int) -> Iterator[_Chunk]:
    """The text directly below each heading, and before the first."""
    ends = [*(heading.start for heading in headings), len(text)]
    heading_paths = [(), *(heading.path for heading in headings)]
    for heading_path, end in zip(heading_paths, ends, strict=True):
        if text[start:end].strip():
            yield _Chunk(heading_path, TextSpan(start, end))
        start = end


def _split_chunk(chunk: _Chunk, masked_text: str) -> Iterator[_Chunk]:
    for span in _split_to_fit(chunk.span, masked_text, (_PARAGRAPH_BREAK, _LINE_BREAK, _WHITESPACE)):
        if masked_text[span.start : span.end].strip():
            yield _Chunk(chunk.heading_path, span)


def _split_to_fit(span: TextSpan, masked_text: str, separators: Sequence[re.Pattern[str]]) -> Iterator[TextSpan]:
    """Splits a span into parts that fit: at paragraphs, and where one is too long at lines, at whitespace, anywhere."""
    if span.end - span.start <= MAX_PASSAGE_CHARS:
        yield span
    elif not separators:
        for start in range(span.start, span.end, MAX_PASSAGE_CHARS):
            yield TextSpan(start, min(start + MAX_PASSAGE_CHARS, span.end))
    else:
        first, *finer = separators
        for part in _merge_spans(_split_at(span, masked_text, first)):
            yield from _split_to_fit(part, masked_text, finer)


def _split_at(span: TextSpan, masked_text: str, separator: re.Pattern[str]) -> Iterator[TextSpan]:
    start = span.start
    for gap in separator.finditer(masked_text, *span):
        yield TextSpan(start, gap.end())
        start = gap.end()
    if start < span.end:
        yield TextSpan(start, span.end)


def _merge_spans(parts: Iterable[TextSpan]) -> Iterator[TextSpan]:
    """Merges adjacent spans as far as they fit."""
    merged: TextSpan | None = None
    for part in parts:
        if merged and part.end - merged.start <= MAX_PASSAGE_CHARS:
            merged = TextSpan(merged.start, part.end)
            continue
        if merged:
            yield merged
        merged = part
    if merged:
        yield merged


def _merge_short_chunks(chunks: Iterable[_Chunk]) -> list[_Chunk]:
    """Merges short chunks with the next one, and a short last chunk with the one before."""
    merged: list[_Chunk] = []
    for chunk in chunks:
        if merged and merged[-1].length < MIN_PASSAGE_CHARS and _fits_together(merged[-1], chunk):
            merged[-1] = _merge_chunks(merged[-1], chunk)
        else:
            merged.append(chunk)
    if len(merged) > 1 and merged[-1].length < MIN_PASSAGE_CHARS and _fits_together(merged[-2], merged[-1]):
        merged[-2:] = [_merge_chunks(merged[-2], merged[-1])]
    return merged


def _fits_together(first: _Chunk, second: _Chunk) -> bool:
    return second.span.end - first.span.start <= MAX_PASSAGE_CHARS


def _merge_chunks(first: _Chunk, second: _Chunk) -> _Chunk:
    common = sum(
        1
        for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first.heading_path, second.heading_path, strict=False))
    )
    return _Chunk(first.heading_path[:common], TextSpan(first.span.start, second.span.end))
