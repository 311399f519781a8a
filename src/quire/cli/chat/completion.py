"""What can be completed while somebody writes: `[[` notes and headings, `@` files, `/` commands and what they take.

Pure but for the one note that is read for its headings: everything else is handed in as `Choices`, taken before the
prompt is shown.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from quire.cli.output import one_line

MOST = 50

_LINK = re.compile(r"!?\[\[([^\[\]\n]*)\Z")
_FILE = re.compile(r'(?:^|(?<=[\s(\[{,;]))@(?:"([^"\n]*)|([^\s"@]*))\Z')
_COMMAND = re.compile(r"\A/([a-z]*)\Z")
_ARGUMENT = re.compile(r"\A/([a-z]+)[ ]+([^\n]*)\Z")


class Suggestion(NamedTuple):
    """`text` in place of the last `replaces` characters before the cursor."""

    text: str
    replaces: int
    shown: str
    about: str = ""


class Named(NamedTuple):
    name: str
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    commands: Sequence[Named] = ()
    notes: Sequence[Named] = ()
    """What may stand between brackets, and the note's path."""
    files: Sequence[str] = ()
    arguments: Callable[[str], Sequence[Named]] = lambda command: ()
    """What a command can be given."""


def suggestions(
    before: str, choices: Choices, *, headings: Callable[[str], Sequence[str]] = lambda note: ()
) -> list[Suggestion]:
    """For the text before the cursor; the best first."""
    if (link := _LINK.search(before)) is not None:
        return _links(link[1], choices, headings)
    if (file := _FILE.search(before)) is not None:
        return _files(file[0], choices.files)
    if (command := _COMMAND.match(before)) is not None:
        return _named(command[1], choices.commands, shown="/{}", written="{} ")
    if (argument := _ARGUMENT.match(before)) is not None:
        command, given = argument[1], argument[2]
        return _paths(given) if command == "export" else _named(given, choices.arguments(command))
    return []


def _links(written: str, choices: Choices, headings: Callable[[str], Sequence[str]]) -> list[Suggestion]:
    note, hash_, part = written.partition("#")
    if hash_:
        found = _matching(part, [Named(heading) for heading in headings(note)])
        return [Suggestion(f"{each.name}]]", len(part), each.name) for each in found]
    return _named(written, choices.notes, written="{}]]")


def _files(mention: str, files: Sequence[str]) -> list[Suggestion]:
    given = mention[1:].removeprefix('"')
    found = _matching(given, [Named(path) for path in files])
    quoted = [f'@"{each.name}"' if re.search(r'[\s"]', each.name) else f"@{each.name}" for each in found]
    return [Suggestion(text, len(mention), each.name) for text, each in zip(quoted, found, strict=True)]


def _named(given: str, known: Iterable[Named], *, shown: str = "{}", written: str = "{}") -> list[Suggestion]:
    return [
        Suggestion(written.format(each.name), len(given), shown.format(each.name), one_line(each.about, 60))
        for each in _matching(given, known)
    ]


def _matching(given: str, known: Iterable[Named]) -> list[Named]:
    """Names that begin so, then those with a word that does, then those that hold it."""
    wanted = given.strip().casefold()
    ranked: list[tuple[int, Named]] = []
    for each in known:
        name = each.name.casefold()
        at = name.find(wanted)
        if at >= 0:
            ranked.append((0 if at == 0 else 1 if not name[at - 1].isalnum() else 2, each))
    ranked.sort(key=lambda pair: (pair[0], len(pair[1].name)))
    return [each for _, each in ranked[:MOST]]


def _paths(given: str) -> list[Suggestion]:
    """Files and folders on disk, for what is written to a path."""
    return list(_inside(given))


def _inside(given: str) -> Iterator[Suggestion]:
    folder, _, start = given.rpartition("/")
    place = Path(f"{folder}/" if "/" in given else ".").expanduser()
    try:
        there = sorted(place.iterdir())[:1_000]
    except OSError:
        return
    for each in [path for path in there if path.name.startswith(start) and not path.name.startswith(".")][:MOST]:
        name = f"{each.name}/" if each.is_dir() else each.name
        yield Suggestion(name, len(start), name)


def note_choices(paths: Iterable[tuple[str, Sequence[str]]]) -> list[Named]:
    """How notes are written in a link, from their paths and aliases: by name, or by path where several have it."""
    known = [(PurePosixPath(path), aliases) for path, aliases in paths]
    often = {name for name, count in Counter(path.stem.casefold() for path, _ in known).items() if count > 1}
    made: list[Named] = []
    for path, aliases in known:
        alone = path.stem.casefold() not in often
        written = path.stem if alone else str(path.with_suffix(""))
        made.append(Named(written, str(path)))
        made += [Named(f"{written}|{alias}", str(path)) for alias in aliases]
    return made
