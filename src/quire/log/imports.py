"""Bulk import of messages that another program stored, and the ledger of what was imported.

The ledger has a row for each imported item: its id in the source and the digest of its content. It is written in the
transaction that writes the message, so an import that is interrupted or repeated writes each message once.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from quire.db.dialects import insert_rows, insert_tuples, upsert
from quire.db.notifications import mark_changed
from quire.db.raw_sql import yield_to_event_loop
from quire.db.schema import branches as branches_table
from quire.db.schema import continued_sessions, imports, uncounted_branches, unindexed_branches
from quire.db.schema import conversations as conversations_table
from quire.db.store_part import StorePart, read, read_bulk, read_inline, write, write_bulk
from quire.errors import StoreError
from quire.log import append, blobs, conversations
from quire.log import observations as noticed
from quire.log.tenant_masker import get_masker, mask_text
from quire.log.types import MAIN_BRANCH, Blob, Branch, ConversationRecord
from quire.model import (
    ActiveCompaction,
    Author,
    Body,
    ChainHead,
    Compaction,
    Entry,
    EntryKind,
    Message,
    Span,
    apply_entry,
    chain_entry,
)

MAX_ITEM_ID_CHARS = 100
"""Maximum length of an item's id in the ledger. A longer one is replaced by its digest."""
MAX_LISTED_CONVERSATIONS = 500
"""Conversations whose ledger one statement reads."""

_LEDGER_COLUMNS = ("tenant", "conversation", "item", "digest", "branch", "seq", "reads")
_AUTHORS: dict[str, Author] = {"user": "user", "system": "user", "assistant": "assistant", "tool": "tool"}

Position = tuple[int, int]
"""Branch and number of an entry. The branch is the one that owns the entry."""


class ImportItem(NamedTuple):
    """A message to import, as the log stores it."""

    id: str
    parent: str | None
    """Id of the item before it, or None for the first message of a branch."""
    raw: str
    """Canonical JSON of the message."""
    role: str
    at: int
    digest: bytes
    """SHA-256 of `raw`, with which a second version of the same item is recognized."""
    metadata: str | None = None
    """Canonical JSON of the entry's metadata."""
    blobs: Mapping[str, Blob] = {}
    """Blobs that the message references, by digest."""
    compaction: Compaction | None = None
    """The compaction that the item becomes instead of a message, without numbers of entries."""
    preserved: tuple[str, ...] = ()
    """Ids of the items that remain in the view after the compaction."""

    @property
    def key(self) -> tuple[str, bytes]:
        return self.id, self.digest


class ImportBatch(NamedTuple):
    """Items of one conversation, in order, which is created if it does not exist."""

    conversation: ConversationRecord
    items: Sequence[ImportItem]
    positions: Mapping[str, Position]
    """Positions of items that are in the log already and may be parents."""
    reads: int = 1
    """Version of the reader of its source."""


ImportLedger = dict[tuple[str, bytes], Position]
"""The imported items of a conversation: id and digest, and where each is stored."""


_NUMBERED_ID = re.compile(r"(?:\w+:)?\d+(?::\w+)?")
"""Ids that are unique in their conversation only: the number of a line or a row."""
_ITEM_ID = re.compile(rf"[a-zA-Z0-9_:#/-]{{1,{MAX_ITEM_ID_CHARS}}}")


def make_item_id(text: str) -> str:
    """The id as the ledger stores it. The ledger outlives a purge, so anything but an id is replaced by its digest."""
    return text if _ITEM_ID.fullmatch(text) else sha256(text.encode(errors="replace")).hexdigest()


def is_unique_id(item: str) -> bool:
    """Whether no message of another conversation of the source has this id, except a copy."""
    return _NUMBERED_ID.fullmatch(item) is None


