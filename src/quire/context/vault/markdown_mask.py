"""Masks the parts of a Markdown text that are not prose: code, comments, math and escaped characters.

`mask_non_prose` preserves positions: it replaces every masked character, line breaks too, by `MASK_CHAR`. So patterns
are searched in the masked text, and their matches are read from the original. Linear in the length of any text.
"""

import re
from bisect import bisect_left
from functools import lru_cache

MASK_CHAR = "\x1a"
"""A control character: neither whitespace nor a letter nor Markdown syntax."""

WIKILINK_PATTERN = re.compile(r"\[\[((?:(?!\[\[|\]\]|[\r\n]).)+)\]\]")

_MASK_TRIGGERS = ("`", "~~~", "$", "\\", "%%", "<", "    ", "\t")
"""A text without any of these is all prose."""
_FENCE = re.compile(
    r"(?P<quote>(?:[ \t]*>)*)(?P<indent>[ \t]*)(?P<marks>(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)"
    r"(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})"
)
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])(?:[ \t]+|$)")
_NON_PARAGRAPH_LINE = re.compile(r" {0,3}(?:#{1,6}(?:[ \t]|$)|(?:[-*_][ \t]*){3,}$)")
_INLINE_MARKER = re.compile(r"[\\`<%$\[]")
_INLINE_PATTERNS = {
    "\\": re.compile(r"\\[!-/:-@\[-`{}~]"),
    "`": re.compile(r"`+"),
    "<": re.compile(r"<!--|<(?:pre|code)\b[^<>\n]*>", re.IGNORECASE),
    "%": re.compile(r"%%"),
    "$": re.compile(r"\$\$|\$(?=\S)"),
    "[": re.compile(r"\[\["),
}
_BACKTICKS = re.compile(r"`+")
_BLANK_LINE = re.compile(r"\n[ \t\r]*(?=\n)")
_MATH_END = re.compile(r"(?<=[^\s\\])\$(?!\d)")
_QUOTE_END = re.compile(r"^(?![ \t]*>)", re.MULTILINE)


def mask_non_prose(text: str) -> str:
    """Replaces everything that is not prose by `MASK_CHAR`."""
    if not any(trigger in text for trigger in _MASK_TRIGGERS):
        return text
    pieces: list[str] = []
    position = 0
    for start, end in _MaskScanner(text).scan():
        pieces += (text[position:start], MASK_CHAR * (end - start))
        position = end
    pieces.append(text[position:])
    return "".join(pieces)


