"""Finds the parts of a note: sections and blocks that a link can name, and passages (chunks) for search.

A section is a heading with everything below it. A block has an id. Headings match as in Obsidian: exactly as written if
possible, otherwise without regard to letter case and punctuation. Passages are consecutive and do not overlap; together
they hold every word of the note. Spans are positions in the full text.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from quire.context.front_matter import find_front_matter_end
from quire.context.vault.markdown_mask import mask_non_prose
from quire.context.vault.wikilinks import fold_name

MAX_PASSAGE_CHARS = 2_000
"""About 500 tokens: a few passages fit into a request with a conversation."""
MIN_PASSAGE_CHARS = 300
"""A shorter section is merged with the next one."""
TITLE_SEPARATOR = " > "

_HEADING = re.compile(r"^ {0,3}(?:(#{1,6})([ \t][^\n]*)?|(=+|-+)[ \t]*)\r?$", re.MULTILINE)
_NOT_A_HEADING = re.compile(r"\s|[-*+>#|=]|\d+[.)]|$")
"""Start of a line that an underline of dashes does not turn into a heading."""
_BLOCK_ID = re.compile(r"\^([A-Za-z0-9-]+)[ \t\r]*$", re.MULTILINE)
_BLANK_LINES = re.compile(r"(?:^[ \t\r]*\n)+", re.MULTILINE)
_LINE = re.compile(r"^", re.MULTILINE)
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]")
_PUNCTUATION = re.compile(r"[!\"#$%&()*+,.:;<=>?@^`{|}~/\[\]\\]")
_PARAGRAPH_BREAK = re.compile(r"\n(?:[ \t\r]*\n)+")
_LINE_BREAK = re.compile(r"\n")
_WHITESPACE = re.compile(r"\s+")


class TextSpan(NamedTuple):
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int
    path: tuple[str, ...]
    """The enclosing headings, outermost first, and itself."""
    start: int
    body_start: int
    """Start of the text below it."""
    end: int
    """End of its section: the next heading of the same or a higher level."""


class _HeadingMatch(NamedTuple):
    start: int
    end: int
    level: int
    text: str


def find_headings(text: str, *, masked_text: str | None = None, start: int | None = None) -> list[Heading]:
    """Finds all headings from `start`, by default after the front matter; `masked_text` saves masking it again."""
    start = find_front_matter_end(text) if start is None else start
    matches = list(_match_headings(text, mask_non_prose(text) if masked_text is None else masked_text, start))
    ends, paths = [len(text)] * len(matches), list[tuple[str, ...]]()
    above: list[int] = []
    """Indexes of the headings whose sections are open."""
    for at, match in enumerate(matches):
        while above and matches[above[-1]].level >= match.level:
            ends[above.pop()] = match.start
        above.append(at)
        paths.append(tuple(matches[each].text for each in above))
    return [
        Heading(match.text, match.level, path, match.start, min(match.end + 1, len(text)), end)
        for match, path, end in zip(matches, paths, ends, strict=True)
    ]


def _match_headings(text: str, masked_text: str, start: int, end: int | None = None) -> Iterator[_HeadingMatch]:
    for match in _HEADING.finditer(masked_text, start, len(masked_text) if end is None else end):
        if match[1]:
            words = text[match.start(2) : match.end(2)].strip() if match[2] is not None else ""
            # Without closing # characters.
            bare = words.rstrip("#")
            words = bare.rstrip() if not bare or bare[-1] in " \t" else words
            yield _HeadingMatch(*match.span(), len(match[1]), words)
            continue
        line = masked_text.rfind("\n", start, max(start, match.start() - 1)) + 1 or start
        written = text[line : match.start()].strip()
        # A setext heading: a line of text with a line of = or - below.
        if written and "\n" not in written and not _NOT_A_HEADING.match(masked_text[line : match.start()].lstrip(" ")):
            yield _HeadingMatch(line, match.end(), 1 if match[3][0] == "=" else 2, written)


def find_section(text: str, heading_path: Sequence[str]) -> TextSpan | None:
    """Finds the first section whose heading has the last name, and the others above it, in order."""
    if not heading_path:
        return None
    headings = find_headings(text)
    for normalize in (str.strip, normalize_heading):
        names = [normalize(name) for name in heading_path]
        for heading in headings:
            *above, own = (normalize(name) for name in heading.path)
            remaining = iter(above)
            if own == names[-1] and all(name in remaining for name in names[:-1]):
                return TextSpan(heading.start, heading.end)
    return None


def normalize_heading(text: str) -> str:
    return fold_name(_PUNCTUATION.sub(" ", text))


def find_block(text: str, block_id: str) -> TextSpan | None:
    """Finds the paragraph, list item, quote, table or code block with the id `^name`."""
    masked_text = mask_non_prose(text)
    for match in _match_block_ids(masked_text):
        if match[1].lower() != block_id.lower():
            continue
        line = text.rfind("\n", 0, match.start()) + 1
        if not text[line : match.start()].strip():
            # The id stands alone, below its block: a table, a quote, a list, code.
            return TextSpan(_paragraph_start(masked_text, len(masked_text[:line].rstrip())), match.end())
        if _LIST_ITEM.match(text, line):
            return TextSpan(line, _item_end(text, line))
        start = _paragraph_start(masked_text, line)
        lines = (each.start() for each in _LINE.finditer(masked_text, start, line))
        items = [each for each in lines if _LIST_ITEM.match(masked_text, each)]
        return TextSpan(items[-1] if items else start, match.end())
    return None


def find_block_ids(masked_text: str) -> list[str]:
    """The ids of all blocks in a masked text."""
    return [match[1] for match in _match_block_ids(masked_text)]


def _match_block_ids(masked_text: str) -> Iterator[re.Match[str]]:
    """Matches ids at the end of a line, after whitespace or alone."""
    return (
        match
        for match in _BLOCK_ID.finditer(masked_text)
        if masked_text[match.start() - 1 : match.start()] in ("", " ", "\t", "\n")
    )


def _paragraph_start(masked_text: str, position: int) -> int:
    """Start of the paragraph around `position`: after a blank line or a heading."""
    start = 0
    for gap in _BLANK_LINES.finditer(masked_text, 0, position):
        start = gap.end()
    for heading in _match_headings(masked_text, masked_text, start, position):
        start = min(heading.end + 1, position)
    return start


def _item_end(text: str, start: int) -> int:
    """End of a list item, including its nested items."""
    indent = _indent(text, start)
    position = end = _line_end(text, start)
    while position < len(text):
        below = position + 1
        position = _line_end(text, below)
        if not text[below:position].strip():
            break
        if _indent(text, below) <= indent:
            break
        end = position
    return end


def _indent(text: str, position: int) -> int:
    line = text[position : _line_end(text, position)].expandtabs(4)
    return len(line) - len(line.lstrip())


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


@dataclass(frozen=True, slots=True)
class NotePassage:
    title: str
    """The note's title and the headings above the passage, outermost first."""
    text: str
    start: int


