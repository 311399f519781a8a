"""What an index knows of a vault, and what it must read to know it again.

A file whose size and time are as they were is not read; of the others the digest decides. A run gives its progress and
batches for a store as it goes, so that a run that is broken off has lost nothing but the batch at hand.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from quire.context.vault.beneath import Found
from quire.context.vault.notes import Note, note
from quire.context.vault.paths import Root
from quire.context.vault.resolve import NOTE_SUFFIXES
from quire.errors import DocumentNotFound, PathRefused

BATCH = 200


class Known(NamedTuple):
    """What was stored of a note when it was last read."""

    digest: str
    size: int
    modified: int
    aliases: tuple[str, ...] = ()


class Changes(NamedTuple):
    new: tuple[Found, ...]
    perhaps: tuple[Found, ...]
    """Of another size or time than stored: their digests must be compared."""
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """What a store must do to be up to date with a part of the vault."""

    notes: tuple[Note, ...] = ()
    """New or changed: to be put in place of what was stored."""
    touched: tuple[tuple[Found, Known], ...] = ()
    """Their text is as stored; only size and time are to be noted."""
    gone: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    """Files that are no text or too large, each with what is to be said of it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One file done; a batch where enough have come together, and with the last step."""

    done: int
    total: int
    path: str | None
    batch: Batch | None = None


def changes(known: Mapping[str, Known], found: Iterable[Found]) -> Changes:
    """What to read, and what is gone. Pure."""
    new: list[Found] = []
    perhaps: list[Found] = []
    seen: set[str] = set()
    for file in found:
        seen.add(file.path)
        stored = known.get(file.path)
        if stored is None:
            new.append(file)
        elif (stored.size, stored.modified) != (file.size, file.modified):
            perhaps.append(file)
    return Changes(tuple(new), tuple(perhaps), tuple(path for path in known if path not in seen))


def is_note(path: str) -> bool:
    return path.lower().endswith(NOTE_SUFFIXES)


def index(root: Root, known: Mapping[str, Known], found: Iterable[Found], *, batch: int = BATCH) -> Iterator[Step]:
    """Reads what changed, a file a step. The first step says how much there is to do; a batch comes with the last."""
    todo = changes(known, (file for file in found if is_note(file.path)))
    reading = (*todo.new, *todo.perhaps)
    yield Step(0, len(reading), None)
    open_ = _Gathering(gone=list(todo.gone))
    for done, file in enumerate(reading, start=1):
        open_.take(root, file, known.get(file.path))
        full = open_.count >= batch or done == len(reading)
        yield Step(done, len(reading), file.path, open_.close() if full else None)
    if open_.count:
        yield Step(len(reading), len(reading), None, open_.close())


class _Gathering:
    """The batch at hand."""

    def __init__(self, gone: list[str]) -> None:
        self._gone = gone
        self._notes: list[Note] = []
        self._touched: list[tuple[Found, Known]] = []
        self._refused: list[tuple[str, str]] = []

    @property
    def count(self) -> int:
        return len(self._notes) + len(self._touched) + len(self._refused) + len(self._gone)

    def take(self, root: Root, file: Found, stored: Known | None) -> None:
        try:
            read = root.read(file.path)
        except DocumentNotFound:  # It went since it was listed.
            self._gone += [file.path] if stored else []
        except PathRefused as refusal:
            self._refused.append((file.path, str(refusal)))
            self._gone += [file.path] if stored else []
        else:
            if stored and stored.digest == read.digest:
                self._touched.append((Found(read.path, read.size, read.modified), stored))
            else:
                self._notes.append(note(read))

    def close(self) -> Batch:
        made = Batch(tuple(self._notes), tuple(self._touched), tuple(self._gone), tuple(self._refused))
        self._notes, self._touched, self._gone, self._refused = [], [], [], []
        return made
