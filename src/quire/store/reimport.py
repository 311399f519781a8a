"""Writes an imported conversation again, as a newer version of its reader understands the same file.

The entries of an import are derived from a file, so they are replaced, under the same id and in one transaction. What
the file does not have stays: pins, drops, summaries, forks and messages of Quire follow the item that they followed,
and the numbers in them become those of the same items. A conversation from which something was purged stays as it is,
and so does one that the gateway continued: it is the better record of the session.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

from pydantic import ValidationError
from sqlalchemy import Connection, delete, select, text, update

from quire.db.dialects import insert_rows, upsert
from quire.db.raw_sql import yield_to_event_loop
from quire.db.schema import (
    archived_replies,
    blob_uses,
    branches,
    continued_sessions,
    conversations,
    entries,
    exchanges,
    imports,
    manifests,
    memories,
    paths,
    uncounted_branches,
    unindexed_branches,
)
from quire.db.store_part import StorePart, write_bulk
from quire.errors import InvalidEntry, StaleCompaction
from quire.index.message_index import retire_segments
from quire.log.conversations import get_conversation, insert_branch, list_branches, lock_branches, rename_conversation
from quire.log.imports import ImportBatch, ImportLedger, Position, RowWriter, read_ledgers
from quire.log.ledger import list_manifest_rows
from quire.log.observations import delete_observations
from quire.log.reads import ENTRY_COLUMNS, get_entry
from quire.log.row_digests import with_row_digest
from quire.log.types import MAIN_BRANCH, Branch
from quire.model import ActiveCompaction, Compaction, Entry
from quire.model.entry_bodies import parse_body
from quire.model.json_values import dump_json
from quire.usage.rollup import reset_usage

_DELETED_TABLES = (entries, manifests, branches, imports)
"""On PostgreSQL the role of the application cannot delete these rows, except by the function for it."""
_NUMBER_FIELDS = frozenset(
    {"message", "question", "supersedes", "cleared_through", "compaction", "first", "last", "head", "summarized_by"}
)
"""Fields of bodies and manifests that hold the number of an entry."""
_LIST_FIELDS = frozenset({"preserved", "messages", "sources"})
_CITING_FIELDS = frozenset({"summary", "short_summary"})
_CITATION = re.compile(r"\[#\d[^\[\]\n]*\]")
_START: Position = (MAIN_BRANCH, 0)


class Reread(NamedTuple):
    """What became of a conversation."""

    positions: dict[str, Position]
    """Where each item is now."""
    branches_before: int
    branches: int
    lost_edits: int = 0
    """Edits that have no place any more, such as the undo of a compaction that is not one."""


def reread_conversation(connection: Connection, tenant: str, batch: ImportBatch) -> Reread | None:
    """Replaces the imported entries of a conversation by these items. None if it stays as it is."""
    conversation = batch.conversation.id
    old = lock_branches(connection, tenant, conversation)
    ledger = read_ledgers(connection, tenant, [conversation]).get(conversation, {})
    if not _may_replace(connection, tenant, conversation):
        own_rows = imports.c.tenant == tenant, imports.c.conversation == conversation
        connection.execute(update(imports).where(*own_rows).values(reads=batch.reads))
        return None
    record = get_conversation(connection, tenant, conversation)
    writer = RowWriter(connection, tenant)
    others = _OtherEntries(connection, tenant, writer, old, ledger, {item.id for item in batch.items})
    reset_usage(connection, tenant, conversation)
    retire_segments(connection, tenant, conversation)
    _delete_rows(connection, tenant, conversation)
    writer.restart_conversation(record)
    positions: dict[str, Position] = {}
    heads: dict[str, Position] = {}
    """Where a branch continues after an item: after the edits that follow it."""
    for item in batch.items:
        parent = heads.get(item.parent) if item.parent is not None else None
        preserved = [positions[each][1] for each in item.preserved if each in positions]
        positions[item.id] = writer.append(item, parent, preserved, reads=batch.reads)
        heads[item.id] = others.place_after(item.id, positions[item.id])
    others.place_rest()
    others.write_rows(batch.reads)
    if not record.title and batch.conversation.title:
        rename_conversation(connection, tenant, conversation, batch.conversation.title)
    count = sum(1 for each in list_branches(connection, tenant, conversation) if each.head_seq > each.fork_seq)
    return Reread(positions, sum(1 for each in old if each.head_seq > each.fork_seq), count, others.lost)


def is_plain_import(connection: Connection, tenant: str, conversation: str) -> bool:
    """Whether a conversation has nothing but what was imported: no edit, fork or tag of a person's."""
    own_branches = lock_branches(connection, tenant, conversation)
    ledger = read_ledgers(connection, tenant, [conversation]).get(conversation, {})
    own = entries.c.tenant == tenant, entries.c.conversation == conversation
    places = {(row[0], row[1]) for row in connection.execute(select(entries.c.branch, entries.c.seq).where(*own))}
    has_forks = any(each.lineage and each.head_seq == each.fork_seq for each in own_branches)
    record = get_conversation(connection, tenant, conversation)
    return not has_forks and not record.tags and places <= set(ledger.values())


