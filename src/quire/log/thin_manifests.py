"""Thins out old manifests: what only a replay and a comparison of texts need is removed, with the stored exchanges.

Left are the decisions with their reasons, tokens and scores: what `why` and the picture of a request show. The newest
manifest of each branch stays whole, because the next request continues from it.
"""

from collections.abc import Iterable

from sqlalchemy import Connection, and_, delete, func, select, update

from quire.db.raw_sql import yield_to_event_loop
from quire.db.schema import blob_uses, entries, exchanges, manifests
from quire.log.blobs import delete_unused_blobs
from quire.log.conversations import list_branches, lock_branches
from quire.log.exchanges import NO_CONVERSATION, PURGE_MARK
from quire.log.ledger import list_manifest_rows
from quire.log.reads import ENTRY_COLUMNS
from quire.log.row_digests import ROW_DIGEST, has_row_digest, with_row_digest
from quire.model import Entry, Manifest

_KEYS_PER_STATEMENT = 200
_THINNED = '"thinned":true'
"""In the JSON of a thinned manifest. Quotes in its texts are escaped."""


def thin_manifests(connection: Connection, tenant: str, conversation: str, *, before: int) -> int:
    """Thins the manifests of replies from before a time. Returns their number. One that was changed stays as it is."""
    if any(branch.state.offloaded for branch in list_branches(connection, tenant, conversation)):
        return 0
    own = (manifests.c.tenant == tenant, manifests.c.conversation == conversation)
    newest = select(manifests.c.branch, func.max(manifests.c.seq)).where(*own).group_by(manifests.c.branch)
    newest_replies = {(branch, seq) for branch, seq in connection.execute(newest)}
    is_reply = [manifests.c[name] == entries.c[name] for name in ("tenant", "conversation", "branch", "seq")]
    query = select(*ENTRY_COLUMNS).join(manifests, and_(*is_reply)).where(*own, entries.c.at < before)
    replies = [Entry._make(row) for row in connection.execute(query)]
    old = {(each.branch, each.seq): each for each in replies if (each.branch, each.seq) not in newest_replies}
    _delete_exchanges(connection, tenant, conversation, newest_replies, before=before)
    if not old:
        return 0
    lock_branches(connection, tenant, conversation)
    released: set[bytes] = set()
    count = 0
    for row in list_manifest_rows(connection, tenant, conversation, lock=True):
        reply = old.get((row["branch"], row["seq"]))
        if reply is None or _THINNED in row["manifest"] or not has_row_digest(manifests, row):
            continue
        thinned = Manifest.parse(row["manifest"]).thin()
        text = thinned.canonical_json()
        changed = with_row_digest(manifests, {**row, "manifest": text})
        is_row = (column == row[column.name] for column in manifests.primary_key)
        values = {"manifest": text, ROW_DIGEST: changed[ROW_DIGEST]}
        connection.execute(update(manifests).where(*is_row).values(values))
        own_blobs = reply.blob_digests() if reply.purged_at is None else set[str]()
        released |= _delete_uses(connection, tenant, reply, thinned.blob_digests | own_blobs)
        count += 1
        yield_to_event_loop(connection)
    delete_unused_blobs(connection, tenant, released)
    return count


def _delete_uses(connection: Connection, tenant: str, reply: Entry, needed: Iterable[str]) -> set[bytes]:
    """Deletes the references of a reply to all blobs but those that are needed. Returns the digests."""
    uses = (
        blob_uses.c.tenant == tenant,
        blob_uses.c.conversation == reply.conversation,
        blob_uses.c.branch == reply.branch,
        blob_uses.c.seq == reply.seq,
        blob_uses.c.digest.not_in([bytes.fromhex(each) for each in needed]),
    )
    digests = set(connection.execute(select(blob_uses.c.digest).where(*uses)).scalars())
    connection.execute(delete(blob_uses).where(*uses))
    return digests


def _delete_exchanges(
    connection: Connection, tenant: str, conversation: str, newest: set[tuple[int, int]], *, before: int
) -> None:
    """Deletes old exchanges, except those of the newest replies, and those that a newer one is stored as a
    difference to."""
    own = (exchanges.c.tenant == tenant, exchanges.c.conversation == conversation, exchanges.c.exchange != PURGE_MARK)
    columns = [exchanges.c[name] for name in ("exchange", "base", "branch", "seq", "started_at")]
    rows = connection.execute(select(*columns).where(*own)).all()
    bases = {row.exchange: row.base for row in rows}
    needed: set[str] = set()
    for row in rows:
        current = row.exchange if row.started_at >= before or (row.branch, row.seq) in newest else None
        while current is not None and current not in needed:
            needed.add(current)
            current = bases.get(current)
    unneeded = sorted(bases.keys() - needed)
    for start in range(0, len(unneeded), _KEYS_PER_STATEMENT):
        keys = unneeded[start : start + _KEYS_PER_STATEMENT]
        connection.execute(delete(exchanges).where(*own, exchanges.c.exchange.in_(keys)))
    # Requests of no conversation have no other occasion.
    of_none = (exchanges.c.tenant == tenant, exchanges.c.conversation == NO_CONVERSATION)
    connection.execute(delete(exchanges).where(*of_none, exchanges.c.started_at < before))
