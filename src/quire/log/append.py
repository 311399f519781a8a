"""The one way into the log: lock the branch's row, chain the entries on, move the head. All of it, or nothing."""

from collections.abc import Callable, Iterable, Sequence

from sqlalchemy import Connection, select

from quire.errors import BlobNotFound, InvalidEntry, StaleHead
from quire.log import branches, reading
from quire.log.dialects import insert_rows
from quire.log.driver import together
from quire.log.fresh import now
from quire.log.records import Branch
from quire.log.schema import blob_uses, blobs, entries, paths
from quire.model import Compaction, Coverage, Draft, Entry, Message, chain_digest, fold, next_path, path_of
from quire.model.entries import kind_of


def append(
    connection: Connection,
    tenant: str,
    conversation: str,
    drafts: Sequence[Draft],
    *,
    branch: int,
    after: bytes | None,
    beside: Callable[[Sequence[Entry]], None] | None = None,
) -> list[Entry]:
    """Appends the drafts; with `after`, right after the message whose path that is, and only once.

    What is stored there already is given back as it is. Where something else is, `StaleHead` says so. What `beside`
    writes, with the entries in hand, goes along with them.
    """
    place = branches.get_branch(connection, tenant, conversation, branch, lock=True)
    stored = [] if after is None else _stored_already(connection, tenant, place, drafts, after)
    fresh = drafts[len(stored) :]
    if fresh:
        chained, moved = _chain(connection, tenant, place, fresh)
        quoted = [(entry, draft.blobs()) for entry, draft in zip(chained, fresh, strict=True)]
        write_blob_uses(connection, tenant, quoted)
        stored.extend(chained)
        with together(connection):
            write_entries(connection, tenant, chained)
            branches.move_head(connection, tenant, moved)
            if beside is not None:
                beside(stored)
    elif beside is not None:
        beside(stored)
    return stored


def _stored_already(
    connection: Connection, tenant: str, place: Branch, drafts: Sequence[Draft], after: bytes
) -> list[Entry]:
    """The leading drafts that a former call has stored after this path."""
    if after == place.head_path:
        return []
    messages = [draft.body.canonical() for draft in drafts if isinstance(draft.body, Message)]
    if len(messages) != len(drafts):
        raise InvalidEntry("Only messages can be appended after a given message.")
    expected = list(path_of(messages, start=after))
    known = connection.execute(
        select(paths.c.path, paths.c.branch, paths.c.seq).where(
            paths.c.tenant == tenant,
            paths.c.path.in_(expected),
            paths.c.conversation == place.conversation,
        )
    )
    seqs = {path: seq for path, branch, seq in known if place.holder(seq) == branch}
    stored = [seqs[path] for path in expected if path in seqs]
    if not stored or (len(stored) < len(expected) and expected[len(stored) - 1] != place.head_path):
        raise StaleHead(
            f"Branch {place.number} of {place.conversation!r} has moved on to entry #{place.head_seq}; "
            "append after its present head, or fork at the old one."
        )
    return [reading.get_entry(connection, tenant, place, seq) for seq in stored]


def _chain(connection: Connection, tenant: str, place: Branch, drafts: Sequence[Draft]) -> tuple[list[Entry], Branch]:
    def coverage_at(seq: int) -> Coverage:
        body = next((entry.body for entry in chained if entry.seq == seq), None)
        body = body or reading.get_entry(connection, tenant, place, seq).body
        if not isinstance(body, Compaction):
            raise InvalidEntry(f"Entry #{seq} is no compaction.")
        return Coverage.of(seq, body)

    chained: list[Entry] = []
    seq, digest, path, state = place.head_seq, place.head_digest, place.head_path, place.state
    for draft in drafts:
        seq += 1
        state = fold(state, seq, draft.body, coverage_at=coverage_at)
        entry = _entry(place, seq, digest, path, draft)
        digest, path = entry.digest, entry.path
        chained.append(entry)
    return chained, place._replace(head_seq=seq, head_digest=digest, head_path=path, state=state)


def _entry(place: Branch, seq: int, previous: bytes, path: bytes, draft: Draft) -> Entry:
    body = draft.body
    is_message = isinstance(body, Message)
    raw = body.canonical()
    entry = Entry(
        conversation=place.conversation,
        branch=place.number,
        seq=seq,
        kind=kind_of(body),
        role=body.role if is_message else None,
        author=draft.written_by(),
        at=now() if draft.at is None else draft.at,
        digest=b"",
        path=next_path(path, raw) if is_message else path,
        tokens=draft.tokens.tokens if draft.tokens else None,
        counter=draft.tokens.counter if draft.tokens else None,
        raw=raw,
        raw_notes=draft.notes(),
        purged_at=None,
    )
    return entry._replace(digest=chain_digest(previous, beside=entry.beside(), body=raw))


def write_entries(connection: Connection, tenant: str, chained: Sequence[Entry]) -> None:
    insert_rows(connection, entries, [_row(tenant, entry) for entry in chained])
    ends = [_place(tenant, entry) | {"path": entry.path} for entry in chained if entry.kind == "message"]
    if ends:
        insert_rows(connection, paths, ends)


def _row(tenant: str, entry: Entry) -> dict[str, object]:
    return {"tenant": tenant, **dict(zip(_NAMES, entry, strict=True))}


_NAMES = tuple(column.name for column in reading.COLUMNS)


def write_blob_uses(connection: Connection, tenant: str, quoted: Iterable[tuple[Entry, set[str]]]) -> None:
    """Notes which entry quotes which blob; a blob that is not stored cannot be quoted."""
    uses = [(entry, bytes.fromhex(digest)) for entry, digests in quoted for digest in sorted(digests)]
    if not uses:
        return
    wanted = {digest for _, digest in uses}
    stored = connection.execute(select(blobs.c.digest).where(blobs.c.tenant == tenant, blobs.c.digest.in_(wanted)))
    missing = wanted.difference(stored.scalars())
    if missing:
        raise BlobNotFound(f"No blob {min(missing).hex()} is stored; put it before the message that quotes it.")
    insert_rows(connection, blob_uses, [_place(tenant, entry) | {"digest": digest} for entry, digest in uses])


def _place(tenant: str, entry: Entry) -> dict[str, object]:
    return {"tenant": tenant, "conversation": entry.conversation, "branch": entry.branch, "seq": entry.seq}
