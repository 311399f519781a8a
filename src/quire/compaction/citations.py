"""Citations in summaries: `[#12]`, `[#12, #14]`, `[#12-#15]`, `[#12–15]`.

A citation of an unknown entry is removed from the text and counted. The others cite known entries only.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

_DASH = "[-–—]"
_NUMBER = "#?[0-9]+"
_ITEM = rf"{_NUMBER}(?:[ \t]*{_DASH}[ \t]*{_NUMBER})?"
CITATION = re.compile(rf"\[[ \t]*#[0-9]+(?:[ \t]*{_DASH}[ \t]*{_NUMBER})?(?:[ \t]*[,;][ \t]*{_ITEM})*[ \t]*\]")
_RANGE = re.compile(rf"([0-9]+)(?:[ \t]*{_DASH}[ \t]*#?([0-9]+))?")

_MAX_NUMBER_DIGITS = 15
"""Longer numbers cite nothing, and Python refuses to parse the longest of them."""
_CONTINUATION_CHARS = "#,;-–—0123456789"
_CONTINUATION = re.compile(r"[ \t]*[\]#,;–—0-9-]")
"""Text that could continue a citation before it."""
_UNKNOWN_CITATION = "[?]"
_CITED_FLAG = re.compile(b"\1")


class CheckedCitations(NamedTuple):
    text: str
    sources: tuple[int, ...]
    """Known entries that the text cites, in order."""
    dropped_count: int
    """Numbers and ranges that were removed, or narrowed, because they cite unknown entries."""


def check_citations(text: str, known_entries: Iterable[int]) -> CheckedCitations:
    """Removes citations of unknown entries. A range stays unchanged if both of its ends are known."""
    numbers = (
        known_entries if isinstance(known_entries, range) and known_entries.step == 1 else sorted(set(known_entries))
    )
    cited = bytearray(len(numbers))
    pieces: list[str] = []
    dropped = position = 0
    for match in CITATION.finditer(text):
        known_items: list[str] = []
        lost_count = 0
        for numeral, other in _RANGE.findall(match[0]):
            if max(len(numeral), len(other)) > _MAX_NUMBER_DIGITS:
                lost_count += 1
                continue
            first, last = sorted((int(numeral), int(other or numeral)))
            start, end = bisect_left(numbers, first), bisect_right(numbers, last)
            if start >= end:
                lost_count += 1
                continue
            cited[start:end] = b"\1" * (end - start)
            low, high = numbers[start], numbers[end - 1]
            lost_count += (low, high) != (first, last)
            known_items.append(f"#{low}" if low == high else f"#{low}-#{high}")
        pieces.append(text[position : match.start()])
        position = match.end()
        dropped += lost_count
        if not lost_count:
            pieces.append(match[0])
        elif known_items:
            pieces.append(f"[{', '.join(known_items)}]")
        else:
            # Nothing of the citation is left: blanks before it go, except indentation.
            while pieces and not pieces[-1].strip(" \t"):
                pieces.pop()
            before = pieces[-1].rstrip(" \t") if pieces else ""
            if before.endswith((*_CONTINUATION_CHARS, "[")) and _CONTINUATION.match(text, position):
                # The text before and after would join to another citation.
                pieces.append(_UNKNOWN_CITATION)
            elif before and not before.endswith("\n"):
                pieces[-1] = before
    pieces.append(text[position:])
    return CheckedCitations(
        "".join(pieces), tuple(numbers[flag.start()] for flag in _CITED_FLAG.finditer(cited)), dropped
    )


def find_cited_entries(text: str, *, last_entry: int) -> set[int]:
    """All numbers from 1 to `last_entry` that the text cites, with ranges expanded."""
    return set(check_citations(text, range(1, last_entry + 1)).sources)


def escape_citations(text: str) -> str:
    """Puts citations into round brackets, so that they cite nothing."""
    return CITATION.sub(lambda match: f"({match[0][1:-1]})", text)
