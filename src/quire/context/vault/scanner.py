"""Scans a vault for changed notes and parses them: title, aliases, headings, block ids, passages and links.

A scan is incremental: it compares size and modification time with what was stored, then the digest of the text.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from quire.context.front_matter import FrontMatter, parse_front_matter
from quire.context.vault.markdown_mask import mask_non_prose
from quire.context.vault.paths import ListedFile, Root, TextFile
from quire.context.vault.sections import Heading, NotePassage, find_block_ids, find_headings, split_note
from quire.context.vault.wikilinks import Wikilink, find_wikilinks, is_note
from quire.errors import DocumentNotFound, PathRefused

SCAN_BATCH_SIZE = 200
"""Files per batch, deleted ones included."""


@dataclass(frozen=True, slots=True)
class Note:
    path: str
    title: str
    digest: str
    size: int
    modified: int
    front_matter: FrontMatter
    headings: tuple[Heading, ...]
    block_ids: tuple[str, ...]
    passages: tuple[NotePassage, ...]
    links: tuple[Wikilink, ...]

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.front_matter.aliases


class KnownFile(NamedTuple):
    """Stored state of a note from the last scan."""

    digest: str
    size: int
    modified: int
    aliases: tuple[str, ...] = ()


class FileChanges(NamedTuple):
    new: tuple[ListedFile, ...]
    maybe_changed: tuple[ListedFile, ...]
    """Size or modification time differs from the stored one, so the digests must be compared."""
    deleted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScanBatch:
    """Updates that a store applies to be in sync with a part of the vault."""

    notes: tuple[Note, ...] = ()
    """New or changed notes, which replace the stored ones."""
    touched: tuple[tuple[ListedFile, KnownFile], ...] = ()
    """Files with unchanged text, of which only size and time are updated."""
    deleted: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    """Files that are not text or too large, each with the message for the user."""


@dataclass(frozen=True, slots=True)
class ScanStep:
    """Progress after one file. With a batch when it is full, and with the last step."""

    done: int
    total: int
    path: str | None
    batch: ScanBatch | None = None


def scan_files(
    root: Root, known: Mapping[str, KnownFile], listed: Iterable[ListedFile], *, batch_size: int = SCAN_BATCH_SIZE
) -> Iterator[ScanStep]:
    """Reads the changed notes, one file per step. The first step has the total. The last one has a batch."""
    changes = detect_changes(known, (file for file in listed if is_note(file.path)))
    to_read = (*changes.new, *changes.maybe_changed)
    yield ScanStep(0, len(to_read), None)
    batch = _BatchBuilder(deleted=list(changes.deleted))
    for done, file in enumerate(to_read, start=1):
        batch.add(root, file, known.get(file.path))
        full = batch.count >= batch_size or done == len(to_read)
        yield ScanStep(done, len(to_read), file.path, batch.flush() if full else None)
    if batch.count:
        yield ScanStep(len(to_read), len(to_read), None, batch.flush())


def detect_changes(known: Mapping[str, KnownFile], listed: Iterable[ListedFile]) -> FileChanges:
    """Compares a listing with the stored state. Pure."""
    new: list[ListedFile] = []
    maybe_changed: list[ListedFile] = []
    seen: set[str] = set()
    for file in listed:
        seen.add(file.path)
        stored = known.get(file.path)
        if stored is None:
            new.append(file)
        elif (stored.size, stored.modified) != (file.size, file.modified):
            maybe_changed.append(file)
    return FileChanges(tuple(new), tuple(maybe_changed), tuple(path for path in known if path not in seen))


def parse_note(file: TextFile) -> Note:
    """Parses a Markdown file."""
    front_matter, body = parse_front_matter(file.text)
    start = len(file.text) - len(body)
    masked_text = mask_non_prose(file.text)
    headings = find_headings(file.text, masked_text=masked_text, start=start)
    # The title of the front matter, or else a first heading of level 1, or else the file name.
    title = PurePosixPath(file.path).stem
    if isinstance(written := front_matter.extra.get("title"), str) and written.strip():
        title = written.strip()
    elif headings and headings[0].level == 1 and headings[0].text:
        title = headings[0].text
    return Note(
        path=file.path,
        title=title,
        digest=file.digest,
        size=file.size,
        modified=file.modified,
        front_matter=front_matter,
        headings=tuple(headings),
        block_ids=tuple(find_block_ids(masked_text)),
        passages=tuple(split_note(file.text, title=title, headings=headings, masked_text=masked_text, start=start)),
        links=tuple(find_wikilinks(file.text, masked_text=masked_text)),
    )


class _BatchBuilder:
    """Accumulator of the current batch."""

    def __init__(self, deleted: list[str]) -> None:
        self._deleted = deleted
        self._notes: list[Note] = []
        self._touched: list[tuple[ListedFile, KnownFile]] = []
        self._skipped: list[tuple[str, str]] = []

    @property
    def count(self) -> int:
        return len(self._notes) + len(self._touched) + len(self._skipped) + len(self._deleted)

    def add(self, root: Root, file: ListedFile, stored: KnownFile | None) -> None:
        try:
            text_file = root.read(file.path)
        except DocumentNotFound:  # Deleted after it was listed.
            self._deleted += [file.path] if stored else []
        except PathRefused as refusal:
            self._skipped.append((file.path, str(refusal)))
            self._deleted += [file.path] if stored else []
        else:
            if stored and stored.digest == text_file.digest:
                self._touched.append((ListedFile(text_file.path, text_file.size, text_file.modified), stored))
            else:
                self._notes.append(parse_note(text_file))

    def flush(self) -> ScanBatch:
        batch = ScanBatch(tuple(self._notes), tuple(self._touched), tuple(self._deleted), tuple(self._skipped))
        self._notes, self._touched, self._deleted, self._skipped = [], [], [], []
        return batch
