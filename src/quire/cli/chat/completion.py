"""Completion in the chat prompt: `[[` notes and headings, `@` files, `/` commands and their arguments.

Pure, except that the headings of one note are read on demand and `/attach` and `/export` list a folder: everything else
is passed in as `CompletionSources`, loaded before the prompt appears.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from quire.cli.output import to_one_line

MAX_SUGGESTIONS = 50
MAX_LISTED_PATHS = 1_000
"""Paths of a folder that are considered."""

_PATH_COMMANDS = ("attach", "export")
"""Commands whose argument is a path on disk."""
_LINK = re.compile(r"!?\[\[([^\[\]\n]*)\Z")
_FILE = re.compile(r'(?:^|(?<=[\s(\[{,;]))@(?:"([^"\n]*)|([^\s"@]*))\Z')
_COMMAND = re.compile(r"\A/([a-z]*)\Z")
_ARGUMENT = re.compile(r"\A/([a-z]+)[ ]+([^\n]*)\Z")


class Suggestion(NamedTuple):
    """Replaces the last `replace_length` characters before the cursor by `text`."""

    text: str
    replace_length: int
    display: str
    description: str = ""


class CompletionItem(NamedTuple):
    name: str
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionSources:
    commands: Sequence[CompletionItem] = ()
    notes: Sequence[CompletionItem] = ()
    """Link targets, with the note's path as description."""
    files: Sequence[str] = ()
    arguments: Callable[[str], Sequence[CompletionItem]] = lambda command: ()
    """Arguments that a command accepts."""


def suggest(
    text_before_cursor: str, sources: CompletionSources, *, headings: Callable[[str], Sequence[str]] = lambda note: ()
) -> list[Suggestion]:
    """Suggests completions of the text before the cursor, best first."""
    if (link := _LINK.search(text_before_cursor)) is not None:
        note, hash_, heading_start = link[1].partition("#")
        if not hash_:
            return _suggest_items(note, sources.notes, text_template="{}]]")
        return _suggest_items(heading_start, map(CompletionItem, headings(note)), text_template="{}]]")
    if (file := _FILE.search(text_before_cursor)) is not None:
        matches = _rank_matches(file[0][1:].removeprefix('"'), map(CompletionItem, sources.files))
        mentions = [f'@"{each.name}"' if re.search(r'[\s"]', each.name) else f"@{each.name}" for each in matches]
        return [Suggestion(text, len(file[0]), each.name) for text, each in zip(mentions, matches, strict=True)]
    if (command := _COMMAND.match(text_before_cursor)) is not None:
        return _suggest_items(command[1], sources.commands, display_template="/{}", text_template="{} ")
    if (argument := _ARGUMENT.match(text_before_cursor)) is not None:
        name, typed = argument[1], argument[2]
        return _suggest_paths(typed) if name in _PATH_COMMANDS else _suggest_items(typed, sources.arguments(name))
    return []


def _suggest_items(
    typed: str, items: Iterable[CompletionItem], *, display_template: str = "{}", text_template: str = "{}"
) -> list[Suggestion]:
    return [
        Suggestion(
            text_template.format(each.name),
            len(typed),
            display_template.format(each.name),
            to_one_line(each.description, 60),
        )
        for each in _rank_matches(typed, items)
    ]


def _rank_matches(typed: str, items: Iterable[CompletionItem]) -> list[CompletionItem]:
    """Ranks names that start with the text, then names with such a word, then names that contain it."""
    needle = typed.strip().casefold()
    ranked: list[tuple[int, CompletionItem]] = []
    for each in items:
        name = each.name.casefold()
        at = name.find(needle)
        if at >= 0:
            ranked.append((0 if at == 0 else 1 if not name[at - 1].isalnum() else 2, each))
    ranked.sort(key=lambda pair: (pair[0], len(pair[1].name)))
    return [each for _, each in ranked[:MAX_SUGGESTIONS]]


def _suggest_paths(typed: str) -> list[Suggestion]:
    """Suggests files and folders on disk."""
    folder, _, start = typed.rpartition("/")
    directory = Path(f"{folder}/" if "/" in typed else ".").expanduser()
    try:
        paths = sorted(directory.iterdir())[:MAX_LISTED_PATHS]
    except OSError:
        return []
    matches = [path for path in paths if path.name.startswith(start) and not path.name.startswith(".")]
    names = [f"{each.name}/" if each.is_dir() else each.name for each in matches[:MAX_SUGGESTIONS]]
    return [Suggestion(name, len(start), name) for name in names]


def build_note_items(paths: Iterable[tuple[str, Sequence[str]]]) -> list[CompletionItem]:
    """Builds link targets from paths and aliases: a note's name, or its path where several notes share the name."""
    notes = [(PurePosixPath(path), aliases) for path, aliases in paths]
    ambiguous = {name for name, count in Counter(path.stem.casefold() for path, _ in notes).items() if count > 1}
    items: list[CompletionItem] = []
    for path, aliases in notes:
        target = str(path.with_suffix("")) if path.stem.casefold() in ambiguous else path.stem
        items.append(CompletionItem(target, str(path)))
        items += [CompletionItem(f"{target}|{alias}", str(path)) for alias in aliases]
    return items
