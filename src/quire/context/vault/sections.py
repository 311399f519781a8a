"""Finds the sections of a note that a link can name: a heading with everything below it, or a block with an id.

Spans are positions in the full text. Headings match as in Obsidian: exactly as written if possible, otherwise without
regard to letter case and punctuation.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.context.front_matter import find_front_matter_end
from quire.context.vault.markdown_mask import mask_non_prose
from quire.context.vault.wikilinks import fold_name

_HEADING = re.compile(r"^ {0,3}(?:(#{1,6})([ \t][^\n]*)?|(=+|-+)[ \t]*)\r?$", re.MULTILINE)
_NOT_A_HEADING = re.compile(r"\s|[-*+>#|=]|\d+[.)]|$")
"""Start of a line that an underline of dashes does not turn into a heading."""
_BLOCK_ID = re.compile(r"\^([A-Za-z0-9-]+)[ \t\r]*$", re.MULTILINE)
_BLANK_LINES = re.compile(r"(?:^[ \t\r]*\n)+", re.MULTILINE)
_LINE = re.compile(r"^", re.MULTILINE)
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]")
_PUNCTUATION = re.compile(r"[!\"#$%&()*+,.:;<=>?@^`{|}~/\[\]\\]")


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
    ends = _section_ends([match.start for match in matches], [match.level for match in matches], len(text))
    headings: list[Heading] = []
    above: list[Heading] = []
    for match, end in zip(matches, ends, strict=True):
        while above and above[-1].level >= match.level:
            above.pop()
        path = (*(heading.text for heading in above), match.text)
        headings.append(Heading(match.text, match.level, path, match.start, min(match.end + 1, len(text)), end))
        above.append(headings[-1])
    return headings


def _match_headings(text: str, masked_text: str, start: int, end: int | None = None) -> Iterator[_HeadingMatch]:
    for match in _HEADING.finditer(masked_text, start, len(masked_text) if end is None else end):
        if match[1]:
            yield _HeadingMatch(*match.span(), len(match[1]), _heading_text(text, *match.span(2)))
            continue
        line = masked_text.rfind("\n", start, max(start, match.start() - 1)) + 1 or start
        written = text[line : match.start()].strip()
        # A setext heading: a line of text with a line of = or - below.
        if written and "\n" not in written and not _NOT_A_HEADING.match(masked_text[line : match.start()].lstrip(" ")):
            yield _HeadingMatch(line, match.end(), 1 if match[3][0] == "=" else 2, written)


def _heading_text(text: str, start: int, end: int) -> str:
    """Text of a heading, without closing # characters."""
    words = text[start:end].strip() if start >= 0 else ""
    bare = words.rstrip("#")
    return bare.rstrip() if not bare or bare[-1] in " \t" else words


def _section_ends(starts: Sequence[int], levels: Sequence[int], last: int) -> list[int]:
    """For each heading, the start of the next one of the same or a higher level."""
    ends = [last] * len(starts)
    open_: list[int] = []
    for at, level in enumerate(levels):
        while open_ and levels[open_[-1]] >= level:
            ends[open_.pop()] = starts[at]
        open_.append(at)
    return ends


def find_section(text: str, heading_path: Sequence[str]) -> TextSpan | None:
    """Finds the first section below these nested headings."""
    headings = find_headings(text)
    for normalize in (str.strip, normalize_heading):
        names = [normalize(name) for name in heading_path]
        for heading in headings:
            if _matches_path(names, [normalize(name) for name in heading.path]):
                return TextSpan(heading.start, heading.end)
    return None


def _matches_path(names: Sequence[str], path: Sequence[str]) -> bool:
    """Whether a heading path ends in the last name and has the others before it, in order."""
    if not names or path[-1:] != names[-1:]:
        return False
    above = iter(path[:-1])
    return all(name in above for name in names[:-1])


def normalize_heading(text: str) -> str:
    return fold_name(_PUNCTUATION.sub(" ", text))


def find_block(text: str, block_id: str) -> TextSpan | None:
    """Finds the paragraph, list item, quote, table or code block with the id `^name`."""
    masked_text = mask_non_prose(text)
    for match in _match_block_ids(masked_text):
        if match[1].lower() == block_id.lower():
            return _find_block_span(text, masked_text, match)
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


def _find_block_span(text: str, masked_text: str, block_id: re.Match[str]) -> TextSpan:
    line = text.rfind("\n", 0, block_id.start()) + 1
    is_alone = not text[line : block_id.start()].strip()
    if is_alone:  # The id of the block above it: a table, a quote, a list, code.
        before = masked_text[:line].rstrip()
        return TextSpan(_paragraph_start(masked_text, len(before)), block_id.end())
    if _LIST_ITEM.match(text, line):
        return TextSpan(line, _item_end(text, line))
    start = _paragraph_start(masked_text, line)
    items = [
        item.start() for item in _iterate_lines(masked_text, start, line) if _LIST_ITEM.match(masked_text, item.start())
    ]
    return TextSpan(items[-1] if items else start, block_id.end())


def _paragraph_start(masked_text: str, position: int) -> int:
    """Start of the paragraph around `position`: after a blank line or a heading."""
    start = 0
    for gap in _BLANK_LINES.finditer(masked_text, 0, position):
        start = gap.end()
    for heading in _match_headings(masked_text, masked_text, start, position):
        start = min(heading.end + 1, position)
    return start


def _iterate_lines(text: str, start: int, end: int) -> Iterator[re.Match[str]]:
    return _LINE.finditer(text, start, end)


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
