"""`SqlStore`: the asynchronous store on SQLite and PostgreSQL.

Every method runs one function on a connection in one transaction. A store belongs to one tenant.
"""

from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager

from cachetools import LRUCache
from sqlalchemy import Connection

from quire.errors import BlobNotFound, StoreError
from quire.log import (
    append,
    blobs,
    conversations,
    dialects,
    history_match,
    integrity,
    ledger,
    purge,
    reads,
    titles,
    value_purge,
)
from quire.log.backtests import SqlBacktestStore
from quire.log.branch_heads import SqlBranchHeads
from quire.log.costs import SqlCostStore
from quire.log.database import Database
from quire.log.ids import new_id, now
from quire.log.imports import SqlImportStore
from quire.log.keys import SqlKeyStore
from quire.log.rate_limits import SqlRateLimits
from quire.log.samples import SqlSampleStore
from quire.log.search_store import SqlSearchStore
from quire.log.store_base import DEFAULT_TENANT, P, StoreFunction, T, with_branch
from quire.log.transcripts import SqlTranscriptStore
from quire.log.turn_events import SqlTurnEvents
from quire.log.turn_leases import SqlTurnLeaseStore
from quire.log.types import (
    MAIN_BRANCH,
    Blob,
    Branch,
    BranchMatch,
    ConversationOrigin,
    ConversationRecord,
    IntegrityFault,
    OriginCount,
    PrefixMatch,
    RecordedRequest,
    ReplyRecord,
    TurnLease,
    ValuePurge,
    Window,
)
from quire.log.usage.store import SqlUsageStore
from quire.log.worklist import SqlWorklist
from quire.model import Body, Draft, Entry, EntryKind, Manifest, Message, Role, iter_paths