def read_ledgers(connection: Connection, tenant: str, conversation_ids: Collection[str]) -> dict[str, ImportLedger]:
    """The imported items of these conversations, by conversation. One without any is absent."""
    ledgers: dict[str, ImportLedger] = {}
    for ids in _split(sorted(conversation_ids)):
        query = select(imports.c.conversation, imports.c.item, imports.c.digest, imports.c.branch, imports.c.seq).where(
            imports.c.tenant == tenant, imports.c.conversation.in_(ids)
        )
        for conversation, item, digest, branch, seq in connection.execute(query):
            ledgers.setdefault(conversation, {})[item, digest] = (branch, seq)
    return ledgers


def make_conversation_id(source: str, source_id: str) -> str:
    """Id of an imported conversation, which is the same in every import."""
    return f"{source}-{conversations.digest_source_id(source_id)}"


class ContinuedSession(NamedTuple):
    """A session that Quire wrote for an agent, which continues a conversation after an entry."""

    conversation: str
    branch: int
    seq: int
    written_at: int
    """Microseconds since 1970. What is older is a copy of what the log has."""


def record_continued(connection: Connection, tenant: str, imported: str, session: ContinuedSession) -> None:
    """Records a session by the id that its import would have otherwise."""
    row = {"tenant": tenant, "imported": imported, **session._asdict()}
    connection.execute(upsert(connection, continued_sessions, replace=ContinuedSession._fields), row)


def read_continued(connection: Connection, tenant: str, imported: Collection[str]) -> dict[str, ContinuedSession]:
    columns = [continued_sessions.c[name] for name in ("imported", *ContinuedSession._fields)]
    query = select(*columns).where(continued_sessions.c.tenant == tenant)
    return {
        row[0]: ContinuedSession._make(row[1:])
        for ids in _split(sorted(imported))
        for row in connection.execute(query.where(continued_sessions.c.imported.in_(ids)))
    }


def list_outdated(connection: Connection, tenant: str, conversation_ids: Collection[str], *, reads: int) -> set[str]:
    """The conversations of which an earlier version of their reader wrote something."""
    query = select(imports.c.conversation).distinct().where(imports.c.tenant == tenant, imports.c.reads < reads)
    return {
        conversation
        for ids in _split(sorted(conversation_ids))
        for conversation in connection.execute(query.where(imports.c.conversation.in_(ids))).scalars()
    }


def list_sessions(
    connection: Connection, tenant: str, client: str, sessions: Collection[str]
) -> dict[str, list[ConversationRecord]]:
    """The conversations of these sessions of a client, by session, the oldest first; without side calls."""
    found: dict[str, list[ConversationRecord]] = {}
    for ids in _split(sorted(sessions)):
        query = select(conversations_table.c.conversation).where(
            conversations_table.c.tenant == tenant,
            conversations_table.c.client == client,
            conversations_table.c.session.in_(ids),
            conversations_table.c.purpose.is_distinct_from("side"),
        )
        records = conversations.get_conversations(connection, tenant, connection.execute(query).scalars().all())
        for record in sorted(records.values(), key=lambda each: (each.created_at, each.id)):
            if record.origin is not None and record.origin.session is not None:
                found.setdefault(record.origin.session, []).append(record)
    return found


def list_doubles(connection: Connection, tenant: str) -> dict[str, str]:
    """Imported conversations by id, each with one that the gateway recorded of the same session."""
    origin = (conversations_table.c.client, conversations_table.c.session)
    several = (
        select(*origin)
        .where(
            conversations_table.c.tenant == tenant,
            conversations_table.c.session.is_not(None),
            conversations_table.c.client.is_not(None),
            conversations_table.c.purpose.is_(None),
        )
        .group_by(*origin)
        .having(func.count() > 1)
    )
    sessions: dict[str, list[str]] = {}
    for client, session in connection.execute(several):
        sessions.setdefault(client, []).append(session)
    doubles: dict[str, str] = {}
    for client, ids in sessions.items():
        for records in list_sessions(connection, tenant, client, ids).values():
            main = [each for each in records if each.is_main]
            recorded = next((each.id for each in main if not each.is_imported), None)
            if recorded is not None:
                doubles |= {each.id: recorded for each in main if each.is_imported}
    return doubles


