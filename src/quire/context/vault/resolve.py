"""What a wikilink leads to: names prepared once, then a look-up for each link.

The order is Obsidian's: the full path from the root, then the folder of the note that holds the link, then any note
whose path ends so. Beyond it, a link may name an alias, if no file has that name. Pure.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from quire.context.vault.links import Link

Ambiguity = Literal["list", "first"]
"""What to do with a name that several notes have: say which they are, or take the first (the shortest path)."""

NOTE_SUFFIXES = (".md", ".markdown")


@dataclass(frozen=True, slots=True)
class Resolved:
    path: str
    others: tuple[str, ...] = ()
    """Further notes of that name, where the first was taken."""


@dataclass(frozen=True, slots=True)
class Ambiguous:
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    reason: str


Destination = Resolved | Ambiguous | Broken


class Names:
    """The names under which each file of a vault can be reached."""

    def __init__(self, paths: Iterable[str], *, aliases: Mapping[str, Iterable[str]] | None = None) -> None:
        self._whole: dict[str, list[str]] = {}
        self._endings: dict[str, list[str]] = {}
        self._aliases: dict[str, list[str]] = {}
        # Where several files have a name, the one with the shortest path stands first, as in Obsidian.
        for path in sorted(paths, key=lambda path: (len(path), path)):
            for key in _keys(path):
                self._whole.setdefault(key, []).append(path)
                for ending in _endings(key):
                    self._endings.setdefault(ending, []).append(path)
            for alias in (aliases or {}).get(path, ()):
                known = self._aliases.setdefault(folded(alias), [])
                if path not in known[-1:]:
                    known.append(path)

    def resolve(self, link: Link, *, source: str | None = None, ambiguous: Ambiguity = "list") -> Destination:
        """Where a link leads that stands in the note `source`, or in a message, which is no note."""
        if not link.target:
            reason = "it names a heading of its own note, and a message is none; write the note's name before the #"
            return Broken(reason) if source is None else Resolved(source)
        options = self._options(link.target, source)
        if not options:
            return Broken(f"no note, file or alias is called {link.target!r}")
        if len(options) == 1:
            return Resolved(options[0])
        return Resolved(options[0], tuple(options[1:])) if ambiguous == "first" else Ambiguous(tuple(options))

    def _options(self, target: str, source: str | None) -> list[str]:
        folder = source.rpartition("/")[0] if source else ""
        steps = _steps(target, folder)
        if steps is None:
            return []
        key = folded("/".join(steps))
        whole = _as_written(self._whole.get(key, []), steps)
        if whole or target.startswith(("/", "./", "../")):
            return whole
        beside = self._whole.get(folded(f"{folder}/{'/'.join(steps)}"), []) if folder else []
        return beside[:1] or self._endings.get(key) or self._aliases.get(folded(target), [])


def folded(name: str) -> str:
    """A name as it is compared: letter case, composed letters and the width of blanks make no difference."""
    if not name.isascii():
        name = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return " ".join(name.lower().split())


def _steps(target: str, folder: str) -> list[str] | None:
    """The names in a link's path, counted from the root; None if it climbs over the root."""
    steps = folder.split("/") if folder and target.startswith(("./", "../")) else []
    for step in target.split("/"):
        if step == "..":
            if not steps:
                return None
            steps.pop()
        elif step.strip() not in ("", "."):
            steps.append(step.strip())
    return steps or None


def _keys(path: str) -> list[str]:
    """Under its full name, and a note also without its suffix."""
    key = folded(path)
    return [key, *(key.removesuffix(suffix) for suffix in NOTE_SUFFIXES if key.endswith(suffix))]


def _endings(key: str) -> Iterable[str]:
    """Each part of a path that begins at a name and goes to its end."""
    yield key
    at = key.find("/")
    while at >= 0:
        yield key[at + 1 :]
        at = key.find("/", at + 1)


def _as_written(options: list[str], steps: list[str]) -> list[str]:
    """Of paths that differ in letter case only, the one that is written as the link is; else all."""
    written = "/".join(steps)
    exact = [path for path in options if path == written or path.rpartition(".")[0] == written]
    return exact[:1] or options