class SqlStore(
    SqlSearchStore,
    SqlWorklist,
    SqlBranchHeads,
    SqlTurnEvents,
    SqlRateLimits,
    SqlKeyStore,
    SqlCostStore,
    SqlImportStore,
    SqlTranscriptStore,
    SqlSampleStore,
    SqlUsageStore,
    SqlTurnLeaseStore,
    SqlBacktestStore,
):
    """The log in SQLite or PostgreSQL."""

    def __init__(self, database: Database, *, tenant: str = DEFAULT_TENANT) -> None:
        super().__init__(database, tenant=tenant)
        self._known_blobs: LRUCache[bytes, None] = LRUCache(blobs.MAX_KNOWN_BLOBS)
        """Digests of stored blobs, which are not sent again; a purge may make it stale. Only the event loop changes it,
        and the database threads only test for membership."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: str, *, tenant: str = DEFAULT_TENANT, listen_url: str | None = None
    ) -> AsyncGenerator["SqlStore"]:
        """Opens `sqlite:///path` (created and migrated if needed) or `postgresql://…` (see `quire db upgrade`).

        If `url` leads to a pooler, `listen_url` leads past it, for the connection of `notifications`."""
        store = cls(await dialects.open_database(url, listen_url=listen_url), tenant=tenant)
        try:
            yield store
        finally:
            await store.close()

    def for_tenant(self, tenant: str) -> "SqlStore":
        """A store for another tenant on the same database; closing either closes both."""
        return SqlStore(self._database, tenant=tenant)

    async def close(self) -> None:
        await self._database.close()

    async def create_conversation(
        self, id: str | None = None, *, title: str = "", origin: ConversationOrigin | None = None
    ) -> ConversationRecord:
        at = now()
        conversation = ConversationRecord(id or new_id(), title, at, at, origin)
        await self._write(conversations.create_conversation, conversation)
        return conversation

    async def get_conversation(self, id: str) -> ConversationRecord:
        return await self._read_inline(conversations.get_conversation, id)

    async def list_conversations(
        self,
        *,
        limit: int = 50,
        before: ConversationRecord | None = None,
        origin: ConversationOrigin | None = None,
        main_only: bool = False,
    ) -> list[ConversationRecord]:
        """Most recently updated first. Cursor pagination: `before` is the last one of the previous page.

        With `origin`, only conversations with the same values in the fields that it sets; with `main_only`, only those
        without a purpose."""
        return await self._read(
            conversations.list_conversations, limit=limit, before=before, origin=origin, main_only=main_only
        )

    async def list_origins(self, *, limit: int = 200) -> list[OriginCount]:
        """Clients and projects with the number of their conversations, the most recently used first."""
        return await self._read(conversations.list_origins, limit=limit)

    async def list_session(self, session: str, *, limit: int = 50) -> list[ConversationRecord]:
        """The conversations of a client's session, most recently updated first."""
        return await self._read(conversations.list_session, session, limit=limit)

    async def fill_titles(self, *items: ConversationRecord) -> list[ConversationRecord]:
        """Fills missing titles with the first words of the first question."""
        return await self._read(titles.fill_titles, items)

    async def sum_tokens(self, conversations: Collection[str]) -> dict[str, int]:
        """Tokens of all messages of each of these conversations, on all branches."""
        return await self._read(reads.sum_tokens, conversations)

    async def rename_conversation(self, conversation: str, title: str) -> None:
        await self._write_conversation(conversations.rename_conversation, conversation, title)

    async def get_branch(self, conversation: str, number: int = MAIN_BRANCH) -> Branch:
        return await self._read_inline(conversations.get_branch, conversation, number)

    async def list_branches(self, conversation: str) -> list[Branch]:
        return await self._read(conversations.list_branches, conversation)

    async def fork(self, conversation: str, *, at: int, branch: int = MAIN_BRANCH, name: str | None = None) -> Branch:
        """Creates a branch that shares the entries up to and including `at` (0: none)."""
        return await self._write_conversation(conversations.create_fork, conversation, branch=branch, at=at, name=name)

    async def append(
        self,
        conversation: str,
        *items: Draft | Body,
        branch: int = MAIN_BRANCH,
        after: bytes | None = None,
        lease: TurnLease | None = None,
    ) -> list[Entry]:
        """Appends all items or none.

        With `after` (a message's path, or `CHAIN_ROOT`) the append is idempotent: items that are stored right after
        that message are returned, and `StaleHead` is raised if other entries follow it (optimistic concurrency).
        With `lease`, `TurnLeaseLost` is raised if the turn no longer has it."""
        drafts = [item if isinstance(item, Draft) else Draft(body=item) for item in items]
        return await self._write_conversation(
            append.append_entries, conversation, drafts, branch=branch, after=after, lease=lease
        )

    async def get_entry(self, conversation: str, seq: int, *, branch: int = MAIN_BRANCH) -> Entry:
        return await self._read_inline(with_branch(reads.get_entry), conversation, branch, seq)

    async def get_entries(self, conversation: str, seqs: Collection[int], *, branch: int = MAIN_BRANCH) -> list[Entry]:
        """These entries in ascending order; unknown numbers are skipped."""
        return await self._read_inline(with_branch(reads.read_entries), conversation, branch, seqs)

    async def read_range(
        self,
        conversation: str,
        *,
        branch: int = MAIN_BRANCH,
        first: int = 1,
        last: int | None = None,
        kinds: Collection[EntryKind] | None = None,
        roles: Collection[Role] | None = None,
        limit: int | None = None,
    ) -> list[Entry]:
        """Entries `first` to `last`, oldest first; with `limit`, the oldest of them."""
        return await self._read_inline(
            with_branch(reads.read_range),
            conversation,
            branch,
            first=first,
            last=last,
            kinds=kinds,
            roles=roles,
            limit=limit,
        )

    async def list_referencing_entries(self, conversation: str, *, branch: int = MAIN_BRANCH) -> list[Entry]:
        """Entries of a branch whose metadata references documents, oldest first."""
        return await self._read(with_branch(reads.read_referencing_entries), conversation, branch)

    async def read_tail(
        self,
        conversation: str,
        limit: int,
        *,
        branch: int = MAIN_BRANCH,
        last: int | None = None,
        kinds: Collection[EntryKind] | None = None,
        roles: Collection[Role] | None = None,
    ) -> list[Entry]:
        """The newest `limit` entries up to `last`, oldest first."""
        return await self._read_inline(
            with_branch(reads.read_tail),
            conversation,
            branch,
            limit=limit,
            last=last,
            kinds=kinds,
            roles=roles,
        )

    async def read_window(
        self,
        conversation: str,
        *,
        branch: int = MAIN_BRANCH,
        max_tokens: int | None = None,
        known: Window | None = None,
    ) -> Window:
        """The active compaction and the messages that it does not cover, independent of the history's length.

        With `max_tokens`, a long window is read only from its end, until it has that many tokens. Entries of `known`,
        a window of this branch that was read before, are not read again unless they were purged since."""
        return await self._read_inline(
            with_branch(reads.read_window), conversation, branch, max_tokens=max_tokens, known=known
        )

    async def find_longest_prefix(
        self, messages: Sequence[Message], *, conversation: str | None = None
    ) -> PrefixMatch | None:
        """Where the longest prefix of these messages is stored: in this conversation, or without one in any."""
        candidates = list(iter_paths(message.canonical_json() for message in messages))
        match = await self._read_inline(_find_longest_path, candidates, conversation)
        return match and PrefixMatch(match[0] + 1, *match[1:])

    async def match_history(
        self, paths: Sequence[bytes], *, conversation: str | None = None, session: str | None = None
    ) -> BranchMatch | None:
        """The branch that stores the longest prefix of messages with these paths: in this conversation, or in any.

        If a given conversation has none of them, the head of its latest branch; None if it does not exist. With
        `session`, any prefix in a conversation of that session is preferred to a longer one elsewhere."""
        return await self._read_inline(history_match.match_history, paths, conversation=conversation, session=session)

    async def record_reply(
        self, conversation: str, record: ReplyRecord, *, branch: int = MAIN_BRANCH, after: bytes | None = None
    ) -> list[Entry]:
        """Appends a turn like `append`, and stores the manifest of its request in the same transaction."""
        known_blobs = self._known_blobs
        try:
            stored = await self._write_conversation(
                ledger.record_reply, conversation, record, branch=branch, after=after, known_digests=known_blobs
            )
        except (BlobNotFound, StoreError) as error:
            if not (len(known_blobs) and blobs.is_missing_blob(error)):
                raise
            # A purge deleted a blob that this process considers stored; retry with all blobs.
            known_blobs.clear()
            stored = await self._write_conversation(
                ledger.record_reply, conversation, record, branch=branch, after=after
            )
        known_blobs.update(dict.fromkeys(map(blobs.compute_digest, record.blobs)))
        return stored

    async def get_manifest(self, conversation: str, seq: int, *, branch: int = MAIN_BRANCH) -> Manifest:
        """The manifest of the request that entry `seq` answered."""
        return await self._read_inline(with_branch(ledger.get_manifest), conversation, branch, seq)

    async def list_manifests(
        self, conversation: str, *, branch: int = MAIN_BRANCH, limit: int | None = None, last: int | None = None
    ) -> list[tuple[int, Manifest]]:
        """The newest `limit` manifests of a branch with the numbers of their replies, oldest first."""
        return await self._read(with_branch(ledger.list_manifests), conversation, branch, limit=limit, last=last)

    async def get_request(self, id: str) -> RecordedRequest:
        """The answered request with this id and the location of its reply."""
        return await self._read_inline(ledger.get_request, id)

    async def find_response(self, response_id: str) -> RecordedRequest:
        """The answered request whose reply has this id; the newest if an upstream repeated the id."""
        return await self._read_inline(ledger.find_response, response_id)

    async def forget_response(self, response_id: str) -> bool:
        """Makes a reply unknown by its response id; the reply stays in the log. Returns whether there was one."""
        return await self._write(ledger.forget_response, response_id)

    async def get_calibration(self, model: str) -> str | None:
        """The latest token calibration of a model, as JSON."""
        return await self._read_inline(ledger.get_calibration, model)

    async def put_blob(self, data: bytes, *, media_type: str = "application/octet-stream") -> str:
        """Stores these bytes once (deduplicated by digest) and returns their digest."""
        return await self._write(blobs.put_blob, Blob(media_type, data))

    async def get_blob(self, digest: str) -> Blob:
        return await self._read(blobs.get_blob, digest)

    async def purge(
        self, conversation: str, seqs: Collection[int] | None = None, *, branch: int = MAIN_BRANCH
    ) -> list[Entry]:
        """Erases the content of these entries, or of the whole conversation, and everything derived from it: summaries,
        memories and the search index. Returns the purged entries."""
        return await self._purge(purge.purge_entries, conversation, seqs, branch=branch)

    async def purge_value(self, value: str) -> ValuePurge:
        """Erases this text, such as a leaked key, from every row of the tenant: see `quire.log.value_purge`."""
        return await self._purge(value_purge.erase_value, value)

    async def find_value(self, value: str) -> dict[str, int]:
        """The number of rows that contain this text, by table."""
        found = await self._read_bulk(value_purge.find_value, value)
        return {name.removeprefix("quire_"): len(rows) for name, rows in found.items()}

    async def _purge(self, function: StoreFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            purged = await self._write_bulk(function, *args, **kwargs)
        except StoreError as error:
            if not blobs.is_missing_blob(error):
                raise
            # A concurrent append referenced a blob that was being deleted; the retry sees the reference and retains it.
            purged = await self._write_bulk(function, *args, **kwargs)
        await self._database.scrub()
        return purged

    async def is_purged(self, conversation: str) -> bool:
        """Whether the whole conversation was purged and has had no append, fork or title since."""
        return await self._read(conversations.is_purged, conversation)

    async def verify_tenant(self) -> list[IntegrityFault]:
        """Memories, API keys and calibrations of the tenant that differ from what was recorded."""
        return await self._read_bulk(integrity.verify_tenant)

    async def verify_conversation(self, conversation: str) -> list[IntegrityFault]:
        """Checks the hash chain of every branch; an empty list means that the log is intact."""
        return await self._read_bulk(integrity.verify_conversation, conversation)

    async def export_conversation(self, conversation: str) -> AsyncGenerator[str]:
        """The conversation as JSON Lines, up to the heads that its branches had at the start."""
        from quire.log import export_import

        yield export_import.format_conversation_line(await self.get_conversation(conversation))
        for digest in await self._read_bulk(blobs.list_used_blobs, conversation):
            yield export_import.format_blob_line(digest, await self.get_blob(digest))
        count = 0
        for branch in await self.list_branches(conversation):
            yield export_import.format_branch_line(branch)
            for first in range(branch.fork_seq + 1, branch.head_seq + 1, export_import.EXPORT_BATCH_SIZE):
                last = min(first + export_import.EXPORT_BATCH_SIZE - 1, branch.head_seq)
                for entry in await self.read_range(conversation, branch=branch.number, first=first, last=last):
                    yield export_import.format_entry_line(entry)
                    count += 1
            for seq, manifest in await self._read_bulk(
                with_branch(ledger.list_own_manifests), conversation, branch.number
            ):
                yield export_import.format_manifest_line(branch.number, seq, manifest)
        yield export_import.format_end_line(count)

    async def import_conversation(self, lines: Iterable[str], *, as_id: str | None = None) -> ConversationRecord:
        """Imports an exported conversation in one transaction, under another id if one is given."""
        from quire.log.export_import import import_lines

        return await self._write_bulk(import_lines, lines, as_id=as_id)


def _find_longest_path(
    connection: Connection, tenant: str, candidates: Sequence[bytes], conversation: str | None
) -> dialects.PathMatch | None:
    return dialects.find_longest_path(connection, candidates, tenant=tenant, conversation=conversation)
