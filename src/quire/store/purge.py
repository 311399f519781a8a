"""Purge, the only way to erase: removes content and everything derived from it.

The digests stay, so the hash chain still verifies.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from sqlalchemy import Connection, bindparam, delete, select, text, update

from quire.db.schema import blob_uses, entries, manifests
from quire.errors import InvalidEntry
from quire.index import memories
from quire.index.message_erasure import erase_messages
from quire.log import blobs, conversations, ledger, reads, transcripts
from quire.log.blobs import delete_unused_blobs
from quire.log.row_digests import ROW_DIGEST, with_row_digest
from quire.log.types import MAIN_BRANCH, Branch, Memory
from quire.model import Compaction, Decision, Entry, Manifest, Message
from quire.model.entry_bodies import purge_body
from quire.model.ids import now
from quire.model.messages import PURGED_TEXT
from quire.turns import events as turn_events
from quire.turns.leases import delete_outcomes
from quire.usage.rollup import reset_usage


def purge_entries(
    connection: Connection,
    tenant: str,
    conversation: str,
    seqs: Collection[int] | None = None,
    *,
    branch: int = MAIN_BRANCH,
) -> list[Entry]:
    """Erases the content of these entries (None: of the whole conversation) and everything derived from it.

    That is: summaries that cover them, memories, and the search index. Returns the purged entries as they are now.
    """
    all_branches = conversations.lock_branches(connection, tenant, conversation)
    if seqs is None:
        to_purge = [
            entry
            for each in all_branches
            for entry in _read_own_entries(connection, tenant, each)
            if _has_content(entry) or entry.kind == "context_change"
        ]
    else:
        target = conversations.get_branch(connection, tenant, conversation, branch)
        to_purge = [reads.get_entry(connection, tenant, target, seq) for seq in sorted(set(seqs))]
        for entry in to_purge:
            if not _has_content(entry):
                raise InvalidEntry(
                    f"Entry #{entry.seq} is a {entry.kind} and has no content to purge; give messages or compactions."
                )
        to_purge += _find_summaries(connection, tenant, all_branches, to_purge)
    purged = _purge(connection, tenant, all_branches, to_purge, whole=seqs is None)
    if seqs is None:
        conversations.clear_conversation(connection, tenant, conversation)
    return purged


def purge_own_entries(
    connection: Connection, tenant: str, conversation: str, entry_keys: Collection[tuple[int, int]]
) -> list[Entry]:
    """Like `purge_entries`, for entries of any kind and branch: each key is the owning branch and the number."""
    all_branches = conversations.lock_branches(connection, tenant, conversation)
    to_purge = [
        entry
        for branch in all_branches
        for entry in reads.read_entries(
            connection, tenant, branch, [seq for owner, seq in entry_keys if owner == branch.number]
        )
        if entry.branch == branch.number
    ]
    to_purge += _find_summaries(connection, tenant, all_branches, to_purge)
    purged = _purge(connection, tenant, all_branches, to_purge, whole=False)
    if any(entry.kind == "context_change" for entry in purged):
        conversations.fold_session_items(connection, tenant, conversation)
    return purged


def _purge(
    connection: Connection, tenant: str, all_branches: Sequence[Branch], to_purge: Sequence[Entry], *, whole: bool
) -> list[Entry]:
    """Erases the content of these entries and what was derived from it."""
    # Without the digest, content that was changed can be purged too.
    to_purge = [entry._replace(content_digest=None) for entry in to_purge]
    purged = [_erase_content(entry) for entry in to_purge]
    _overwrite(connection, tenant, purged)
    _delete_blob_uses(connection, tenant, purged)
    conversation = all_branches[0].conversation
    _purge_manifests(connection, tenant, conversation, None if whole else _list_document_names(to_purge))
    _delete_derived(connection, tenant, conversation, to_purge, whole=whole)
    delete_outcomes(connection, tenant, conversation)
    blobs.delete_orphan_blobs(connection, tenant)
    return purged


def _list_document_names(to_purge: Iterable[Entry]) -> set[str]:
    """The links and paths by which manifests name the documents of these messages."""
    references = [reference for entry in to_purge for reference in entry.metadata.references or ()]
    return {name for reference in references for name in (reference.link, reference.path) if name is not None}


def _purge_manifests(
    connection: Connection, tenant: str, conversation: str, document_names: Collection[str] | None
) -> None:
    """Erases these documents' names from the conversation's manifests (None: the names of all items)."""
    if document_names is None:
        erase_decision_names(connection, tenant, conversation, lambda row: True)
    elif document_names:
        erase_decision_names(
            connection, tenant, conversation, lambda row: row.kind == "document" and row.name in document_names
        )


def erase_decision_names(
    connection: Connection, tenant: str, conversation: str, is_purged: Callable[[Decision], bool]
) -> None:
    """Erases the names in these decisions of the conversation's manifests."""
    rows: list[dict[str, object]] = []
    for stored in ledger.list_manifest_rows(connection, tenant, conversation, lock=True):
        manifest = _without_names(Manifest.parse(stored["manifest"]), is_purged).canonical_json()
        if manifest != stored["manifest"]:
            row = with_row_digest(manifests, {**stored, "manifest": manifest})
            key = {f"of_{name}": row[name] for name in ("tenant", "conversation", "branch", "seq")}
            rows.append({**key, "manifest": manifest, ROW_DIGEST: row[ROW_DIGEST]})
    if rows:
        connection.execute(_OVERWRITE_MANIFEST, rows)


