"""`@path` in a text: `@README.md`, `@src/app.py:10-20`, `@docs/**/*.md`, `@"a name with blanks.md"`. Pure.

Whether a mention is a path is decided by its form: a slash, or a dot with letters behind it. A bare `@word` may be a
person, and is marked as such. Mentions in code, links and addresses, and those behind a backslash, are none.
"""

import re
from dataclasses import dataclass

from quire.context.vault.links import links
from quire.context.vault.prose import FILLER, masked

_ENDS = rf"\s\"<>`|{FILLER}，。、；：！？（）「」『』《》“”…"
"""What no bare path goes on after."""
_MENTION = re.compile(
    r"(?<![A-Za-z0-9_.+\-/@\\%=&#?:~])@(?:"
    r'"(?P<quoted>[^"\n]{1,1000})"(?P<range>:\d+(?:-\d+)?|\#L\d+(?:-L?\d+)?)?'
    rf"|(?P<bare>[^@{_ENDS}](?:\\ |[^{_ENDS}]){{0,1000}}))"
)
_RANGE = re.compile(
    r"(?::(?P<first>\d{1,9})(?:-(?P<last>\d{1,9})|:\d{1,9})?|#L(?P<from>\d{1,9})(?:-L?(?P<to>\d{1,9}))?)\Z"
)
_EXTENSION = re.compile(r"\.(?=[A-Za-z0-9_]*[A-Za-z])[A-Za-z0-9_]{1,12}\Z")
_POSSESSIVE = re.compile(r"['’]s\Z")
_CLOSING = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True)
class Mention:
    text: str
    """As it was written."""
    path: str
    lines: tuple[int, int] | None
    """From 1, both included; in order."""
    sure: bool
    """Whether it has the form of a path; else it is one only if there is such a file."""
    start: int


def mentions(text: str) -> list[Mention]:
    """All mentions of a Markdown text, in order."""
    if "@" not in text:
        return []
    found: list[Mention] = []
    for match in _MENTION.finditer(_without_links(text)):
        mention = _mention(text, match)
        if mention is not None:
            found.append(mention)
    return found


def _without_links(text: str) -> str:
    prose = masked(text)
    pieces: list[str] = []
    place = 0
    for link in links(text, prose=prose):
        pieces += (prose[place : link.start], FILLER * len(link.text))
        place = link.end
    return "".join((*pieces, prose[place:]))


def _mention(text: str, match: re.Match[str]) -> Mention | None:
    start = match.start()
    if match["quoted"] is not None:
        written = text[start : match.end()]
        path = match["quoted"].strip()
        _, lines = _ranged(f"x{match['range'] or ''}")
        return Mention(written, path, lines, True, start) if path else None
    bare = _trimmed(match["bare"], before=text[start - 1 : start])
    path, lines = _ranged(bare)
    if not path:
        return None
    path = path.replace("\\ ", " ")
    return Mention(text[start : start + 1 + len(bare)], path, lines, _looks_like_path(path), start)


def _looks_like_path(path: str) -> bool:
    return "/" in path or "\\" in path or bool(_EXTENSION.search(path))


def _ranged(written: str) -> tuple[str, tuple[int, int] | None]:
    """The path, and the lines that stand behind it."""
    found = _RANGE.search(written)
    if found is None:
        return written, None
    first = int(found["first"] or found["from"])
    last = int(found["last"] or found["to"] or first)
    return written[: found.start()], (min(first, last), max(first, last))


def _trimmed(written: str, *, before: str) -> str:
    """Without what belongs to the sentence: its full stop, the bracket around it, the stars of bold type."""
    while written:
        last = written[-1]
        if last in ".,;:!?'’" or (last in "*_" and last == before) or _closes(written, last):
            written = written[:-1]
        elif _POSSESSIVE.search(written):
            written = written[:-2]
        else:
            break
    return written


def _closes(written: str, last: str) -> bool:
    opening = _CLOSING.get(last)
    return opening is not None and written.count(opening) < written.count(last)