def _split(values: Sequence[str]) -> Iterator[Sequence[str]]:
    return (
        values[start : start + MAX_LISTED_CONVERSATIONS] for start in range(0, len(values), MAX_LISTED_CONVERSATIONS)
    )


def append_items(connection: Connection, tenant: str, batches: Sequence[ImportBatch]) -> list[dict[str, Position]]:
    """Appends the items that are not imported yet. Returns the position of each item.

    An item whose parent is not the last entry of its branch begins a new branch.
    """
    existing: set[str] = set()
    for ids in _split([batch.conversation.id for batch in batches]):
        query = select(conversations_table.c.conversation).where(
            conversations_table.c.tenant == tenant, conversations_table.c.conversation.in_(ids)
        )
        existing.update(connection.execute(query).scalars())
    writer = RowWriter(connection, tenant)
    added_by_batch: list[dict[str, Position]] = []
    opened: set[str] = set()
    for batch in batches:
        if batch.conversation.id in opened:
            # The heads that another file of the same conversation moved.
            writer.flush()
        if batch.conversation.id in existing or batch.conversation.id in opened:
            # The lock comes before the ledger is read, so that a concurrent import cannot add to it in between.
            locked = conversations.lock_branches(connection, tenant, batch.conversation.id)
            ledger = read_ledgers(connection, tenant, [batch.conversation.id]).get(batch.conversation.id, {})
            writer.open_conversation(locked)
        else:
            ledger = {}
            writer.create_conversation(batch.conversation)
        opened.add(batch.conversation.id)
        added: dict[str, Position] = {}
        for item in batch.items:
            position = ledger.get(item.key)
            if position is None:
                parent = None
                if item.parent is not None:
                    parent = added.get(item.parent) or batch.positions.get(item.parent)
                preserved = (added.get(id_) or batch.positions.get(id_) for id_ in item.preserved)
                seqs = [each[1] for each in preserved if each] if item.preserved else ()
                position = ledger[item.key] = writer.append(item, parent, seqs, reads=batch.reads)
            added[item.id] = position
        added_by_batch.append(added)
        yield_to_event_loop(connection)
    writer.flush()
    return added_by_batch


class BranchWriter:
    """A branch that grows in memory; `build_branch` gives the row that is written."""

    def __init__(self, branch: Branch, *, is_new: bool) -> None:
        self.conversation, self.number, self.is_new = branch.conversation, branch.number, is_new
        self.head = ChainHead(branch.head_seq, branch.head_digest, branch.head_path)
        self.state, self.updated_at = branch.state, branch.updated_at
        self._branch = branch

    def append(self, item: ImportItem, preserved: Sequence[int]) -> Entry:
        kind: EntryKind = "message"
        role: str | None = item.role
        author, raw = _AUTHORS[item.role], item.raw
        if item.compaction is not None:
            active, last = self.state.active_compaction, self.head.seq
            compaction = item.compaction.model_copy(
                update={
                    "number": self.state.compaction_count + 1,
                    "covers": Span(first=1, last=last) if last else None,
                    "supersedes": active.seq if active else None,
                    "preserved": tuple(sorted({seq for seq in preserved if seq <= last})) or None,
                }
            )
            self.state = apply_entry(self.state, self.head.seq + 1, compaction, compaction_at=_refuse_undo)
            kind, role, author, raw = "compaction", None, "engine", compaction.canonical_json()
        return self._move(
            chain_entry(
                self.head,
                conversation=self.conversation,
                branch=self.number,
                kind=kind,
                role=role,
                author=author,
                created_at=item.at,
                raw=raw,
                raw_metadata=item.metadata,
            )
        )

    def append_entry(self, entry: Entry, body: Body, *, compaction_at: Callable[[int], ActiveCompaction]) -> Entry:
        """Appends an entry of the log at a new place, with the body that it has there."""
        self.state = apply_entry(self.state, self.head.seq + 1, body, compaction_at=compaction_at)
        return self._move(
            chain_entry(
                self.head,
                conversation=self.conversation,
                branch=self.number,
                kind=entry.kind,
                role=entry.role,
                author=entry.author,
                created_at=entry.created_at,
                raw=body.canonical_json() if entry.kind != "message" else entry.raw,
                raw_metadata=entry.raw_metadata,
                tokens=entry.token_count,
            )
        )

    def _move(self, entry: Entry) -> Entry:
        self.head = ChainHead(entry.seq, entry.digest, entry.path)
        self.updated_at = max(self.updated_at, entry.created_at)
        return entry

    def build_branch(self) -> Branch:
        return self._branch.move_to(self.head, self.state)._replace(updated_at=self.updated_at)


