"""Which parts of a Markdown text are prose: not code, comments, math or what a backslash escapes.

`masked` keeps every place: what it hides is filled up, sign for sign, line breaks too. So a pattern is searched in the
masked text, and what it found is read from the text itself. Linear in the length of the text, whatever stands in it.
"""

import re
from bisect import bisect_left
from functools import lru_cache

FILLER = "\x1a"
"""Neither a blank nor a letter nor a sign of Markdown."""

WIKILINK = re.compile(r"\[\[((?:(?!\[\[|\]\]|[\r\n]).)+)\]\]")

_HIDING = ("`", "~~~", "$", "\\", "%%", "<", "    ", "\t")
"""Without one of these all of a text is prose."""
_FENCE = re.compile(
    r"(?P<quote>(?:[ \t]*>)*)(?P<indent>[ \t]*)(?P<marks>(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)"
    r"(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})"
)
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])(?:[ \t]+|$)")
_NO_PARAGRAPH = re.compile(r" {0,3}(?:#{1,6}(?:[ \t]|$)|(?:[-*_][ \t]*){3,}$)")
_SIGN = re.compile(r"[\\`<%$\[]")
_SIGNS = {
    "\\": re.compile(r"\\[!-/:-@\[-`{}~]"),
    "`": re.compile(r"`+"),
    "<": re.compile(r"<!--|<(?:pre|code)\b[^<>\n]*>", re.IGNORECASE),
    "%": re.compile(r"%%"),
    "$": re.compile(r"\$\$|\$(?=\S)"),
    "[": re.compile(r"\[\["),
}
_TICKS = re.compile(r"`+")
_BLANK_LINE = re.compile(r"\n[ \t\r]*(?=\n)")
_MATH_END = re.compile(r"(?<=[^\s\\])\$(?!\d)")
_QUOTE_END = re.compile(r"^(?![ \t]*>)", re.MULTILINE)


def masked(text: str) -> str:
    """The text with all that is no prose filled up."""
    if not any(sign in text for sign in _HIDING):
        return text
    pieces: list[str] = []
    place = 0
    for start, end in _Reading(text).hidden():
        pieces += (text[place:start], FILLER * (end - start))
        place = end
    pieces.append(text[place:])
    return "".join(pieces)


