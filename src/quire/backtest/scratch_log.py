"""`ScratchLog`: the log of one simulation, in memory, to which the recorded entries are appended in their order."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from quire.engine import Engine
from quire.engine.message_index import MAX_INLINE_ENTRIES, index_messages
from quire.engine.recorder import Recorder
from quire.engine.request import PendingMessage, Request
from quire.errors import BlobNotFound
from quire.log import MAIN_BRANCH, ReplyRecord
from quire.model import Draft, Entry, Manifest, Message, Span
from quire.model.entry_bodies import Body, Pin, Priority, Unpin
from quire.store import SqlStore
from quire.view.decisions import set_pending_span
from quire.view.strategies import get_strategy

INDEX_INTERVAL_ENTRIES = MAX_INLINE_ENTRIES // 2
"""Entries after which the log is indexed for recall, as a background job does in a real run."""


class ScratchLog:
    """Appends recorded entries with their original times; their numbers differ where compactions differ."""

    def __init__(self, engine: Engine, conversation: str, source: SqlStore) -> None:
        self._engine, self._conversation, self._source = engine, conversation, source
        self._recorder = Recorder(engine, conversation, MAIN_BRANCH)
        self.numbers: dict[int, int] = {}
        """Number in this log by number in the stored conversation."""
        self._recorded_numbers: dict[int, int] = {}
        self._token_counts: list[tuple[int, int]] = []
        self._unindexed_entries = 0

    def find_recorded_number(self, number: int) -> int | None:
        """Number in the stored conversation of a message of this log."""
        return self._recorded_numbers.get(number)

    def sum_tokens(self, first: int, last: int) -> int:
        """Tokens of the messages from `first` to `last`."""
        return sum(tokens for seq, tokens in self._token_counts if first <= seq <= last)

    async def append(self, entries: Sequence[Entry]) -> None:
        await self.copy_blobs(entries)
        known: list[Entry] = []
        drafts: list[Draft] = []
        for entry in entries:
            body = entry.message if entry.kind == "message" else entry.body
            if isinstance(body, Pin | Unpin | Priority):
                number = self.numbers.get(body.message)
                if number is None:  # It names a message that is not in this log.
                    continue
                body = body.model_copy(update={"message": number})
            known.append(entry)
            drafts.append(self._make_draft(entry, body))
        if drafts:
            self._note_numbers(known, await self._engine.store.append(self._conversation, *drafts))

    async def record(self, request: Request, pending: Sequence[Entry], reply: Entry) -> list[Entry]:
        """Stores a request's pending messages, its reply and its manifest."""
        recorded = (*pending, reply)
        await self.copy_blobs(recorded)
        record = ReplyRecord(
            drafts=tuple(self._make_draft(entry, entry.message) for entry in recorded),
            build_manifest=partial(_build_manifest, request),
            blobs=request.blobs,
        )
        stored = await self._engine.store.record_reply(self._conversation, record, after=request.after)
        self._note_numbers(recorded, stored)
        return stored

    async def index_if_due(self) -> None:
        """Indexes the messages for recall, so that no request meets more of them than it would index by itself."""
        if self._unindexed_entries < INDEX_INTERVAL_ENTRIES:
            return
        self._unindexed_entries = 0
        if get_strategy(self._engine.policy.strategy).recalls:
            await index_messages(self._engine, conversations=[self._conversation])

    async def copy_blobs(self, entries: Iterable[Entry]) -> None:
        """Copies the images, files and documents of these messages."""
        for entry in entries:
            for digest in entry.blob_digests():
                try:
                    blob = await self._source.get_blob(digest)
                except BlobNotFound:
                    continue
                await self._engine.store.put_blob(blob.data, media_type=blob.media_type)

    def _make_draft(self, entry: Entry, body: Body) -> Draft:
        if not isinstance(body, Message):
            return Draft(body=body, author=entry.author, created_at=entry.created_at)
        metadata, counter = entry.metadata, self._engine.message_counter
        if entry.counter == counter.name:
            draft = Draft(
                body=body,
                tokens=entry.token_count,
                references=metadata.references or (),
                written_tokens=metadata.written_tokens,
            )
        else:
            draft = self._recorder.make_draft(PendingMessage(body, metadata.references or ()))
        return replace(
            draft,
            author=entry.author,
            usage=metadata.usage,
            created_at=entry.created_at,
            incomplete=bool(metadata.incomplete),
        )

    def _note_numbers(self, recorded: Sequence[Entry], stored: Sequence[Entry]) -> None:
        self._unindexed_entries += len(stored)
        for before, after in zip(recorded, stored, strict=True):
            if after.kind == "message":
                self.numbers[before.seq], self._recorded_numbers[after.seq] = after.seq, before.seq
                self._token_counts.append((after.seq, after.tokens or 0))


def _build_manifest(request: Request, stored: Sequence[Entry]) -> Manifest:
    if not request.pending:
        return request.manifest
    span = Span(first=stored[0].seq, last=stored[len(request.pending) - 1].seq)
    decisions = set_pending_span(request.manifest.decisions, span)
    return request.manifest.model_copy(update={"decisions": decisions})