def _without_names(manifest: Manifest, is_purged: Callable[[Decision], bool]) -> Manifest:
    decisions = (
        row.model_copy(update={"name": PURGED_TEXT}) if row.name is not None and is_purged(row) else row
        for row in manifest.decisions
    )
    return manifest.model_copy(update={"decisions": tuple(decisions)})


_OVERWRITE_MANIFEST = (
    update(manifests)
    .where(
        manifests.c.tenant == bindparam("of_tenant"),
        manifests.c.conversation == bindparam("of_conversation"),
        manifests.c.branch == bindparam("of_branch"),
        manifests.c.seq == bindparam("of_seq"),
    )
    .values(manifest=bindparam("manifest"), row_digest=bindparam(ROW_DIGEST))
)


def _delete_derived(
    connection: Connection, tenant: str, conversation: str, to_purge: Sequence[Entry], *, whole: bool
) -> None:
    """Deletes what was derived from these entries, given with their text: index, memories, blobs with memories, and
    the conversation's part of the usage roll-up."""
    entry_keys = {(entry.branch, entry.seq) for entry in to_purge}
    erase_messages(connection, tenant, conversation, to_purge)
    purged_memories = memories.purge_memories(connection, tenant, conversation, None if whole else entry_keys)
    purge_memory_quotes(connection, tenant, purged_memories)
    transcripts.delete_linked(connection, tenant, conversation)
    reset_usage(connection, tenant, conversation)
    turn_events.delete_conversation_events(connection, tenant, conversation)


def _read_own_entries(connection: Connection, tenant: str, branch: Branch) -> list[Entry]:
    if branch.head_seq == branch.fork_seq:
        return []
    return reads.read_range(connection, tenant, branch, first=branch.fork_seq + 1)


def _has_content(entry: Entry) -> bool:
    return entry.kind in ("message", "compaction")


def _find_summaries(
    connection: Connection, tenant: str, all_branches: Iterable[Branch], to_purge: Collection[Entry]
) -> list[Entry]:
    """Compactions on any branch whose summaries may contain text of one of these entries."""
    entry_keys = {(entry.branch, entry.seq) for entry in to_purge}
    summaries: list[Entry] = []
    for branch in all_branches:
        for entry in reads.read_control_entries(connection, tenant, branch, last=branch.head_seq):
            body = entry._replace(content_digest=None).body
            is_candidate = entry.branch == branch.number and (entry.branch, entry.seq) not in entry_keys
            if not is_candidate or not isinstance(body, Compaction):
                continue
            if any(body.summarizes(seq) and branch.find_owner(seq) == owner for owner, seq in entry_keys):
                summaries.append(entry)
    return summaries