class RowWriter:
    """Chains the entries of several conversations in memory and writes their rows together."""

    def __init__(self, connection: Connection, tenant: str) -> None:
        self._connection, self._tenant = connection, tenant
        self.branches: dict[int, BranchWriter] = {}
        """Branches of the open conversation."""
        self._created: list[ConversationRecord] = []
        self._changed: dict[tuple[str, int], BranchWriter] = {}
        """Branches to be written."""
        self._entries: list[Entry] = []
        self._ledger_rows: list[tuple[object, ...]] = []
        self._blobs: dict[str, Blob] = {}
        self._blob_uses: list[tuple[Entry, set[str]]] = []

    def create_conversation(self, record: ConversationRecord) -> None:
        record = record._replace(title=mask_text(self._connection, record.title))
        self._created.append(record)
        self.branches = {MAIN_BRANCH: BranchWriter(conversations.build_main_branch(record), is_new=True)}

    def open_conversation(self, branches: Iterable[Branch]) -> None:
        self.branches = {branch.number: BranchWriter(branch, is_new=False) for branch in branches}

    def restart_conversation(self, record: ConversationRecord) -> None:
        """Opens a conversation whose row stays and whose branches were deleted."""
        self.branches = {MAIN_BRANCH: BranchWriter(conversations.build_main_branch(record), is_new=True)}

    def append_entry(
        self, entry: Entry, parent: Position, body: Body, *, compaction_at: Callable[[int], ActiveCompaction]
    ) -> Position:
        """Appends an entry that is not imported, at the end of its parent's branch or as a new branch."""
        branch = self._find_branch(entry.created_at, parent)
        written = branch.append_entry(entry, body, compaction_at=compaction_at)
        self._changed[branch.conversation, branch.number] = branch
        self._entries.append(written)
        return branch.number, written.seq

    def append(self, item: ImportItem, parent: Position | None, preserved: Sequence[int], *, reads: int) -> Position:
        branch = self._find_branch(item.at, parent or (MAIN_BRANCH, 0))
        entry = branch.append(self._mask(item), preserved)
        self._changed[branch.conversation, branch.number] = branch
        self._entries.append(entry)
        if item.blobs and item.compaction is None:
            self._blobs.update(item.blobs)
            self._blob_uses.append((entry, set(item.blobs)))
        row = (self._tenant, branch.conversation, item.id, item.digest, branch.number, entry.seq, reads)
        self._ledger_rows.append(row)
        return branch.number, entry.seq

    def _mask(self, item: ImportItem) -> ImportItem:
        """The item as it is stored. Its digest stays, by which the next import knows it."""
        masker = get_masker(self._connection)
        if masker is None:
            return item
        compaction = masker.mask_body(item.compaction) if item.compaction is not None else None
        return item._replace(
            raw=masker.mask_message(Message.parse(item.raw)).canonical_json() if compaction is None else item.raw,
            metadata=append.mask_metadata(self._connection, item.metadata),
            compaction=compaction if isinstance(compaction, Compaction) else None,
        )

    def _find_branch(self, at: int, parent: Position) -> BranchWriter:
        """The branch whose head is the parent, or a new one that forks there."""
        number, seq = parent
        origin = self.branches[number]
        if origin.head.seq == seq:
            return origin
        return self.fork(parent, created_at=at)

    def fork(self, parent: Position, *, created_at: int, name: str | None = None) -> BranchWriter:
        """A new branch after an entry."""
        # A fork reads the entries before it from the database.
        self.flush()
        number, seq = 1 + max(self.branches), parent[1]
        fork = conversations.build_fork(
            self._connection,
            self._tenant,
            self.branches[parent[0]].build_branch(),
            at=seq,
            number=number,
            name=name or f"branch {number}",
            created_at=created_at,
        )
        self.branches[number] = BranchWriter(fork, is_new=True)
        return self.branches[number]

    def flush(self) -> None:
        """Writes all rows that are not written yet."""
        connection, tenant = self._connection, self._tenant
        latest: dict[str, int] = {}
        for (conversation, _), branch in self._changed.items():
            latest[conversation] = max(latest.get(conversation, 0), branch.updated_at)
        if self._created:
            rows = [
                conversations.to_conversation_row(
                    tenant, each._replace(updated_at=max(each.updated_at, latest.pop(each.id)))
                )
                for each in self._created
            ]
            insert_rows(connection, conversations_table, rows)
        for conversation, updated_at in latest.items():
            conversations.touch_conversation(connection, tenant, conversation, updated_at)
        new = [branch for branch in self._changed.values() if branch.is_new]
        if new:
            rows = [conversations.to_branch_row(tenant, branch.build_branch()) for branch in new]
            insert_rows(connection, branches_table, rows)
        for branch in self._changed.values():
            if branch.is_new:
                mark_changed(connection, tenant, branch.conversation)
            else:
                conversations.overwrite_branch(connection, tenant, branch.build_branch())
            branch.is_new = False
        if self._changed:
            # For the message index and the usage roll-up.
            marks = [
                {"tenant": tenant, "conversation": each.conversation, "branch": each.number, "last_seq": each.head.seq}
                for each in self._changed.values()
            ]
            for outbox in (unindexed_branches, uncounted_branches):
                connection.execute(upsert(connection, outbox, replace=["last_seq"]), marks)
        if self._blobs:
            blobs.insert_blobs(connection, tenant, self._blobs.values())
            append.insert_blob_uses(connection, tenant, self._blob_uses)
        if self._entries:
            append.insert_entries(connection, tenant, self._entries)
        if self._ledger_rows:
            insert_tuples(connection, imports, _LEDGER_COLUMNS, self._ledger_rows)
        self._created, self._changed = [], {}
        self._entries, self._ledger_rows, self._blobs, self._blob_uses = [], [], {}, []