def delete_twin(connection: Connection, tenant: str, conversation: str) -> bool:
    """Deletes an imported conversation all of whose messages the gateway recorded in another one. Returns False if it
    has anything else."""
    if not is_plain_import(connection, tenant, conversation):
        return False
    reset_usage(connection, tenant, conversation)
    retire_segments(connection, tenant, conversation)
    delete_observations(connection, tenant, conversation)
    _delete_rows(connection, tenant, conversation, is_twin=True)
    return True


def _may_replace(connection: Connection, tenant: str, conversation: str) -> bool:
    """Whether nothing was purged, and the gateway recorded nothing."""
    own = entries.c.tenant == tenant, entries.c.conversation == conversation
    purged = select(entries.c.seq).where(*own, entries.c.purged_at.is_not(None)).limit(1)
    if connection.execute(purged).first() is not None:
        return False
    rows = list_manifest_rows(connection, tenant, conversation)
    return not any(json.loads(row["manifest"]).get("forwarded") for row in rows)


def _delete_rows(connection: Connection, tenant: str, conversation: str, *, is_twin: bool = False) -> None:
    if connection.dialect.name == "postgresql":
        delete_all = text("SELECT quire_delete_imported(:conversation, :is_twin)")
        connection.execute(delete_all, {"conversation": conversation, "is_twin": is_twin})
    else:
        # Paths are found by path alone.
        own_paths = select(entries.c.path).where(entries.c.tenant == tenant, entries.c.conversation == conversation)
        own = paths.c.tenant == tenant, paths.c.conversation == conversation
        connection.execute(delete(paths).where(*own, paths.c.path.in_(own_paths)))
        for table in (*_DELETED_TABLES, *((conversations,) if is_twin else ())):
            connection.execute(delete(table).where(table.c.tenant == tenant, table.c.conversation == conversation))
    for table in (blob_uses, exchanges, unindexed_branches, uncounted_branches, archived_replies):
        connection.execute(delete(table).where(table.c.tenant == tenant, table.c.conversation == conversation))
    yield_to_event_loop(connection)


