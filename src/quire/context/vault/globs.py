"""Patterns for paths: `*` and `?` within a name, `[abc]`, and `**` for any number of folders.

Pure, and quick whatever the pattern: names are matched one after the other, without going back.
"""

import re
from collections.abc import Callable, Iterable
from fnmatch import translate

_WILD = re.compile(r"[*?\[]")
_ANY = "**"


def is_pattern(path: str) -> bool:
    return bool(_WILD.search(path))


def fixed_folder(pattern: str) -> str:
    """The folder that all matches stand in."""
    fixed: list[str] = []
    for name in pattern.split("/")[:-1]:
        if is_pattern(name):
            break
        fixed.append(name)
    return "/".join(fixed)


def matcher(pattern: str) -> Callable[[str], bool]:
    """Says of a path whether the pattern stands for it, as a whole. `**` at the end stands for all files below."""
    steps = [
        None if name == _ANY else re.compile(translate(name)) for name in pattern.split("/") if name not in ("", ".")
    ]

    def matches(path: str) -> bool:
        places = _opened({0}, steps)
        for name in path.split("/"):
            places = _opened(_after(name, places, steps), steps)
        return len(steps) in places

    return matches


def _after(name: str, places: Iterable[int], steps: list[re.Pattern[str] | None]) -> set[int]:
    """Where in the pattern one can stand once it has taken in this name."""
    reached: set[int] = set()
    for place in places:
        if place < len(steps):
            step = steps[place]
            if step is None:
                reached.add(place)
            elif step.match(name):
                reached.add(place + 1)
    return reached


def _opened(places: set[int], steps: list[re.Pattern[str] | None]) -> set[int]:
    """The places, with those behind each `**`, which may stand for no folder at all."""
    for place in sorted(places):
        while place < len(steps) and steps[place] is None:
            place += 1
            places.add(place)
    return places
