"""The statements of a text, each to be remembered by itself: list items and paragraphs, under their heading.

A heading alone states nothing, but what stands under it may mean nothing without it; so it goes before each of them,
unless it is the title of the whole. Code, tables and front matter are left out.
"""

import re
from collections.abc import Iterator

_HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*$")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?(.*)$")
_FENCE = re.compile(r"\s*(```|~~~)")


def statements(text: str) -> list[str]:
    """In their order, each once."""
    return list(dict.fromkeys(_statements(_without_front_matter(text.replace("\r\n", "\n")))))


def _without_front_matter(text: str) -> str:
    if not text.startswith("---\n"):
        return text
    _, closed, rest = text[4:].partition("\n---\n")
    return rest if closed else text


def _statements(text: str) -> Iterator[str]:
    heading, gathered, fence = "", list[str](), ""

    def said() -> Iterator[str]:
        joined = " ".join(" ".join(gathered).split())
        gathered.clear()
        if joined:
            yield f"{heading}: {joined}" if heading else joined

    for line in [*text.split("\n"), ""]:
        opened = _FENCE.match(line)
        if fence or opened:
            yield from said()
            fence = _still_open(fence, opened)
        elif found := _HEADING.match(line):
            yield from said()
            heading = found[2] if len(found[1]) > 1 else ""
        elif found := _ITEM.match(line):
            yield from said()
            gathered.append(found[1])
        elif not line.strip() or line.lstrip().startswith("|"):
            yield from said()
        else:
            gathered.append(line)


def _still_open(fence: str, mark: "re.Match[str] | None") -> str:
    if mark is None:
        return fence
    if not fence:
        return mark[1]
    return "" if mark[1] == fence else fence
