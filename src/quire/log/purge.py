"""Purge, the one way to remove: content goes, and what was made from it. The digests stay, so the chain verifies."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import Connection, bindparam, update

from quire.errors import InvalidEntry
from quire.log import blobs, branches, memories, passages, quotes, reading, shelves
from quire.log.found import conversation_scope, message_key
from quire.log.fresh import now
from quire.log.records import Branch
from quire.log.schema import entries
from quire.model import Compaction, Entry, Message
from quire.model.entries import purged_body


def purge(
    connection: Connection, tenant: str, conversation: str, seqs: Collection[int] | None, *, branch: int
) -> list[Entry]:
    """Removes the content of these entries (None: of the whole conversation) and of the summaries that cover them.

    Returns the entries that lost their content, as they are now.
    """
    known = branches.list_branches(connection, tenant, conversation, lock=True)
    if seqs is None:
        doomed = [entry for each in known for entry in _own(connection, tenant, each) if _has_content(entry)]
    else:
        line = branches.get_branch(connection, tenant, conversation, branch)
        doomed = [reading.get_entry(connection, tenant, line, seq) for seq in sorted(set(seqs))]
        _refuse_steering(doomed)
        doomed += _summaries_of(connection, tenant, known, doomed)
    gone = [_without_content(entry) for entry in doomed]
    _overwrite(connection, tenant, gone)
    _drop_blobs(connection, tenant, gone)
    _forget(connection, tenant, known, gone, whole=seqs is None)
    if seqs is None:
        branches.empty_conversation(connection, tenant, conversation)
    return gone


def _forget(
    connection: Connection, tenant: str, known: Sequence[Branch], gone: Sequence[Entry], *, whole: bool
) -> None:
    """Removes what was made of these entries outside the log: index, memories, and what requests quoted of them."""
    conversation = known[0].conversation
    places = {(entry.branch, entry.seq) for entry in gone}
    scope = conversation_scope(conversation)
    if whole:
        passages.drop_scope(connection, tenant, scope)
    else:
        passages.drop(connection, tenant, scope, [message_key(branch, seq) for branch, seq in sorted(places)])
    shelves.drop_shelves(connection, tenant, conversation, places)
    forgotten = memories.purge_memories(connection, tenant, conversation, None if whole else places)
    quotes.drop_memories(connection, tenant, forgotten)


def _own(connection: Connection, tenant: str, branch: Branch) -> list[Entry]:
    if branch.head_seq == branch.fork_seq:
        return []
    return reading.read_range(connection, tenant, branch, first=branch.fork_seq + 1)


def _has_content(entry: Entry) -> bool:
    return entry.kind in ("message", "compaction")


def _refuse_steering(named: Iterable[Entry]) -> None:
    for entry in named:
        if not _has_content(entry):
            raise InvalidEntry(f"Entry #{entry.seq} is a {entry.kind} and has no content to purge.")


def _summaries_of(
    connection: Connection, tenant: str, known: Iterable[Branch], doomed: Collection[Entry]
) -> list[Entry]:
    """Compactions, on any branch that has one of these entries, that cover it."""
    named = {(entry.branch, entry.seq) for entry in doomed}
    found: list[Entry] = []
    for branch in known:
        for entry in reading.control_entries(connection, tenant, branch, last=branch.head_seq):
            body = entry.body
            if entry.branch != branch.number or not isinstance(body, Compaction) or (entry.branch, entry.seq) in named:
                continue
            covers = body.covers
            if covers and any(seq in covers and branch.holder(seq) == holder for holder, seq in named):
                found.append(entry)
    return found


def _without_content(entry: Entry) -> Entry:
    body = purged_body(entry.body)
    raw = body.canonical()
    if isinstance(body, Message) or raw != entry.raw:
        return entry._replace(raw=raw, raw_notes=None, tokens=None, counter=None, purged_at=now())
    return entry


def _overwrite(connection: Connection, tenant: str, gone: Iterable[Entry]) -> None:
    rows = [
        {
            "of_tenant": tenant,
            "of_conversation": entry.conversation,
            "of_branch": entry.branch,
            "of_seq": entry.seq,
            "body": entry.raw,
            "notes": entry.raw_notes,
            "tokens": entry.tokens,
            "counter": entry.counter,
            "purged_at": entry.purged_at,
        }
        for entry in gone
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


def _drop_blobs(connection: Connection, tenant: str, gone: Iterable[Entry]) -> None:
    by_branch: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for entry in gone:
        by_branch[entry.conversation, entry.branch].append(entry.seq)
    for (conversation, branch), seqs in by_branch.items():
        blobs.drop_uses(connection, tenant, conversation, branch=branch, seqs=seqs)
