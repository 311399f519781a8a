"""The ledger's rows: a turn is recorded whole, with its manifest, the texts that it quoted, and its calibration."""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, select

from quire.errors import EntryNotFound, RequestNotFound, StaleHead
from quire.log import append
from quire.log.blobs import keep_blobs, write_uses
from quire.log.branches import branch_row, get_conversation
from quire.log.dialects import insert_rows, upsert
from quire.log.driver import execute
from quire.log.records import MAIN, Branch, Conversation, Filed, Turn
from quire.log.schema import branches, calibrations, conversations, manifests, paths, spending
from quire.model import ROOT, BranchState, Entry, Manifest


def record_turn(
    connection: Connection,
    tenant: str,
    conversation: str,
    turn: Turn,
    *,
    branch: int,
    after: bytes | None,
    stored_blobs: Collection[bytes] = (),
) -> list[Entry]:
    """Appends the turn's messages and files its manifest under the number of the last, the reply.

    Of its blobs those in `stored_blobs` are taken to be there: the tables refuse to quote one that is not.
    """
    if turn.opens is not None:
        _open(connection, tenant, turn.opens)
    keep_blobs(connection, tenant, turn.blobs, but=stored_blobs)
    return append.append(
        connection,
        tenant,
        conversation,
        turn.drafts,
        branch=branch,
        after=after,
        beside=lambda stored: _file(connection, tenant, turn, stored),
    )


def _file(connection: Connection, tenant: str, turn: Turn, stored: Sequence[Entry]) -> None:
    """What is kept of a turn besides its messages."""
    reply = stored[-1]
    if turn.told is not None:
        insert_rows(connection, paths, [_place(tenant, reply) | {"path": turn.told}], where_new=True)
    if not write_manifest(connection, tenant, reply, turn.manifest(stored), request=turn.request):
        return
    if turn.calibration is not None:
        model, calibration = turn.calibration
        row = {"tenant": tenant, "model": model, "calibration": calibration}
        execute(connection, upsert(connection, calibrations, changing=["calibration"]), row)
    if turn.cost:
        _add_cost(connection, tenant, reply.conversation, turn.cost)


def _open(connection: Connection, tenant: str, conversation: Conversation) -> None:
    """Begins a conversation, unless somebody has: a turn of theirs may come first, and `StaleHead` will say so."""
    row = {
        "tenant": tenant,
        "conversation": conversation.id,
        "title": conversation.title,
        "created_at": conversation.created_at,
        "used_at": conversation.used_at,
    }
    insert_rows(connection, conversations, [row], where_new=True)
    at = conversation.created_at
    main = Branch(conversation.id, MAIN, "main", at, (), 0, ROOT, ROOT, BranchState(), conversation.used_at)
    insert_rows(connection, branches, [branch_row(tenant, main)], where_new=True)


def spend(connection: Connection, tenant: str, conversation: str, dollars: float) -> float:
    """Adds to what the conversation has cost, and gives the sum."""
    get_conversation(connection, tenant, conversation)
    _add_cost(connection, tenant, conversation, dollars)
    return get_spent(connection, tenant, conversation)


def _add_cost(connection: Connection, tenant: str, conversation: str, dollars: float) -> None:
    row = {"tenant": tenant, "conversation": conversation, "dollars": dollars}
    execute(connection, upsert(connection, spending, adding=["dollars"]), row)


def get_spent(connection: Connection, tenant: str, conversation: str) -> float:
    wanted = select(spending.c.dollars).where(spending.c.tenant == tenant, spending.c.conversation == conversation)
    return connection.execute(wanted).scalar() or 0.0


def write_manifest(
    connection: Connection, tenant: str, reply: Entry, manifest: Manifest, *, request: str | None = None
) -> bool:
    """Whether it is filed now: a retry finds that it was before. Where another request's is, `StaleHead` says so."""
    row = _place(tenant, reply) | {"manifest": manifest.canonical(), "request": request}
    filed = insert_rows(connection, manifests, [row], where_new=True)
    # Among other statements -1: then the reply is new, and no other request can be filed under it.
    if not filed and request is not None and not _is_filed(connection, tenant, request):
        raise StaleHead(f"Another request was answered with #{reply.seq} in the same words; fork where it was asked.")
    quoted = (decision.blob for decision in manifest.included if decision.blob is not None)
    write_uses(connection, tenant, reply, quoted)
    return filed != 0


def _place(tenant: str, entry: Entry) -> dict[str, object]:
    return {"tenant": tenant, "conversation": entry.conversation, "branch": entry.branch, "seq": entry.seq}


def get_request(connection: Connection, tenant: str, request: str) -> Filed:
    """The request with this id."""
    wanted = select(manifests.c.conversation, manifests.c.branch, manifests.c.seq, manifests.c.manifest).where(
        manifests.c.tenant == tenant, manifests.c.request == request
    )
    row = connection.execute(wanted).first()
    if row is None:
        raise RequestNotFound(f"No request {request!r} is filed for this tenant; those without a reply are not.")
    return Filed(row.conversation, row.branch, row.seq, Manifest.parse(row.manifest))


def _is_filed(connection: Connection, tenant: str, request: str) -> bool:
    wanted = select(manifests.c.seq).where(manifests.c.tenant == tenant, manifests.c.request == request)
    return connection.execute(wanted).first() is not None


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