class _OtherEntries:
    """What a conversation has in addition to its imported entries, and the new place of each of its entries."""

    def __init__(
        self,
        connection: Connection,
        tenant: str,
        writer: RowWriter,
        old: Sequence[Branch],
        ledger: ImportLedger,
        remaining: set[str],
    ) -> None:
        self._connection, self._tenant, self._writer = connection, tenant, writer
        self._conversation, self._old = old[0].conversation, {branch.number: branch for branch in old}
        self._items = {position: item for (item, _), position in ledger.items() if item in remaining}
        self._positions: defaultdict[str, list[Position]] = defaultdict(list)
        for position, item in self._items.items():
            self._positions[item].append(position)
        self._moved: dict[Position, Position] = {}
        """New position by the old one, of what was written so far."""
        self._rest: list[tuple[Entry, Position]] = []
        """Entries that wait until all items are written, and the new position after which each belongs."""
        self._entries: dict[Position, Entry] = {}
        self.lost = 0
        continued = continued_sessions.c.tenant == tenant, continued_sessions.c.conversation == self._conversation
        rows = connection.execute(select(continued_sessions).where(*continued)).mappings()
        self._continued = [dict(row) for row in rows]
        oldest = min((row["written_at"] for row in self._continued), default=None)
        own = entries.c.tenant == tenant, entries.c.conversation == self._conversation
        # Most conversations have nothing but their import.
        places = {(row[0], row[1]) for row in connection.execute(select(entries.c.branch, entries.c.seq).where(*own))}
        imported = {position: item for item, position in ledger.items()}
        query = select(*ENTRY_COLUMNS).where(*own).order_by(entries.c.branch, entries.c.seq)
        rows = connection.execute(query) if oldest is not None or places - imported.keys() else ()
        self._ledger: dict[Position, tuple[str, bytes]] = {}
        """Items of sessions that continue the conversation in other files."""
        for entry in map(Entry._make, rows):
            position = (entry.branch, entry.seq)
            item = imported.get(position)
            if item is not None and item[0] not in remaining and oldest is not None and entry.created_at >= oldest:
                self._ledger[position] = item
            if item is None or position in self._ledger:
                self._entries[position] = entry
        self._followers: defaultdict[Position, list[Entry]] = defaultdict(list)
        for branch, seq in self._entries:
            self._followers[self._find_before(branch, seq)].append(self._entries[branch, seq])
        self._rows = {table: self._read_rows(table) for table in (manifests, blob_uses, exchanges)}

    def _read_rows(self, table: Any) -> list[dict[str, Any]]:
        query = select(table).where(table.c.tenant == self._tenant, table.c.conversation == self._conversation)
        rows = self._connection.execute(query).mappings() if self._entries else ()
        return [
            {str(name): row[name] for name in row}
            for row in rows
            if row["seq"] is None or (row["branch"], row["seq"]) in self._entries
        ]

    def _find_before(self, branch: int, seq: int) -> Position:
        """The position before an entry, of an entry that stays or an item that remains."""
        for before in range(seq - 1, 0, -1):
            position = (self._old[branch].find_owner(before) or MAIN_BRANCH, before)
            if position in self._entries or position in self._items:
                return position
        return _START

    def place_after(self, item: str, new: Position) -> Position:
        """Appends the edits that followed an item. Returns the last entry of its branch."""
        for position in self._positions.get(item, ()):
            self._moved[position] = new
        followers = [each for old in self._positions.get(item, ()) for each in self._followers.pop(old, ())]
        self._place([(entry, new) for entry in followers], is_last=False)
        return (new[0], self._writer.branches[new[0]].head.seq) if followers else new

    def place_rest(self) -> None:
        """Appends what waits: messages that went on without the program, and forks that a person made."""
        waiting, self._rest = [*((each, _START) for each in self._followers.pop(_START, ())), *self._rest], []
        self._place(waiting, is_last=True)
        for branch in self._old.values():
            if branch.lineage and branch.head_seq == branch.fork_seq:
                at = self._find_moved(branch.number, branch.fork_seq)
                fork = self._writer.fork(at, name=branch.name, created_at=branch.created_at)
                insert_branch(self._connection, self._tenant, fork.build_branch())
        self._writer.flush()

    def _place(self, waiting: list[tuple[Entry, Position]], *, is_last: bool) -> None:
        """Appends entries, each with what followed it. Unless it is the last time, messages wait, and edits of messages
        that are not written yet."""
        ends: dict[tuple[Position, int], Position] = {}
        while waiting:
            entry, at = waiting.pop(0)
            old = (entry.branch, entry.seq)
            # Edits after items that are gone have one place, and follow each other.
            after = ends.get((at, entry.branch), at)
            new = self._append(entry, after, is_last=is_last)
            if new is None:
                self._rest.append((entry, at))
                continue
            self._moved[old] = ends[at, entry.branch] = new
            waiting += [(each, new) for each in self._followers.pop(old, ())]

    def _append(self, entry: Entry, at: Position, *, is_last: bool) -> Position | None:
        """Appends an entry after its new place, or returns None if it has to wait. An edit without a place is lost."""
        if not is_last and (entry.kind == "message" or not self._is_ready(entry)):
            return None
        if entry.kind == "message":
            return self._writer.append_entry(entry, at, entry.body, compaction_at=_refuse)
        value = self._renumber(json.loads(entry.raw), entry.branch)
        number = value.get("message")
        if isinstance(number, int):
            # The message may be in another branch now, or several branches may be one.
            target = self._find_moved(entry.branch, json.loads(entry.raw)["message"])
            if self._writer.branches[at[0]].build_branch().find_owner(number) != target[0]:
                at = target
        if is_last or isinstance(number, int):
            at = (at[0], self._writer.branches[at[0]].head.seq)
        state = self._writer.branches[at[0]].state
        if entry.kind == "compaction":
            active = state.active_compaction
            value |= {"number": state.compaction_count + 1, "supersedes": active.seq if active is not None else None}
        try:
            body = parse_body(entry.kind, dump_json(value))
            return self._writer.append_entry(entry, at, body, compaction_at=lambda seq: self._find_compaction(at, seq))
        except (StaleCompaction, InvalidEntry, ValidationError):
            self.lost += 1
            return at

    def _find_compaction(self, at: Position, seq: int) -> ActiveCompaction:
        self._writer.flush()
        branch = self._writer.branches[at[0]].build_branch()
        body = get_entry(self._connection, self._tenant, branch, seq).body
        if not isinstance(body, Compaction):
            raise InvalidEntry(f"Entry #{seq} is not a compaction.")
        return ActiveCompaction.from_entry(seq, body)

    def _is_ready(self, entry: Entry) -> bool:
        """Whether all that an edit refers to is written."""
        places = ((self._find_owner(entry.branch, seq), seq) for seq in _list_numbers(json.loads(entry.raw)))
        return all(each in self._moved or (each not in self._items and each not in self._entries) for each in places)

    def _find_owner(self, branch: int, seq: int) -> int:
        return self._old[branch].find_owner(seq) or MAIN_BRANCH

    def _find_moved(self, branch: int, seq: int) -> Position:
        """Where an entry of a branch is now. If its item is gone, the place of the one before it."""
        places = ((self._find_owner(branch, each), each) for each in range(seq, 0, -1))
        return next((self._moved[each] for each in places if each in self._moved), _START)

    def _renumber(self, value: Any, branch: int) -> Any:
        """JSON with the numbers of entries as they are now."""

        def rename(number: int) -> int:
            return max(1, self._find_moved(branch, number)[1])

        def cite(match: re.Match[str]) -> str:
            return re.sub(r"\d+", lambda number: str(rename(int(number[0]))), match[0])

        if isinstance(value, list):
            return [self._renumber(each, branch) for each in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        renamed: dict[str, Any] = {}
        for name, each in cast("dict[str, Any]", value).items():
            if name in _NUMBER_FIELDS and isinstance(each, int):
                renamed[name] = rename(each)
            elif name in _LIST_FIELDS and isinstance(each, list):
                numbers = cast("list[Any]", each)
                renamed[name] = sorted({rename(number) for number in numbers if isinstance(number, int)})
            elif name in _CITING_FIELDS and isinstance(each, str):
                renamed[name] = _CITATION.sub(cite, each)
            else:
                renamed[name] = self._renumber(each, branch)
        return renamed

    def _move_exchange(self, row: dict[str, Any], branch: int, seq: int | None) -> dict[str, Any]:
        after = self._find_moved(row["branch"], row["after_seq"])
        if seq is None:
            branch = after[0]
        return with_row_digest(exchanges, row | {"branch": branch, "seq": seq, "after_seq": after[1]})

    def write_rows(self, reads: int) -> None:
        """Writes what belongs to the other entries: manifests, quoted blobs and the bodies of requests; and the places
        of messages that memories cite."""
        for table, rows in self._rows.items():
            moved: list[dict[str, Any]] = []
            for row in rows:
                old = (row["branch"], row["seq"])
                branch, seq = self._moved[old] if old in self._moved else (row["branch"], None)
                if table is exchanges:
                    moved.append(self._move_exchange(row, branch, seq))
                    continue
                row |= {"branch": branch, "seq": seq}
                if table is manifests:
                    value = self._renumber(json.loads(row["manifest"]), old[0]) | {"branch": branch}
                    row = with_row_digest(manifests, row | {"manifest": dump_json(value)})
                moved.append(row)
            if moved:
                insert_rows(self._connection, table, moved)
        if self._ledger:
            items = [
                {"conversation": self._conversation, "item": item, "digest": digest, "reads": reads}
                | dict(zip(("branch", "seq"), self._moved[position], strict=True))
                for position, (item, digest) in self._ledger.items()
            ]
            insert_rows(self._connection, imports, [{"tenant": self._tenant, **each} for each in items])
        for row in self._continued:
            branch, seq = self._find_moved(row["branch"], row["seq"])
            moved_row = row | {"branch": branch, "seq": seq}
            self._connection.execute(upsert(self._connection, continued_sessions, replace=["branch", "seq"]), moved_row)
        own = memories.c.tenant == self._tenant, memories.c.conversation == self._conversation
        for stored in self._connection.execute(select(memories).where(*own)).mappings().all():
            branch, seq = self._find_moved(stored["branch"], stored["seq"])
            row = with_row_digest(memories, {**stored, "branch": branch, "seq": max(1, seq)})
            changed = {name: row[name] for name in ("branch", "seq", "row_digest")}
            key = *own, memories.c.memory == stored["memory"]
            self._connection.execute(update(memories).where(*key).values(changed))


def _refuse(seq: int) -> ActiveCompaction:
    raise InvalidEntry(f"Entry #{seq} is not a compaction.")


def _list_numbers(value: Any) -> Iterator[int]:
    """The numbers of entries in JSON."""
    if isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _list_numbers(each)
    elif isinstance(value, dict):
        for name, each in cast("dict[str, Any]", value).items():
            if name in _NUMBER_FIELDS and isinstance(each, int):
                yield each
            elif name in _LIST_FIELDS and isinstance(each, list):
                yield from (number for number in cast("list[Any]", each) if isinstance(number, int))
            else:
                yield from _list_numbers(each)


class Reimport(StorePart):
    """Imported conversations that a newer reader writes again."""

    replace = write_bulk(reread_conversation)
    is_plain_import = write_bulk(is_plain_import)
    delete_twin = write_bulk(delete_twin)
