"""Append, the only way to write entries: lock the branch row, extend the hash chain, move the head; atomically."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sqlalchemy import Connection, select

from quire.db.dialects import insert_rows, insert_tuples
from quire.db.raw_sql import yield_to_event_loop
from quire.db.schema import blob_uses, blobs, entries, paths
from quire.db.stored_bytes import count_text, is_counting
from quire.errors import BlobNotFound, InvalidEntry, StaleHead
from quire.log import conversations, reads
from quire.log.ledger import to_key
from quire.log.tenant_masker import get_masker
from quire.log.types import Branch
from quire.model import (
    ActiveCompaction,
    ChainHead,
    Compaction,
    Draft,
    Entry,
    Message,
    apply_entry,
    chain_entry,
    iter_paths,
)
from quire.model.entry_bodies import kind_of
from quire.model.ids import now

MAX_UNINTERRUPTED_BYTES = 100_000
"""Bytes of entries that are hashed before other tasks run."""
MIN_ENTRY_BYTES = 2_000
"""Bytes that an entry counts as at least: building it costs as much as hashing that number."""


def append_entries(
    connection: Connection,
    tenant: str,
    conversation: str,
    drafts: Sequence[Draft],
    *,
    branch: int,
    after: bytes | None,
    check_turn: Callable[[], None] | None = None,
    write_extra: Callable[[Sequence[Entry], int], None] | None = None,
) -> list[Entry]:
    """Appends all drafts or none.

    With `after` (a message's path, or `CHAIN_ROOT`) the append is idempotent: drafts that are stored right after that
    message are returned. If other entries follow it, raises `StaleHead` (optimistic concurrency). `check_turn` is
    called while the branch is locked, and raises if the turn may not write. `write_extra` writes more rows in the same
    transaction. It is called with the stored entries, and with the number of new ones.
    """
    drafts = _mask_drafts(connection, drafts)
    target = conversations.lock_branch(connection, tenant, conversation, branch)
    if check_turn is not None:
        check_turn()
    stored = [] if after is None else _find_stored(connection, tenant, target, drafts, after)
    new_drafts = drafts[len(stored) :]
    if new_drafts:
        chained, advanced = _chain_drafts(connection, tenant, target, new_drafts)
        uses = [(entry, draft.blob_digests()) for entry, draft in zip(chained, new_drafts, strict=True)]
        insert_blob_uses(connection, tenant, uses)
        stored.extend(chained)
        insert_entries(connection, tenant, chained)
        conversations.move_head(connection, tenant, advanced)
        if write_extra is not None:
            write_extra(stored, len(chained))
    elif write_extra is not None:
        write_extra(stored, 0)
    return stored


def _find_stored(
    connection: Connection, tenant: str, target: Branch, drafts: Sequence[Draft], after: bytes
) -> list[Entry]:
    """The leading drafts that an earlier call stored after this path."""
    if after == target.head_path:
        return []
    messages = [draft.body.canonical_json().encode() for draft in drafts if isinstance(draft.body, Message)]
    if len(messages) != len(drafts):
        raise InvalidEntry("Only messages can be appended with `after`; append other entries without it.")
    expected = list(iter_paths(messages, start=after))
    rows = connection.execute(
        select(paths.c.path, paths.c.branch, paths.c.seq).where(
            paths.c.tenant == tenant,
            paths.c.path.in_(expected),
            paths.c.conversation == target.conversation,
        )
    )
    seqs = {path: seq for path, branch, seq in rows if target.find_owner(seq) == branch}
    stored = [seqs[path] for path in expected if path in seqs]
    if not stored or (len(stored) < len(expected) and expected[len(stored) - 1] != target.head_path):
        raise StaleHead(
            f"Branch {target.number} of {target.conversation!r} has advanced to entry #{target.head_seq}; "
            "append after its current head, or fork at the old one."
        )
    return [reads.get_entry(connection, tenant, target, seq) for seq in stored]


def _chain_drafts(
    connection: Connection, tenant: str, branch: Branch, drafts: Sequence[Draft]
) -> tuple[list[Entry], Branch]:
    """The entries of these drafts, chained to the head of the branch, and the branch with its new head."""

    def compaction_at(seq: int) -> ActiveCompaction:
        body = next((entry.body for entry in chained if entry.seq == seq), None)
        body = body or reads.get_entry(connection, tenant, branch, seq).body
        if not isinstance(body, Compaction):
            raise InvalidEntry(f"Entry #{seq} is not a compaction.")
        return ActiveCompaction.from_entry(seq, body)

    chained: list[Entry] = []
    uninterrupted = 0
    head, state = ChainHead(branch.head_seq, branch.head_digest, branch.head_path), branch.state
    for draft in drafts:
        state = apply_entry(state, head.seq + 1, draft.body, compaction_at=compaction_at)
        entry = chain_entry(
            head,
            conversation=branch.conversation,
            branch=branch.number,
            kind=kind_of(draft.body),
            role=draft.body.role if isinstance(draft.body, Message) else None,
            author=draft.resolve_author(),
            created_at=now() if draft.created_at is None else draft.created_at,
            tokens=draft.tokens,
            raw=draft.body.canonical_json(),
            raw_metadata=mask_metadata(connection, draft.metadata_json()),
        )
        head = ChainHead(entry.seq, entry.digest, entry.path)
        chained.append(entry)
        uninterrupted += MIN_ENTRY_BYTES + len(entry.raw)
        if uninterrupted > MAX_UNINTERRUPTED_BYTES:
            uninterrupted = 0
            yield_to_event_loop(connection)
    return chained, branch.move_to(head, state)


def _mask_drafts(connection: Connection, drafts: Sequence[Draft]) -> Sequence[Draft]:
    masker = get_masker(connection)
    return drafts if masker is None else [replace(each, body=masker.mask_body(each.body)) for each in drafts]


def mask_metadata(connection: Connection, metadata: str | None) -> str | None:
    """Masks the metadata of an entry."""
    masker = get_masker(connection)
    return metadata if masker is None or metadata is None else masker.mask_json(metadata)


def insert_entries(connection: Connection, tenant: str, new_entries: Sequence[Entry]) -> None:
    if is_counting(connection):
        for entry in new_entries:
            count_text(connection, entry.raw, entry.raw_metadata)
    insert_tuples(connection, entries, _ENTRY_COLUMNS, [(tenant, *entry) for entry in new_entries])
    path_rows = [
        (tenant, entry.path, entry.conversation, entry.branch, entry.seq)
        for entry in new_entries
        if entry.kind == "message"
    ]
    if path_rows:
        insert_tuples(connection, paths, _PATH_COLUMNS, path_rows)


_ENTRY_COLUMNS = ("tenant", *(column.name for column in reads.ENTRY_COLUMNS))
_PATH_COLUMNS = ("tenant", "path", "conversation", "branch", "seq")


def insert_blob_uses(connection: Connection, tenant: str, entry_digests: Iterable[tuple[Entry, set[str]]]) -> None:
    """Records which entry references which blob. Raises `BlobNotFound` for a blob that is not stored."""
    uses = [(entry, bytes.fromhex(digest)) for entry, digests in entry_digests for digest in sorted(digests)]
    if not uses:
        return
    referenced = {digest for _, digest in uses}
    stored = connection.execute(select(blobs.c.digest).where(blobs.c.tenant == tenant, blobs.c.digest.in_(referenced)))
    missing = referenced.difference(stored.scalars())
    if missing:
        raise BlobNotFound(f"No blob {min(missing).hex()} is stored; store it before the message that references it.")
    insert_rows(connection, blob_uses, [to_key(tenant, entry) | {"digest": digest} for entry, digest in uses])