class _MaskScanner:
    """Scans a text in one pass, line by line; a construct that spans lines advances it past them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._masked_spans: list[tuple[int, int]] = []
        self._in_paragraph = False
        """Whether the previous line is part of a paragraph, which indented code cannot interrupt."""
        self._item_indent = 0
        """Column at which the text of the current list item begins."""
        self._known_quote_end = -1
        self._backtick_runs: dict[int, list[int]] | None = None
        self._blank_lines = [match.start() for match in _BLANK_LINE.finditer(text)]
        self._missing_from: dict[str, int] = {}
        """For each end marker that was not found: the position from which it is missing, so that scans stay linear."""

    def scan(self) -> list[tuple[int, int]]:
        next_start = 0
        while (start := next_start) < len(self._text):
            end = self._line_end(start)
            next_start = end + 1
            line = self._text[start:end]
            if not line.strip():
                self._in_paragraph = False
                continue
            indent = _indent_width(line)
            if not self._in_paragraph:
                self._item_indent = min(self._item_indent, indent)
            if not self._in_paragraph and indent >= self._item_indent + 4:
                self._mask_span(start, end)
                continue
            fence = _FENCE.match(line)
            if fence and (fence["quote"] or fence["marks"] or indent < self._item_indent + 4):
                self._in_paragraph = False
                # It ends at the closing fence; without one, at the end of the enclosing quote or of the text.
                if fence["quote"] and end > self._known_quote_end:
                    # The end of the quoted lines from here on; searched once for each quote.
                    outside = _QUOTE_END.search(self._text, end + 1)
                    self._known_quote_end = max(end, outside.start() - 1) if outside else len(self._text)
                bound = self._known_quote_end if fence["quote"] else len(self._text)
                closing = _closing_fence(fence["fence"][0], len(fence["fence"])).search(self._text, end, bound)
                next_start = self._mask_span(start + fence.start("fence"), closing.end() if closing else bound) + 1
                continue
            if item := _LIST_ITEM.match(line):
                self._item_indent = min(_indent_width(line[: item.end()], whole=True), indent + 6)
            self._in_paragraph = not _NON_PARAGRAPH_LINE.match(line)
            next_start = self._scan_inline(start, end) + 1
        return self._masked_spans

    def _scan_inline(self, position: int, end: int) -> int:
        """Scans inline syntax. Returns the end of the line that it reaches, which may be a later one."""
        while char := _INLINE_MARKER.search(self._text, position, end):
            marker = _INLINE_PATTERNS[char[0]].match(self._text, char.start())
            position = self._mask_marker(marker[0], *marker.span()) if marker else char.end()
            if position > end:
                end = self._line_end(position)
        return end

    def _mask_marker(self, marker: str, start: int, position: int) -> int:
        """Masks the construct that a marker begins. Returns the position to continue at."""
        match marker[0]:
            case "\\":
                return self._mask_span(start, position)
            case "[":
                link = WIKILINK_PATTERN.match(self._text, start)
                return link.end() if link and "`" not in link[0] else position
            case "`":
                # Inline code ends at the next run of equally many backticks in the same paragraph.
                if self._backtick_runs is None:
                    self._backtick_runs = {}
                    for run in _BACKTICKS.finditer(self._text):
                        self._backtick_runs.setdefault(len(run[0]), []).append(run.start())
                runs = self._backtick_runs.get(len(marker), [])
                at = bisect_left(runs, position)
                is_closed = at < len(runs) and runs[at] < self._paragraph_end(position)
                stop = runs[at] + len(marker) if is_closed else None
            case "<":
                tag = marker.lower()
                stop = self._find_end(
                    "-->" if tag == "<!--" else "</pre>" if tag.startswith("<pre") else "</code>", position
                )
                if stop is None and tag == "<!--":
                    # An unclosed HTML comment at the start of a line extends to the end of the text.
                    before = self._text[max(0, start - 4) : start]
                    is_line_start = not before.rpartition("\n")[2].strip() and ("\n" in before or start < 4)
                    stop = len(self._text) if is_line_start else None
            case "%":
                stop = self._find_end("%%", position)
            case _ if marker == "$$":
                stop = self._find_end("$$", position)
            case _:
                bound = self._paragraph_end(position)
                is_missing = self._missing_from.get("$") == bound
                closing = None if is_missing else _MATH_END.search(self._text, position, bound)
                if closing is None:
                    self._missing_from["$"] = bound
                stop = closing.end() if closing is not None else None
        return position if stop is None else self._mask_span(start, stop)

    def _mask_span(self, start: int, end: int) -> int:
        self._masked_spans.append((start, end))
        return end

    def _find_end(self, marker: str, position: int) -> int | None:
        if position >= self._missing_from.get(marker, len(self._text) + 1):
            return None
        at = self._text.find(marker, position)
        if at < 0:
            self._missing_from[marker] = position
            return None
        return at + len(marker)

    def _paragraph_end(self, position: int) -> int:
        at = bisect_left(self._blank_lines, position)
        return self._blank_lines[at] if at < len(self._blank_lines) else len(self._text)

    def _line_end(self, position: int) -> int:
        end = self._text.find("\n", position)
        return len(self._text) if end < 0 else end


def _indent_width(line: str, *, whole: bool = False) -> int:
    """Width of a line's indentation, or of the `whole` line; a tab extends to the next multiple of four."""
    blanks = line if whole else line[: len(line) - len(line.lstrip(" \t"))]
    return len(blanks.expandtabs(4)) if "\t" in blanks else len(blanks)


@lru_cache(maxsize=256)
def _closing_fence(fence_char: str, length: int) -> re.Pattern[str]:
    return re.compile(rf"^(?:[ \t]*>)*[ \t]*{fence_char}{{{length},}}(?=[ \t\r]*$)", re.MULTILINE)
