"""Imports the files of a source: reads them in a worker thread, or in several processes, and writes their messages.

Each batch is one transaction with the ledger of what it holds, so an import that is interrupted at any moment and
repeated writes each message once. Memory is bounded by two batches and the ids of the conversations in them.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from quire.concurrency.processes import exit_with_parent, get_spawn_context
from quire.concurrency.worker_threads import MAX_WORK_SECONDS, run_import
from quire.db.dialects import sanitize_text
from quire.engine.message_index import schedule_indexing
from quire.engine.recorded_session import RecordedSession
from quire.engine.state import EngineState
from quire.findings.observer import Observation, SessionObserver
from quire.log.imports import (
    ContinuedSession,
    ImportBatch,
    ImportItem,
    ImportLedger,
    Position,
    make_conversation_id,
    make_item_id,
)
from quire.log.observations import FileVersion, make_file_key
from quire.log.types import ConversationRecord
from quire.model.ids import now
from quire.model.json_values import dump_json
from quire.sources.base import (
    ABANDONED_SECONDS,
    BEGINNING,
    Source,
    SourceConversation,
    SourceError,
    get_fingerprint,
    is_growing,
)
from quire.sources.items import build_item, measure_item
from quire.store import SqlStore
from quire.store.reimport import Reread

BATCH_MESSAGES = 1_000
"""Messages of one transaction."""
MAX_BATCH_BYTES = 8_000_000
"""Bytes of messages after which a batch ends early."""
MAX_TITLE_CHARS = 500
REPLY_WAIT_MICROS = 3_600 * 1_000_000
"""How long a session without any reply is not imported. Its first request may be in progress at the gateway, which
records the session when the reply ends."""
GROUP_BYTES = 4_000_000
"""Bytes of files that a process reads at a time. A larger file is read in this process, batch by batch."""
MIN_PARALLEL_BYTES = 30_000_000
"""Bytes of files below which other processes would start for longer than they save."""
MAX_LISTED_ERRORS = 1_000
"""Errors that a report lists. More are counted."""


class ImportOptions(NamedTuple):
    since: int | None = None
    """Conversations whose last change is earlier, in microseconds since 1970, are skipped."""
    project: str | None = None
    """Project of conversations whose source names none."""
    dry_run: bool = False
    """Whether to count what is new without writing it."""
    processes: int = 1
    """Processes that read files, where there is much to read."""
    indexes: bool = True
    """Whether to index what is new in the background; else a search or a server does it later."""
    has_deadline: bool = True
    """Whether a batch must be read within `MAX_WORK_SECONDS`, as in a server, whose other users wait for it."""


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
        self.recorded: RecordedSession | None = None
        """What the gateway recorded of it, with which it is merged."""
        self.continued: ContinuedSession | None = None
        """The entry that it continues, if Quire wrote its first messages for the agent."""
        self.twin: str | None = None
        """Id under which it was imported before the gateway recorded the session."""
        self.twin_ledger: ImportLedger = {}
        self.is_in_recorded = True
        """Whether the gateway recorded all of what the twin has."""
        self.ledger: ImportLedger | None = None
        """Items that earlier imports wrote. None until it is read."""
        self.positions: dict[str, Position] = {}
        self.is_growing = False
        """Whether its reader holds back the end of the file."""
        self.reread: list[ImportItem] | None = None
        """All items so far of a conversation that an earlier version of the reader wrote, and that is replaced."""
        self.has_new = self.has_reply = False
        # The first request of a fork or a sub-agent has what its parent gave it.
        is_own = BEGINNING not in conversation.dropped and origin.parent_agent is None
        self.observer = SessionObserver(source, has_beginning=is_own)
        self.unfinished_replies = conversation.unfinished_replies

    @property
    def waits_for_reply(self) -> bool:
        """Whether nothing of it was answered, and an answer may still come."""
        return not self.has_reply and self.last_at is not None and self.last_at > now() - REPLY_WAIT_MICROS

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
    unfinished_replies: int = 0
    size: int = 0
    observations: list[tuple[ImportedConversation, list[Observation]]] = field(
        default_factory=list[tuple[ImportedConversation, list[Observation]]]
    )
    """What was noticed in conversations that end in this batch."""
    versions: list[FileVersion] = field(default_factory=list[FileVersion])
    """Files that were read to their end and no longer grow."""

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
        version = find_version(source, path)
        for read in _read_file(source, path, options, is_growing=version is None):
            if isinstance(read, SourceError):
                batch.errors.append(read)
            elif isinstance(read, ImportedConversation):
                batch.unfinished_replies += read.unfinished_replies
                if read.waits_for_reply:
                    # The file is looked at again, whatever becomes of it.
                    version = None
                    continue
                # Its observer is done, and would otherwise cross to the writing process.
                batch.observations.append((read, read.observer.finish()))
                read.observer = SessionObserver()
            else:
                if batch.repeats(read[0]):
                    yield batch
                    batch = ReadBatch()
                batch.add(*read)
            if batch.is_full:
                yield batch
                batch = ReadBatch()
        batch.files += 1
        if version is not None and options.since is None:
            batch.versions.append(version)
    yield batch


def find_version(source: Source, path: Path) -> FileVersion | None:
    """Size and time of a file, or None if it still grows, because its reader holds back the end."""
    try:
        version = FileVersion(make_file_key(source.name, str(path)), *get_fingerprint(path), source.reads)
        return None if is_growing(path, ABANDONED_SECONDS) else version
    except OSError:
        return None


def _read_file(
    source: Source, path: Path, options: ImportOptions, *, is_growing: bool
) -> Iterator[tuple[ImportedConversation, ImportItem] | ImportedConversation | SourceError]:
    """The items of a file, and each conversation once more after its last item."""
    try:
        for read in source.read(path, since=options.since):
            if isinstance(read, SourceError):
                yield read
            else:
                conversation = ImportedConversation(source.name, read, options)
                conversation.is_growing = is_growing
                yield from _read_conversation(conversation, read)
    except Exception as error:  # noqa: BLE001 (a file of unknown content must not end the import of the others)
        yield SourceError.of(path.name, f"{type(error).__name__}: {error}")


def _read_conversation(
    conversation: ImportedConversation, read: SourceConversation
) -> Iterator[tuple[ImportedConversation, ImportItem] | ImportedConversation | SourceError]:
    replaced: dict[str | None, str | None] = {}
    """Parents of messages that cannot be stored, which their children get instead."""
    unanswered: list[ImportItem] = []
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
        conversation.observer.add(message)
        conversation.has_reply = conversation.has_reply or item.role == "assistant"
        unanswered.append(item)
        if conversation.has_reply:
            yield from ((conversation, each) for each in unanswered)
            unanswered = []
    if not conversation.waits_for_reply:
        yield from ((conversation, each) for each in unanswered)
    yield conversation


def read_in_processes(source: Source, files: Sequence[Path], options: ImportOptions) -> Iterator[ReadBatch]:
    """Like `read_batches`, in the same order, with several processes if there is much to read."""
    sizes: list[tuple[Path, int]] = []
    for path in files:
        try:
            sizes.append((path, path.stat().st_size))
        except OSError:
            sizes.append((path, 0))
    if options.processes < 2 or sum(size for _, size in sizes) < MIN_PARALLEL_BYTES:
        yield from read_batches(source, files, options)
        return
    with ProcessPoolExecutor(options.processes, mp_context=get_spawn_context(), initializer=exit_with_parent) as pool:
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


DEFAULT_OPTIONS = ImportOptions()


@dataclass
class ImportReport:
    """What an import has done so far."""

    files: int = 0
    total_files: int = 0
    conversations: int = 0
    """Conversations that got new messages."""
    messages: int = 0
    """Messages that were new."""
    known_messages: int = 0
    """Messages that were imported before, or recorded by the gateway."""
    live_conversations: int = 0
    """Conversations that were merged with what the gateway recorded of their session."""
    unfinished_replies: int = 0
    """Replies that are still being written: a later import brings them."""
    error_count: int = 0
    errors: list[SourceError] = field(default_factory=list[SourceError])
    reread: dict[str, Reread] = field(default_factory=dict[str, Reread])
    """Conversations that were read again, because an earlier version of the reader wrote them."""
    merged: dict[str, str] = field(default_factory=dict[str, str])
    """Conversations that were deleted, or would be, because the gateway recorded all of their session; and where."""
    unmerged: dict[str, str] = field(default_factory=dict[str, str])
    """Conversations that stay in addition to what the gateway recorded of their session: they have something else."""

    def add_error(self, error: SourceError) -> None:
        self.error_count += 1
        if len(self.errors) < MAX_LISTED_ERRORS:
            self.errors.append(error)


async def import_files(
    engine: EngineState,
    source: Source,
    files: Sequence[Path],
    options: ImportOptions = DEFAULT_OPTIONS,
    *,
    on_progress: Callable[[ImportReport], None] | None = None,
    prepare_reread: Callable[[], Awaitable[None]] | None = None,
) -> ImportReport:
    """Imports these files. `on_progress` is called after each batch with the report so far.

    With `prepare_reread`, conversations that an earlier version of the reader wrote are read again. It is called before
    each of them, so that it can copy the database before the first.
    """
    report = ImportReport(total_files=len(files))
    writer = _BatchWriter(engine.store, source, options, report, prepare_reread)
    batches = read_in_processes(source, files, options)

    def read_next() -> "asyncio.Task[ReadBatch | None]":
        seconds = MAX_WORK_SECONDS if options.has_deadline else None
        return asyncio.create_task(run_import(lambda: next(batches, None), timeout_seconds=seconds))

    reading = read_next()
    try:
        while (batch := await reading) is not None:
            # The next batch is read while this one is written.
            reading = read_next()
            if await writer.write(batch) and options.indexes:
                schedule_indexing(engine)
            if on_progress is not None:
                on_progress(report)
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        if (report.reread or report.merged) and not options.dry_run:
            await engine.store.message_index.remove_retired()
    return report


class _BatchWriter:
    """Writes batches, without the items that are imported already."""

    def __init__(
        self,
        store: SqlStore,
        source: Source,
        options: ImportOptions,
        report: ImportReport,
        prepare_reread: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._store, self._source, self._options, self._report = store, source.name, options, report
        self._reads = source.reads
        self._prepare_reread = prepare_reread if not options.dry_run else None

    async def write(self, batch: ReadBatch) -> bool:
        """Writes a batch. Returns whether it added messages."""
        unread = [part for part in batch.parts if part.conversation.ledger is None]
        if unread:
            await self._read_ledgers(unread)
        for conversation, items in batch.parts:
            if conversation.reread is not None:
                conversation.reread += items
        is_written = await self._append([part for part in batch.parts if part.conversation.reread is None])
        for conversation, _ in batch.observations:
            if conversation.reread is not None:
                await self._reread(conversation, conversation.reread)
                is_written = True
            if conversation.twin is not None and conversation.recorded is not None:
                is_merged = conversation.is_in_recorded and await self._merge(conversation.twin)
                of_twins = self._report.merged if is_merged else self._report.unmerged
                of_twins[conversation.twin] = conversation.recorded.record.id
        if not self._options.dry_run:
            noticed = {
                conversation.id: dump_json([_locate(each, conversation) for each in observations])
                for conversation, observations in batch.observations
                # What was noticed in a session's file stays when another file continues it.
                if conversation.positions and conversation.continued is None
            }
            await self._store.imports.record_files(batch.versions, noticed)
        self._report.files += batch.files
        self._report.unfinished_replies += batch.unfinished_replies
        for error in batch.errors:
            self._report.add_error(error)
        return is_written

    async def _merge(self, twin: str) -> bool:
        """Deletes a conversation that the gateway recorded, or says whether it would be deleted."""
        if self._options.dry_run:
            return await self._store.reimport.is_plain_import(twin)
        if self._prepare_reread is None:
            return False
        await self._prepare_reread()
        return await self._store.reimport.delete_twin(twin)

    async def _append(self, parts: Sequence[BatchPart]) -> bool:
        """Appends what is new of these items. Returns whether there was any."""
        new_parts = [BatchPart(part.conversation, self._select_new(part)) for part in parts]
        new_parts = [part for part in new_parts if part.items]
        is_written = bool(new_parts) and not self._options.dry_run
        if is_written:
            added = await self._store.imports.append(
                [ImportBatch(each.make_record(), items, each.positions, self._reads) for each, items in new_parts]
            )
            for (conversation, _), positions in zip(new_parts, added, strict=True):
                conversation.positions.update(positions)
        for conversation, items in new_parts:
            self._report.messages += len(items)
            self._report.conversations += not conversation.has_new
            conversation.has_new = True
        return is_written

    async def _reread(self, conversation: ImportedConversation, items: list[ImportItem]) -> None:
        """Replaces a conversation that an earlier version of the reader wrote."""
        if self._prepare_reread is not None:
            await self._prepare_reread()
        batch = ImportBatch(conversation.make_record(), items, {}, self._reads)
        reread = await self._store.reimport.replace(batch)
        conversation.reread = None
        if reread is None:
            part = BatchPart(conversation, items)
            conversation.ledger = None
            await self._read_ledgers([part])
            await self._append([part])
            return
        conversation.positions.update(reread.positions)
        self._report.reread[conversation.id] = reread
        known = sum(item.key in (conversation.ledger or {}) for item in items)
        self._report.known_messages += known
        self._report.messages += len(items) - known
        self._report.conversations += known < len(items)

    async def _read_ledgers(self, parts: Sequence[BatchPart]) -> None:
        """Reads what is known of conversations, and finds those that the gateway recorded."""
        ledgers = await self._store.imports.read_ledgers({part.conversation.id for part in parts})
        sessions = {part.conversation.origin.session for part in parts}
        found = await self._store.imports.list_sessions(self._source, [each for each in sessions if each is not None])
        continued = await self._store.imports.read_continued({part.conversation.id for part in parts})
        outdated: set[str] = set()
        if self._prepare_reread is not None and self._reads > 1:
            outdated = await self._store.imports.list_outdated(ledgers.keys(), reads=self._reads)
        for conversation, items in parts:
            if conversation.ledger is not None:
                continue
            ledger = ledgers.get(conversation.id)
            candidates = found.get(conversation.origin.session or "", ())
            if candidates:
                conversation.recorded = await self._find_recorded(conversation, candidates, items, ledger)
            if ledger is not None and conversation.recorded is not None:
                conversation.twin, conversation.twin_ledger = conversation.id, ledger
            if conversation.recorded is None and conversation.id in outdated and not conversation.is_growing:
                conversation.ledger, conversation.reread = ledger, []
                continue
            own = next((each for each in candidates if each.id == conversation.id), None)
            is_twin = conversation.twin is not None
            if not is_twin and ledger and own is not None and await self._has_other_entries(own.id, ledger):
                # The session went on through the gateway after an import.
                conversation.recorded = await RecordedSession.load(self._store, own)
            if conversation.recorded is not None:
                conversation.id = conversation.recorded.record.id
                ledger = (await self._store.imports.read_ledgers({conversation.id})).get(conversation.id)
            elif (written := continued.get(conversation.id)) is not None:
                conversation.continued, conversation.id = written, written.conversation
                ledger = (await self._store.imports.read_ledgers({written.conversation})).get(written.conversation)
                if await self._has_other_entries(written.conversation, ledger or {}):
                    # The gateway may have recorded what the agent said next.
                    record = await self._store.get_conversation(written.conversation)
                    conversation.recorded = await RecordedSession.load(self._store, record)
            self._report.live_conversations += conversation.recorded is not None
            conversation.ledger = ledger or {}

    async def _has_other_entries(self, conversation: str, ledger: ImportLedger) -> bool:
        """Whether a branch has entries that were not imported."""
        imported = Counter(branch for branch, _ in set(ledger.values()))
        branches = await self._store.list_branches(conversation)
        return any(each.head_seq - each.fork_seq > imported[each.number] for each in branches)

    async def _find_recorded(
        self,
        conversation: ImportedConversation,
        candidates: Sequence[ConversationRecord],
        items: Sequence[ImportItem],
        ledger: ImportLedger | None,
    ) -> RecordedSession | None:
        """The recorded conversation that has the most of its replies. A session has one with its user, and several
        with sub-agents, so that one of the latter must have a reply."""
        is_main = conversation.origin.purpose is None
        sessions = [
            await RecordedSession.load(self._store, each)
            for each in candidates
            # One of this id came from an export, which has no ledger.
            if ((each.id == conversation.id and not ledger) or not each.id.startswith(f"{self._source}-"))
            and (each.origin is None or each.origin.purpose is None) == is_main
        ]
        best = max(sessions, key=lambda each: each.count_replies(items), default=None)
        needs_reply = not is_main or ledger is not None
        return best if best is not None and (not needs_reply or best.count_replies(items)) else None

    def _select_new(self, part: BatchPart) -> list[ImportItem]:
        conversation, items = part
        if conversation.ledger is None:
            return []
        new: list[ImportItem] = []
        continued, recorded = conversation.continued, conversation.recorded
        for item in items:
            position = conversation.ledger.get(item.key)
            if continued is not None and item.at < continued.written_at:
                position = continued.branch, continued.seq
                position = recorded.find_words(*position) if recorded is not None else position
            if position is None:
                new.append(item)
            else:
                conversation.positions[item.id] = position
                self._report.known_messages += 1
        if recorded is not None:
            new, recorded_count = recorded.select_new(new, conversation.positions)
            self._report.known_messages += recorded_count
        if conversation.twin is not None:
            # What was said before the gateway recorded the session stays where it was imported.
            earlier = [item for item in new if item.key in conversation.twin_ledger]
            conversation.is_in_recorded = conversation.is_in_recorded and not earlier
            self._report.known_messages += len(earlier)
            new = [item for item in new if item.key not in conversation.twin_ledger]
        return new


def _locate(observation: Observation, conversation: ImportedConversation) -> Observation:
    """The observation with the position of its entry in place of the item's id."""
    branch, seq = conversation.positions.get(make_item_id(observation.item), (0, 1))
    return observation._replace(item=f"{branch}:{seq}")
