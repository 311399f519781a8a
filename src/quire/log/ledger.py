"""The ledger's rows: a turn is recorded whole, with its manifest, the texts that it quoted, and its calibration."""

from sqlalchemy import Connection, select

from quire.errors import EntryNotFound
from quire.log import append
from quire.log.blobs import put_blob
from quire.log.branches import get_conversation
from quire.log.dialects import insert_new, upsert
from quire.log.records import Branch, Turn
from quire.log.schema import blob_uses, calibrations, manifests, spending
from quire.model import Entry, Manifest


def record_turn(
    connection: Connection, tenant: str, conversation: str, turn: Turn, *, branch: int, after: bytes | None
) -> list[Entry]:
    """Appends the turn's messages and files its manifest under the number of the last, the reply."""
    for blob in turn.blobs:
        put_blob(connection, tenant, blob)
    stored = append.append(connection, tenant, conversation, turn.drafts, branch=branch, after=after)
    write_manifest(connection, tenant, stored[-1], turn.manifest(stored))
    if turn.calibration is not None:
        model, calibration = turn.calibration
        row = {"tenant": tenant, "model": model, "calibration": calibration}
        connection.execute(upsert(connection, calibrations, changing=["calibration"]), row)
    if turn.cost:
        spend(connection, tenant, conversation, turn.cost)
    return stored


def spend(connection: Connection, tenant: str, conversation: str, dollars: float) -> float:
    """Adds to what the conversation has cost, and gives the sum."""
    get_conversation(connection, tenant, conversation)
    row = {"tenant": tenant, "conversation": conversation, "dollars": dollars}
    connection.execute(upsert(connection, spending, adding=["dollars"]), row)
    return get_spent(connection, tenant, conversation)


def get_spent(connection: Connection, tenant: str, conversation: str) -> float:
    wanted = select(spending.c.dollars).where(spending.c.tenant == tenant, spending.c.conversation == conversation)
    return connection.execute(wanted).scalar() or 0.0


def write_manifest(connection: Connection, tenant: str, reply: Entry, manifest: Manifest) -> None:
    """A retry finds its manifest filed already and leaves it."""
    place = {"tenant": tenant, "conversation": reply.conversation, "branch": reply.branch, "seq": reply.seq}
    connection.execute(insert_new(connection, manifests), place | {"manifest": manifest.canonical()})
    quoted = sorted({decision.blob for decision in manifest.included if decision.blob is not None})
    for digest in quoted:
        connection.execute(insert_new(connection, blob_uses), place | {"digest": bytes.fromhex(digest)})


def get_manifest(connection: Connection, tenant: str, branch: Branch, seq: int) -> Manifest:
    wanted = select(manifests.c.manifest).where(
        manifests.c.tenant == tenant,
        manifests.c.conversation == branch.conversation,
        manifests.c.branch == branch.holder(seq),
        manifests.c.seq == seq,
    )
    found = connection.execute(wanted).scalar()
    if found is None:
        raise EntryNotFound(f"No request is filed under #{seq}; requests go by the number of their reply.")
    return Manifest.parse(found)


def list_manifests(
    connection: Connection, tenant: str, branch: Branch, *, limit: int | None = None, last: int | None = None
) -> list[tuple[int, Manifest]]:
    """The branch's requests with the number of their reply, the newest `limit` of them, oldest first."""
    found: list[tuple[int, str]] = []
    for piece in branch.segments(1, last):
        wanted = (
            select(manifests.c.seq, manifests.c.manifest)
            .where(
                manifests.c.tenant == tenant,
                manifests.c.conversation == branch.conversation,
                manifests.c.branch == piece.branch,
                manifests.c.seq.between(piece.first, piece.last),
            )
            .order_by(manifests.c.seq.desc())
        )
        if limit is not None:
            wanted = wanted.limit(limit - len(found))
        found.extend((row.seq, row.manifest) for row in connection.execute(wanted))
        if limit is not None and len(found) >= limit:
            break
    return [(seq, Manifest.parse(manifest)) for seq, manifest in reversed(found)]


def own_manifests(connection: Connection, tenant: str, branch: Branch) -> list[tuple[int, str]]:
    """Those under the branch's own entries, as they are stored."""
    wanted = (
        select(manifests.c.seq, manifests.c.manifest)
        .where(
            manifests.c.tenant == tenant,
            manifests.c.conversation == branch.conversation,
            manifests.c.branch == branch.number,
        )
        .order_by(manifests.c.seq)
    )
    return [(row.seq, row.manifest) for row in connection.execute(wanted)]


def get_calibration(connection: Connection, tenant: str, model: str) -> str | None:
    wanted = select(calibrations.c.calibration).where(calibrations.c.tenant == tenant, calibrations.c.model == model)
    return connection.execute(wanted).scalar()
