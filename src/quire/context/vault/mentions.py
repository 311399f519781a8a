"""Finds `@path` mentions in a text, and matches glob patterns without backtracking. Pure.

    @README.md    @src/app.py:10-20    @docs/**/*.md    @"a name with blanks.md"

A mention is path-like if it has a slash, or a dot followed by letters; a bare `@word` may be a person. Mentions in
code, links and addresses, and those after a backslash, are ignored.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import translate

from quire.context.vault.markdown_mask import MASK_CHAR, mask_non_prose
from quire.context.vault.wikilinks import find_wikilinks

_PATH_TERMINATORS = rf"\s\"<>`|{MASK_CHAR}，。、；：！？（）「」『』《》“”…"
"""Characters that end an unquoted path."""
_MENTION = re.compile(
    r"(?<![A-Za-z0-9_.+\-/@\\%=&#?:~])@(?:"
    r'"(?P<quoted>[^"\n]{1,1000})"(?P<range>:\d+(?:-\d+)?|\#L\d+(?:-L?\d+)?)?'
    rf"|(?P<bare>[^@{_PATH_TERMINATORS}](?:\\ |[^{_PATH_TERMINATORS}]){{0,1000}}))"
)
_LINE_RANGE = re.compile(
    r"(?::(?P<first>\d{1,9})(?:-(?P<last>\d{1,9})|:\d{1,9})?|#L(?P<from>\d{1,9})(?:-L?(?P<to>\d{1,9}))?)\Z"
)
_EXTENSION = re.compile(r"\.(?=[A-Za-z0-9_]*[A-Za-z])[A-Za-z0-9_]{1,12}\Z")
_POSSESSIVE = re.compile(r"['’]s\Z")
_OPENING_BRACKETS = {")": "(", "]": "[", "}": "{"}
_WILDCARD = re.compile(r"[*?\[]")
_GLOBSTAR = "**"


@dataclass(frozen=True, slots=True)
class Mention:
    text: str
    """As written."""
    path: str
    line_range: tuple[int, int] | None
    """First and last line, from 1, both included, in ascending order."""
    is_path_like: bool
    """Whether it has the form of a path; otherwise it is a path only if such a file exists."""
    start: int


def find_mentions(text: str) -> list[Mention]:
    """Finds all mentions of a Markdown text, in order."""
    if "@" not in text:
        return []
    mentions: list[Mention] = []
    for match in _MENTION.finditer(_mask_links(text)):
        mention = _parse_mention(text, match)
        if mention is not None:
            mentions.append(mention)
    return mentions


def is_glob(path: str) -> bool:
    return bool(_WILDCARD.search(path))


def find_glob_base(pattern: str) -> str:
    """The folder that contains all matches: the part before the first wildcard."""
    names: list[str] = []
    for name in pattern.split("/")[:-1]:
        if is_glob(name):
            break
        names.append(name)
    return "/".join(names)


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """Compiles a glob into a predicate on full paths. `**` at the end matches all files below.

    Simulates an NFA over the names of the path, so that no pattern causes exponential backtracking.
    """
    steps = [
        None if name == _GLOBSTAR else re.compile(translate(name))
        for name in pattern.split("/")
        if name not in ("", ".")
    ]

    def matches(path: str) -> bool:
        states = _skip_globstars({0}, steps)
        for name in path.split("/"):
            states = _skip_globstars(_advance(name, states, steps), steps)
        return len(steps) in states

    return matches


def _mask_links(text: str) -> str:
    masked_text = mask_non_prose(text)
    pieces: list[str] = []
    position = 0
    for link in find_wikilinks(text, masked_text=masked_text):
        pieces += (masked_text[position : link.start], MASK_CHAR * len(link.text))
        position = link.end
    return "".join((*pieces, masked_text[position:]))


def _parse_mention(text: str, match: re.Match[str]) -> Mention | None:
    start = match.start()
    if match["quoted"] is not None:
        written = text[start : match.end()]
        path = match["quoted"].strip()
        _, lines = _split_line_range(f"x{match['range'] or ''}")
        return Mention(written, path, lines, True, start) if path else None
    bare = _trim_punctuation(match["bare"], before=text[start - 1 : start])
    path, lines = _split_line_range(bare)
    if not path:
        return None
    path = path.replace("\\ ", " ")
    return Mention(text[start : start + 1 + len(bare)], path, lines, _looks_like_path(path), start)


def _looks_like_path(path: str) -> bool:
    return "/" in path or "\\" in path or bool(_EXTENSION.search(path))


def _split_line_range(written: str) -> tuple[str, tuple[int, int] | None]:
    """Splits off the line range after a path."""
    line_range = _LINE_RANGE.search(written)
    if line_range is None:
        return written, None
    first = int(line_range["first"] or line_range["from"])
    last = int(line_range["last"] or line_range["to"] or first)
    return written[: line_range.start()], (min(first, last), max(first, last))


def _trim_punctuation(written: str, *, before: str) -> str:
    """Strips what belongs to the sentence: the full stop, a closing bracket, the asterisks of bold type."""
    while written:
        last = written[-1]
        if last in ".,;:!?'’" or (last in "*_" and last == before) or _closes_unopened(written, last):
            written = written[:-1]
        elif _POSSESSIVE.search(written):
            written = written[:-2]
        else:
            break
    return written


def _closes_unopened(written: str, last: str) -> bool:
    opening = _OPENING_BRACKETS.get(last)
    return opening is not None and written.count(opening) < written.count(last)


def _advance(name: str, states: Iterable[int], steps: list[re.Pattern[str] | None]) -> set[int]:
    """The NFA states after this name."""
    following: set[int] = set()
    for state in states:
        if state < len(steps):
            step = steps[state]
            if step is None:
                following.add(state)
            elif step.match(name):
                following.add(state + 1)
    return following


def _skip_globstars(states: set[int], steps: list[re.Pattern[str] | None]) -> set[int]:
    """Adds the states after each `**`, which may match no folder at all."""
    for state in sorted(states):
        while state < len(steps) and steps[state] is None:
            state += 1
            states.add(state)
    return states
