"""Citations in summaries: `[#12]`, `[#12, #14]`, `[#12-#15]`, `[#12–15]`.

A citation that names no known entry is taken out of the text and counted. What is left names known entries only.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

_DASH = "[-–—]"
_NUMBER = "#?[0-9]+"
_ITEM = rf"{_NUMBER}(?:[ \t]*{_DASH}[ \t]*{_NUMBER})?"
CITATION = re.compile(rf"\[[ \t]*#[0-9]+(?:[ \t]*{_DASH}[ \t]*{_NUMBER})?(?:[ \t]*[,;][ \t]*{_ITEM})*[ \t]*\]")
_ITEMS = re.compile(rf"([0-9]+)(?:[ \t]*{_DASH}[ \t]*#?([0-9]+))?")

_DIGITS = 15
"""Longer numbers name nothing, and the longest of them Python refuses to read."""
_CONTINUES = "#,;-–—0123456789"
_FOLLOWING = re.compile(r"[ \t]*[\]#,;–—0-9-]")
"""What could go on with a citation that was opened before."""
_UNKNOWN = "[?]"
_MARKED = re.compile(b"\1")


class Checked(NamedTuple):
    text: str
    sources: tuple[int, ...]
    """The known entries that the text cites, in order."""
    dropped: int
    """How many numbers and ranges were taken out, or made smaller, because they named unknown entries."""


def checked(text: str, known: Iterable[int]) -> Checked:
    """The text with citations to known entries only. A range stays if both of its ends are known."""
    numbers = known if isinstance(known, range) and known.step == 1 else sorted(set(known))
    cited = bytearray(len(numbers))
    kept: list[str] = []
    dropped = place = 0
    for match in CITATION.finditer(text):
        items, lost = _known_items(match[0], numbers, cited)
        kept.append(text[place : match.start()])
        place = match.end()
        dropped += lost
        if not lost:
            kept.append(match[0])
        elif items:
            kept.append(f"[{', '.join(items)}]")
        else:
            _close_gap(kept, _FOLLOWING.match(text, place))
    kept.append(text[place:])
    return Checked("".join(kept), tuple(numbers[at.start()] for at in _MARKED.finditer(cited)), dropped)


def cited(text: str, *, last: int) -> set[int]:
    """All numbers from 1 to `last` that the text cites, ranges written out."""
    return set(checked(text, range(1, last + 1)).sources)


def without_citations(text: str) -> str:
    """The text with what looks like a citation in other brackets, so that it cites nothing."""
    return CITATION.sub(lambda match: f"({match[0][1:-1]})", text)


def _known_items(citation: str, numbers: Sequence[int], cited: bytearray) -> tuple[list[str], int]:
    """What remains of a citation, as written, and how much of it does not; marks what it cites."""
    items: list[str] = []
    lost = 0
    for first, last in _spans(citation):
        start, end = bisect_left(numbers, first), bisect_right(numbers, last)
        if start >= end:
            lost += 1
            continue
        cited[start:end] = b"\1" * (end - start)
        low, high = numbers[start], numbers[end - 1]
        lost += (low, high) != (first, last)
        items.append(f"#{low}" if low == high else f"#{low}-#{high}")
    return items, lost


def _spans(citation: str) -> Iterator[tuple[int, int]]:
    """Each number, or range of numbers, from its lower to its upper end; (1, 0), which holds none, for absurd ones."""
    for first, last in _ITEMS.findall(citation):
        if max(len(first), len(last)) > _DIGITS:
            yield 1, 0
        else:
            ends = int(first), int(last or first)
            yield min(ends), max(ends)


def _close_gap(kept: list[str], following: re.Match[str] | None) -> None:
    """Takes the blanks before a dropped citation away; where its neighbours would join to a new one, a mark parts them.

    Blanks that begin a line stay.
    """
    while kept and not kept[-1].strip(" \t"):
        kept.pop()
    if not kept:
        return
    before = kept[-1].rstrip(" \t")
    if following and before.endswith((*_CONTINUES, "[")):
        kept.append(_UNKNOWN)
    elif not before.endswith("\n"):
        kept[-1] = before
