"""Finds wikilinks in a text and resolves them to files: `[[Note]]`, `[[folder/Note#Heading|text]]`, `![[Note#^block]]`.

Links in code, comments and math are ignored. Resolution order, as in Obsidian: full path, the source note's
folder, the end of a path, alias.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from quire.context.vault.markdown_mask import WIKILINK_PATTERN, mask_non_prose

AmbiguityPolicy = Literal["list", "first"]
"""How to resolve a name that several notes have: list them, or take the first (the shortest path)."""

NOTE_SUFFIXES = (".md", ".markdown")


@dataclass(frozen=True, slots=True)
class Wikilink:
    text: str
    """As written, with brackets."""
    target: str
    """Name or path of the note. Empty for a heading of the note that contains the link."""
    headings: tuple[str, ...] = ()
    """Outermost first."""
    block_id: str | None = None
    display_text: str | None = None
    is_embed: bool = False
    start: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class ResolvedLink:
    path: str
    others: tuple[str, ...] = ()
    """Further notes of that name, with the policy `first`."""


@dataclass(frozen=True, slots=True)
class AmbiguousLink:
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BrokenLink:
    reason: str


LinkResolution = ResolvedLink | AmbiguousLink | BrokenLink


def find_wikilinks(text: str, *, masked_text: str | None = None) -> list[Wikilink]:
    """Finds all links of a Markdown text, in order; `masked_text` saves masking it again."""
    if "[[" not in text:
        return []
    masked_text = mask_non_prose(text) if masked_text is None else masked_text
    links: list[Wikilink] = []
    for match in WIKILINK_PATTERN.finditer(masked_text):
        start = match.start() - (masked_text[match.start() - 1 : match.start()] == "!")
        link = parse_wikilink(text[start : match.end()], start=start)
        if link is not None:
            links.append(link)
    return links


def parse_wikilink(written: str, *, start: int = 0) -> Wikilink | None:
    """Parses a link with or without brackets, or None if it is empty."""
    content = written.strip()
    is_embed = content.startswith("![[")
    if is_embed or content.startswith("[["):
        content = content.removeprefix("!").removeprefix("[[").removesuffix("]]")
    location, separator, display_text = content.partition("|")
    if separator:
        location = location.removesuffix("\\")  # In a table the bar itself is escaped.
    target, *inner = (step.strip() for step in location.split("#"))
    block = inner.pop()[1:].strip() if inner and inner[-1].startswith("^") else None
    headings = tuple(step for step in inner if step)
    if not (target or headings or block):
        return None
    return Wikilink(written, target, headings, block or None, display_text.strip() or None, is_embed, start)


class LinkIndex:
    """Index from link names to the files of a vault."""

    def __init__(self, paths: Iterable[str], *, aliases: Mapping[str, Iterable[str]] | None = None) -> None:
        self._by_path: dict[str, list[str]] = {}
        self._by_suffix: dict[str, list[str]] = {}
        self._by_alias: dict[str, list[str]] = {}
        # Of several files with one name, the shortest path is first, as in Obsidian.
        for path in sorted(paths, key=lambda path: (len(path), path)):
            # The full path, and for a note also the path without its suffix.
            full = fold_name(path)
            for key in [full, *(full.removesuffix(suffix) for suffix in NOTE_SUFFIXES if full.endswith(suffix))]:
                self._by_path.setdefault(key, []).append(path)
                # The path itself, and the rest after each slash.
                start = 0
                while True:
                    self._by_suffix.setdefault(key[start:], []).append(path)
                    if not (start := key.find("/", start) + 1):
                        break
            for alias in (aliases or {}).get(path, ()):
                known = self._by_alias.setdefault(fold_name(alias), [])
                if path not in known[-1:]:
                    known.append(path)

    def resolve(
        self, link: Wikilink, *, source: str | None = None, on_ambiguous: AmbiguityPolicy = "list"
    ) -> LinkResolution:
        """Resolves a link in the note `source`, or in a message if `source` is None."""
        if not link.target:
            reason = "the link has only a heading, and a message is not a note; write the note's name before the #"
            return BrokenLink(reason) if source is None else ResolvedLink(source)
        options = self._find_paths(link.target, source)
        if not options:
            return BrokenLink(f"no note, file or alias is called {link.target!r}")
        if len(options) == 1:
            return ResolvedLink(options[0])
        return (
            ResolvedLink(options[0], tuple(options[1:])) if on_ambiguous == "first" else AmbiguousLink(tuple(options))
        )

    def _find_paths(self, target: str, source: str | None) -> list[str]:
        folder = source.rpartition("/")[0] if source else ""
        steps = folder.split("/") if folder and target.startswith(("./", "../")) else []
        for step in target.split("/"):
            if step == "..":
                if not steps:
                    return []
                steps.pop()
            elif step.strip() not in ("", "."):
                steps.append(step.strip())
        if not steps:
            return []
        written = "/".join(steps)
        options = self._by_path.get(fold_name(written), [])
        # Of paths that differ in letter case only, the one spelled like the link; otherwise all.
        spelled = [path for path in options if path == written or path.rpartition(".")[0] == written]
        if options or target.startswith(("/", "./", "../")):
            return spelled[:1] or options
        same_folder = self._by_path.get(fold_name(f"{folder}/{written}"), []) if folder else []
        return same_folder[:1] or self._by_suffix.get(fold_name(written)) or self._by_alias.get(fold_name(target), [])


def fold_name(name: str) -> str:
    """Normalizes a name for comparison: letter case, Unicode composition and runs of whitespace are ignored."""
    if not name.isascii():
        name = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return " ".join(name.lower().split())


def is_note(path: str) -> bool:
    return path.lower().endswith(NOTE_SUFFIXES)
