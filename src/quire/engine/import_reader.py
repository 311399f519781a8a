"""Reads the files of a source into batches of items that can be written, in this process or in several."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from quire.concurrency.processes import get_spawn_context
from quire.db.dialects import sanitize_text
from quire.importers.base import Source, SourceConversation, SourceError
from quire.importers.items import build_item, measure_item
from quire.log.imports import ImportItem, ImportLedger, Position
from quire.log.types import ConversationRecord
from quire.model.ids import now

BATCH_MESSAGES = 1_000
"""Messages of one transaction."""
MAX_BATCH_BYTES = 8_000_000
"""Bytes of messages after which a batch ends early."""
MAX_TITLE_CHARS = 500
GROUP_BYTES = 4_000_000
"""Bytes of files that a process reads at a time. A larger file is read in this process, batch by batch."""
MIN_PARALLEL_BYTES = 30_000_000
"""Bytes of files below which other processes would start for longer than they save."""


class ImportOptions(NamedTuple):
    since: int | None = None
    """Conversations whose last change is earlier, in microseconds since 1970, are skipped."""
    project: str | None = None
    """Project of conversations whose source names none."""
    dry_run: bool = False
    """Whether to count what is new without writing it."""
    processes: int = 1
    """Processes that read files, where there is much to read."""


def make_conversation_id(source: str, source_id: str) -> str:
    """Id of an imported conversation, which is the same in every import."""
    return f"{source}-{sha256(source_id.encode(errors='replace')).hexdigest()[:20]}"


class ImportedConversation:
    """A conversation that is being imported: what is known of it, over all batches that hold a part of it."""

    def __init__(self, source: str, conversation: SourceConversation, options: ImportOptions) -> None:
        origin = conversation.origin
        if origin.project is None and options.project is not None:
            origin = origin.model_copy(update={"project": options.project})
        self.id = make_conversation_id(source, conversation.id)
        self.title = sanitize_text(conversation.title)[:MAX_TITLE_CHARS]
        self.origin = origin
        self.last_at = conversation.created_at
        self.created_at = conversation.created_at
        self.dropped = conversation.dropped
        self.is_live = False
        self.ledger: ImportLedger | None = None
        """Items that earlier imports wrote; None until it is read."""
        self.positions: dict[str, Position] = {}
        self.has_new = False

    def make_record(self) -> ConversationRecord:
        at = self.created_at if self.created_at is not None else now()
        return ConversationRecord(self.id, self.title, at, at, self.origin)


class BatchPart(NamedTuple):
    """Items of one conversation in a batch."""

    conversation: ImportedConversation
    items: list[ImportItem]


@dataclass
class ReadBatch:
    """What is read before it is written: items of several conversations, errors, and the number of finished files."""

    parts: list[BatchPart] = field(default_factory=list[BatchPart])
    conversations: dict[str, ImportedConversation] = field(default_factory=dict[str, ImportedConversation])
    errors: list[SourceError] = field(default_factory=list[SourceError])
    files: int = 0
    messages: int = 0
    size: int = 0

    @property
    def is_full(self) -> bool:
        return self.messages >= BATCH_MESSAGES or self.size >= MAX_BATCH_BYTES or len(self.errors) >= BATCH_MESSAGES

    def repeats(self, conversation: ImportedConversation) -> bool:
        """Whether the batch has a conversation that another item of the source calls by the same id."""
        return self.conversations.get(conversation.id, conversation) is not conversation

    def add(self, conversation: ImportedConversation, item: ImportItem) -> None:
        self.conversations[conversation.id] = conversation
        if not self.parts or self.parts[-1].conversation is not conversation:
            self.parts.append(BatchPart(conversation, []))
        self.parts[-1].items.append(item)
        self.messages += 1
        self.size += measure_item(item)


def read_batches(source: Source, files: Sequence[Path], options: ImportOptions) -> Iterator[ReadBatch]:
    batch = ReadBatch()
    for path in files:
        for read in _read_file(source, path, options):
            if isinstance(read, SourceError):
                batch.errors.append(read)
            else:
                if batch.repeats(read[0]):
                    yield batch
                    batch = ReadBatch()
                batch.add(*read)
            if batch.is_full:
                yield batch
                batch = ReadBatch()
        batch.files += 1
    yield batch


def _read_file(
    source: Source, path: Path, options: ImportOptions
) -> Iterator[tuple[ImportedConversation, ImportItem] | SourceError]:
    try:
        for read in source.read(path, since=options.since):
            if isinstance(read, SourceError):
                yield read
            else:
                yield from _read_conversation(source, read, options)
    except Exception as error:  # noqa: BLE001 (a file of unknown content must not end the import of the others)
        yield SourceError.of(path.name, f"{type(error).__name__}: {error}")


def _read_conversation(
    source: Source, read: SourceConversation, options: ImportOptions
) -> Iterator[tuple[ImportedConversation, ImportItem] | SourceError]:
    conversation = ImportedConversation(source.name, read, options)
    replaced: dict[str | None, str | None] = {}
    """Parents of messages that cannot be stored, which their children get instead."""
    for message in read.messages:
        if isinstance(message, SourceError):
            yield message
            continue
        parent = replaced.get(message.parent, message.parent)
        default_at = conversation.last_at if conversation.last_at is not None else now()
        try:
            item = build_item(message._replace(parent=parent), default_at=default_at, dropped=conversation.dropped)
        except ValueError as error:
            replaced[message.id] = parent
            yield SourceError.of(message.id, error)
            continue
        conversation.last_at, conversation.dropped = item.at, ()
        if conversation.created_at is None:
            conversation.created_at = item.at
        yield conversation, item


def read_in_processes(source: Source, files: Sequence[Path], options: ImportOptions) -> Iterator[ReadBatch]:
    """Like `read_batches`, in the same order, with several processes if there is much to read."""
    sizes = [(path, _get_size(path)) for path in files]
    if options.processes < 2 or sum(size for _, size in sizes) < MIN_PARALLEL_BYTES:
        yield from read_batches(source, files, options)
        return
    with ProcessPoolExecutor(options.processes, mp_context=get_spawn_context()) as pool:
        reading: deque[Future[list[ReadBatch]] | list[Path]] = deque()
        for group, is_small in _group_files(sizes):
            reading.append(pool.submit(_read_group, source, group, options) if is_small else group)
            # A bound on what is read and not yet written.
            while len(reading) > options.processes + 1:
                yield from _finish(reading.popleft(), source, options)
        while reading:
            yield from _finish(reading.popleft(), source, options)


def _finish(
    reading: Future[list[ReadBatch]] | list[Path], source: Source, options: ImportOptions
) -> Iterator[ReadBatch]:
    return read_batches(source, reading, options) if isinstance(reading, list) else iter(reading.result())


def _read_group(source: Source, files: Sequence[Path], options: ImportOptions) -> list[ReadBatch]:
    return list(read_batches(source, files, options))


def _group_files(sizes: Sequence[tuple[Path, int]]) -> Iterator[tuple[list[Path], bool]]:
    """Groups of consecutive files of up to `GROUP_BYTES`, and whether each is that small."""
    group, total = list[Path](), 0
    for path, size in sizes:
        if group and total + size > GROUP_BYTES:
            yield group, True
            group, total = [], 0
        if size > GROUP_BYTES:
            yield [path], False
        else:
            group.append(path)
            total += size
    if group:
        yield group, True


def _get_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