def _refuse_undo(seq: int) -> ActiveCompaction:
    raise LookupError(f"an import undoes no compaction, but #{seq} was looked up")


def has_imported(connection: Connection, tenant: str, conversation: str) -> bool:
    """Whether messages of the conversation were imported."""
    query = select(imports.c.seq).where(imports.c.tenant == tenant, imports.c.conversation == conversation)
    return connection.execute(query.limit(1)).first() is not None


class Imports(StorePart):
    """Bulk import of messages that another program stored."""

    has_imported = read_inline(has_imported)
    read_ledgers = read_bulk(read_ledgers)
    list_sessions = read(list_sessions)
    list_doubles = read(list_doubles)
    list_outdated = read(list_outdated)
    record_continued = write(record_continued)
    read_continued = read(read_continued)
    list_files = read(noticed.list_imported_files)
    record_files = write_bulk(noticed.record_files)
    read_observations = read_bulk(noticed.read_observations)

    async def append(self, batches: Sequence[ImportBatch]) -> list[dict[str, Position]]:
        """Appends the items that are not imported yet, in one transaction. Returns the position of each item."""
        try:
            return await self.run(write_bulk, append_items, batches)
        except StoreError as error:
            cause = error.__cause__
            driver_error: object = getattr(cause, "orig", cause)
            if not any(kind.__name__ == "IntegrityError" for kind in type(driver_error).__mro__):
                raise
            # A concurrent import created the same conversation; the second attempt appends to it.
            return await self.run(write_bulk, append_items, batches)