class _Reading:
    """One pass over a text, line by line; what spans lines moves it on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._hidden: list[tuple[int, int]] = []
        self._paragraph = False
        """Whether the line before is part of a paragraph, which indented code cannot interrupt."""
        self._item_indent = 0
        """Where the text of the list item begins that the lines belong to."""
        self._quoted_until = -1
        self._ticks: dict[int, list[int]] | None = None
        self._blank_lines = [match.start() for match in _BLANK_LINE.finditer(text)]
        self._absent: dict[str, int] = {}
        """For each end that was searched in vain, up to where; a later search need not go there again."""

    def hidden(self) -> list[tuple[int, int]]:
        place = 0
        while place < len(self._text):
            place = self._line(place, self._line_end(place))
        return self._hidden

    def _line(self, start: int, end: int) -> int:
        """Reads a line; where the next one begins."""
        line = self._text[start:end]
        if not line.strip():
            self._paragraph = False
            return end + 1
        indent = _width(line)
        self._leave_items(indent)
        if not self._paragraph and indent >= self._item_indent + 4:
            return self._hide(start, end) + 1
        fence = _FENCE.match(line)
        if fence and (fence["quote"] or fence["marks"] or indent < self._item_indent + 4):
            self._paragraph = False
            return self._hide(start + fence.start("fence"), self._fence_end(fence, end)) + 1
        if item := _ITEM.match(line):
            self._item_indent = min(_width(line[: item.end()], whole=True), indent + 6)
        self._paragraph = not _NO_PARAGRAPH.match(line)
        return self._inline(start, end) + 1

    def _leave_items(self, indent: int) -> None:
        if not self._paragraph:
            self._item_indent = min(self._item_indent, indent)

    def _fence_end(self, fence: re.Match[str], opened: int) -> int:
        """The end of the closing fence; without one, of the quote that it stands in, or of the text."""
        bound = self._quote_end(opened) if fence["quote"] else len(self._text)
        closing = _closing(fence["fence"][0], len(fence["fence"])).search(self._text, opened, bound)
        return closing.end() if closing else bound

    def _quote_end(self, place: int) -> int:
        """Where the lines end that are quoted from here on; searched once for each quote."""
        if place > self._quoted_until:
            outside = _QUOTE_END.search(self._text, place + 1)
            self._quoted_until = max(place, outside.start() - 1) if outside else len(self._text)
        return self._quoted_until

    def _inline(self, place: int, end: int) -> int:
        """Reads a line's text; the end of the line where it comes out, which can be a later one."""
        while sign := _SIGN.search(self._text, place, end):
            whole = _SIGNS[sign[0]].match(self._text, sign.start())
            place = self._sign(whole[0], *whole.span()) if whole else sign.end()
            if place > end:
                end = self._line_end(place)
        return end

    def _sign(self, sign: str, start: int, place: int) -> int:
        """Hides what a sign begins; where to read on."""
        match sign[0]:
            case "\\":
                return self._hide(start, place)
            case "[":
                link = WIKILINK.match(self._text, start)
                return link.end() if link and "`" not in link[0] else place
            case "`":
                stop = self._ticks_end(place, len(sign))
            case "<":
                stop = self._element_end(sign.lower(), start, place)
            case "%":
                stop = self._end_of("%%", place)
            case _:
                stop = self._end_of("$$", place) if sign == "$$" else self._math_end(place)
        return place if stop is None else self._hide(start, stop)

    def _element_end(self, sign: str, start: int, place: int) -> int | None:
        if sign != "<!--":
            return self._end_of("</pre>" if sign.startswith("<pre") else "</code>", place)
        stop = self._end_of("-->", place)
        # HTML goes on to the end of the text where nothing closes a comment that begins a line.
        return len(self._text) if stop is None and self._begins_line(start) else stop

    def _hide(self, start: int, end: int) -> int:
        self._hidden.append((start, end))
        return end

    def _end_of(self, sign: str, place: int) -> int | None:
        if place >= self._absent.get(sign, len(self._text) + 1):
            return None
        at = self._text.find(sign, place)
        if at < 0:
            self._absent[sign] = place
            return None
        return at + len(sign)

    def _ticks_end(self, place: int, length: int) -> int | None:
        """Code in a line ends at the next run of as many backticks, in the same paragraph."""
        if self._ticks is None:
            self._ticks = {}
            for run in _TICKS.finditer(self._text):
                self._ticks.setdefault(len(run[0]), []).append(run.start())
        runs = self._ticks.get(length, [])
        at = bisect_left(runs, place)
        return runs[at] + length if at < len(runs) and runs[at] < self._paragraph_end(place) else None

    def _math_end(self, place: int) -> int | None:
        bound = self._paragraph_end(place)
        if self._absent.get("$") == bound:
            return None
        found = _MATH_END.search(self._text, place, bound)
        if found is None:
            self._absent["$"] = bound
        return found.end() if found else None

    def _paragraph_end(self, place: int) -> int:
        at = bisect_left(self._blank_lines, place)
        return self._blank_lines[at] if at < len(self._blank_lines) else len(self._text)

    def _begins_line(self, place: int) -> bool:
        before = self._text[max(0, place - 4) : place]
        return not before.rpartition("\n")[2].strip() and ("\n" in before or place < 4)

    def _line_end(self, place: int) -> int:
        end = self._text.find("\n", place)
        return len(self._text) if end < 0 else end


def _width(line: str, *, whole: bool = False) -> int:
    """How far a line is indented, or how wide it is; a tab reaches to the next multiple of four."""
    blanks = line if whole else line[: len(line) - len(line.lstrip(" \t"))]
    return len(blanks.expandtabs(4)) if "\t" in blanks else len(blanks)


@lru_cache(maxsize=256)
def _closing(sign: str, length: int) -> re.Pattern[str]:
    return re.compile(rf"^(?:[ \t]*>)*[ \t]*{sign}{{{length},}}(?=[ \t\r]*$)", re.MULTILINE)