def _erase_content(entry: Entry) -> Entry:
    body = purge_body(entry.body)
    raw = body.canonical_json()
    if isinstance(body, Message) or (raw, None) != (entry.raw, entry.raw_metadata):
        return entry._replace(raw=raw, raw_metadata=None, tokens=None, counter=None, purged_at=now())
    return entry


def _overwrite(connection: Connection, tenant: str, purged: Iterable[Entry]) -> None:
    rows = [
        {
            "of_tenant": tenant,
            "of_conversation": entry.conversation,
            "of_branch": entry.branch,
            "of_seq": entry.seq,
            "body": entry.raw,
            "notes": entry.raw_metadata,
            "tokens": entry.tokens,
            "counter": entry.counter,
            "purged_at": entry.purged_at,
        }
        for entry in purged
    ]
    if rows:
        connection.execute(_OVERWRITE, rows)


_OVERWRITE = (
    update(entries)
    .where(
        entries.c.tenant == bindparam("of_tenant"),
        entries.c.conversation == bindparam("of_conversation"),
        entries.c.branch == bindparam("of_branch"),
        entries.c.seq == bindparam("of_seq"),
    )
    .values({name: bindparam(name) for name in ("body", "notes", "tokens", "counter", "purged_at")})
)


def _delete_blob_uses(connection: Connection, tenant: str, purged: Iterable[Entry]) -> None:
    by_branch: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for entry in purged:
        by_branch[entry.conversation, entry.branch].append(entry.seq)
    for (conversation, branch), seqs in by_branch.items():
        blobs.delete_blob_uses(connection, tenant, conversation, branch=branch, seqs=seqs)


def purge_memory_quotes(connection: Connection, tenant: str, purged: Iterable[Memory]) -> None:
    """Deletes blobs in which requests contained these memories. Blobs with the same text from other sources stay."""
    for memory in purged:
        for digest in _find_blobs_with_text(connection, tenant, memory.text):
            _delete_memory_uses(connection, tenant, digest)


def _find_blobs_with_text(connection: Connection, tenant: str, quote: str) -> list[bytes]:
    match_offset = "position(:quote IN data)" if connection.dialect.name == "postgresql" else "instr(data, :quote)"
    statement = text(f"SELECT digest FROM quire_blobs WHERE tenant = :tenant AND {match_offset} > 0")  # noqa: S608 (constants)
    return list(connection.execute(statement, {"tenant": tenant, "quote": quote.encode()}).scalars())


def _delete_memory_uses(connection: Connection, tenant: str, digest: bytes) -> None:
    uses = (blob_uses.c.tenant == tenant, blob_uses.c.digest == digest)
    query = (
        select(blob_uses.c.conversation, blob_uses.c.branch, blob_uses.c.seq, manifests.c.manifest)
        .join(
            manifests,
            (manifests.c.tenant == blob_uses.c.tenant)
            & (manifests.c.conversation == blob_uses.c.conversation)
            & (manifests.c.branch == blob_uses.c.branch)
            & (manifests.c.seq == blob_uses.c.seq),
        )
        .where(*uses)
    )
    for conversation, branch, seq, manifest in connection.execute(query).all():
        if _includes_memory_blob(Manifest.parse(manifest), digest.hex()):
            entry_key = (blob_uses.c.conversation == conversation, blob_uses.c.branch == branch, blob_uses.c.seq == seq)
            connection.execute(delete(blob_uses).where(*uses, *entry_key))
    delete_unused_blobs(connection, tenant, [digest])


def _includes_memory_blob(manifest: Manifest, digest: str) -> bool:
    return any(row.kind == "memory" and row.blob == digest for row in manifest.included)
