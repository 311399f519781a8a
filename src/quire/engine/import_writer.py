"""Imports the files of a source: reads them in a worker thread and writes their messages in batches.

Each batch is one transaction with the ledger of what it holds, so an import that is interrupted at any moment and
repeated writes each message once. Memory is bounded by two batches and the ids of the conversations in them.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quire.concurrency.worker_threads import run_in_worker
from quire.engine.context import EngineContext
from quire.engine.import_reader import BatchPart, ImportedConversation, ImportOptions, ReadBatch, read_in_processes
from quire.engine.message_index import schedule_indexing
from quire.importers.base import Source, SourceError
from quire.log.imports import ImportBatch, ImportItem
from quire.store import SqlStore

MAX_LISTED_ERRORS = 1_000
"""Errors that a report lists; more are counted."""

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
    """Messages that were imported before."""
    live_conversations: int = 0
    """Conversations that were skipped because the gateway recorded their session."""
    error_count: int = 0
    errors: list[SourceError] = field(default_factory=list[SourceError])

    def add_error(self, error: SourceError) -> None:
        self.error_count += 1
        if len(self.errors) < MAX_LISTED_ERRORS:
            self.errors.append(error)


async def import_files(
    engine: EngineContext,
    source: Source,
    files: Sequence[Path],
    options: ImportOptions = DEFAULT_OPTIONS,
    *,
    on_progress: Callable[[ImportReport], None] | None = None,
) -> ImportReport:
    """Imports these files. `on_progress` is called after each batch with the report so far."""
    report = ImportReport(total_files=len(files))
    writer = _BatchWriter(engine.store, source.name, options, report)
    batches = read_in_processes(source, files, options)
    reading = asyncio.ensure_future(run_in_worker(next, batches, None))
    try:
        while (batch := await reading) is not None:
            # The next batch is read while this one is written.
            reading = asyncio.ensure_future(run_in_worker(next, batches, None))
            if await writer.write(batch):
                schedule_indexing(engine)
            if on_progress is not None:
                on_progress(report)
    finally:
        await asyncio.wait([reading])
    return report


class _BatchWriter:
    """Writes batches, without the items that are imported already."""

    def __init__(self, store: SqlStore, source: str, options: ImportOptions, report: ImportReport) -> None:
        self._store, self._source, self._options, self._report = store, source, options, report

    async def write(self, batch: ReadBatch) -> bool:
        """Writes a batch; returns whether it added messages."""
        await self._load_ledgers([part.conversation for part in batch.parts])
        new_parts = [BatchPart(part.conversation, self._select_new(part)) for part in batch.parts]
        new_parts = [part for part in new_parts if part.items]
        is_written = bool(new_parts) and not self._options.dry_run
        if is_written:
            added = await self._store.imports.append(
                [ImportBatch(each.make_record(), items, each.positions) for each, items in new_parts]
            )
            for (conversation, _), positions in zip(new_parts, added, strict=True):
                conversation.positions.update(positions)
        self._update_report(batch, new_parts)
        return is_written

    async def _load_ledgers(self, conversations: Sequence[ImportedConversation]) -> None:
        unread = [each for each in conversations if each.ledger is None]
        if not unread:
            return
        ledgers = await self._store.imports.read_ledgers({each.id for each in unread})
        sessions = {each.origin.session for each in unread if each.origin.session is not None}
        live = await self._store.imports.find_live_sessions(self._source, sessions) if sessions else set[str]()
        for each in unread:
            each.ledger = ledgers.get(each.id, {})
            each.is_live = each.origin.session in live and not each.ledger
            self._report.live_conversations += each.is_live

    def _select_new(self, part: BatchPart) -> list[ImportItem]:
        conversation, items = part
        if conversation.is_live or conversation.ledger is None:
            return []
        new: list[ImportItem] = []
        for item in items:
            position = conversation.ledger.get(item.key)
            if position is None:
                new.append(item)
            else:
                conversation.positions[item.id] = position
                self._report.known_messages += 1
        return new

    def _update_report(self, batch: ReadBatch, new_parts: Sequence[BatchPart]) -> None:
        for conversation, items in new_parts:
            self._report.messages += len(items)
            self._report.conversations += not conversation.has_new
            conversation.has_new = True
        self._report.files += batch.files
        for error in batch.errors:
            self._report.add_error(error)