class _Chunk(NamedTuple):
    heading_path: tuple[str, ...]
    start: int
    end: int

    @property
    def is_short(self) -> bool:
        return self.end - self.start < MIN_PASSAGE_CHARS


def split_note(
    text: str, *, title: str, headings: Sequence[Heading], masked_text: str, start: int = 0
) -> list[NotePassage]:
    """Splits the text from `start` on; `masked_text` prevents cuts at blank lines within code."""
    chunks: list[_Chunk] = []
    # The text before the first heading, and directly below each one.
    ends = [*(heading.start for heading in headings), len(text)]
    heading_paths = [(), *(heading.path for heading in headings)]
    for heading_path, end in zip(heading_paths, ends, strict=True):
        section = TextSpan(start, end)
        start = end
        if not text[section.start : end].strip():
            continue
        for span in _split_to_fit(section, masked_text, (_PARAGRAPH_BREAK, _LINE_BREAK, _WHITESPACE)):
            if masked_text[span.start : span.end].strip():
                chunk = _Chunk(heading_path, *span)
                merged = _merge_chunks(chunks[-1], chunk) if chunks and chunks[-1].is_short else None
                chunks[-1:] = [merged] if merged is not None else [*chunks[-1:], chunk]
    # A short chunk was merged with the next one; a short last chunk is merged with the one before.
    if len(chunks) > 1 and chunks[-1].is_short and (merged := _merge_chunks(*chunks[-2:])) is not None:
        chunks[-2:] = [merged]
    passages: list[NotePassage] = []
    for chunk in chunks:
        path = chunk.heading_path if chunk.heading_path[:1] == (title,) else (title, *chunk.heading_path)
        written = text[chunk.start : chunk.end].strip("\r\n")
        passages.append(NotePassage(TITLE_SEPARATOR.join(filter(None, path)), written, chunk.start))
    return passages


def _split_to_fit(span: TextSpan, masked_text: str, separators: Sequence[re.Pattern[str]]) -> Iterator[TextSpan]:
    """Splits a span into parts that fit: at paragraphs, and where one is too long at lines, at whitespace, anywhere."""
    if span.end - span.start <= MAX_PASSAGE_CHARS:
        yield span
    elif not separators:
        for start in range(span.start, span.end, MAX_PASSAGE_CHARS):
            yield TextSpan(start, min(start + MAX_PASSAGE_CHARS, span.end))
    else:
        first, *finer = separators
        start = end = span.start
        for stop in (*(gap.end() for gap in first.finditer(masked_text, *span)), span.end):
            # Adjacent parts stay together as far as they fit.
            if stop - start > MAX_PASSAGE_CHARS and end > start:
                yield from _split_to_fit(TextSpan(start, end), masked_text, finer)
                start = end
            end = stop
        if end > start:
            yield from _split_to_fit(TextSpan(start, end), masked_text, finer)


def _merge_chunks(first: _Chunk, second: _Chunk) -> _Chunk | None:
    """Both chunks as one, below the headings that they share, or None if that is too long."""
    if second.end - first.start > MAX_PASSAGE_CHARS:
        return None
    pairs = zip(first.heading_path, second.heading_path, strict=False)
    shared = tuple(name for name, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return _Chunk(shared, first.start, second.end)
