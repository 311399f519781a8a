"""Writes of a turn under its lease: appends, and replies with their manifest, blobs, token calibration and cost."""

from collections.abc import Sequence

from sqlalchemy import Connection

from quire.access.spending import charge, discard_reservation
from quire.db.dialects import insert_rows, upsert
from quire.db.schema import calibrations, paths
from quire.db.stored_bytes import allow_past_quota
from quire.log import ledger
from quire.log.append import append_entries
from quire.log.blobs import insert_blobs
from quire.log.conversations import (
    create_if_missing,
    get_or_create_conversation,
    lock_branch,
)
from quire.log.exchanges import end_exchange
from quire.log.row_digests import ROW_DIGEST, with_row_digest
from quire.log.types import MAIN_BRANCH, ConversationRecord, ReplyRecord, TurnLease
from quire.model import Body, Draft, Entry
from quire.turns.leases import check_lease
from quire.usage.rollup import reset_usage


def append_items(
    connection: Connection,
    tenant: str,
    conversation: str,
    *items: Draft | Body,
    branch: int = MAIN_BRANCH,
    after: bytes | None = None,
    lease: TurnLease | None = None,
) -> list[Entry]:
    """Appends all items or none.

    With `after` (a message's path, or `CHAIN_ROOT`) the append is idempotent: items that are stored right after that
    message are returned. If other entries follow it, raises `StaleHead` (optimistic concurrency). With `lease`, raises
    `TurnLeaseLost` if the turn no longer has it.
    """

    def check_turn() -> None:
        if lease is not None:
            check_lease(connection, tenant, lease, ends_turn=False)

    drafts = [item if isinstance(item, Draft) else Draft(body=item) for item in items]
    return append_entries(connection, tenant, conversation, drafts, branch=branch, after=after, check_turn=check_turn)


def open_conversation(connection: Connection, tenant: str, id: str, *initial: Body) -> ConversationRecord:
    """The conversation of this ID, which is created if it does not exist. Without entries, it begins with `initial`.

    Of concurrent callers one creates it, and the others get the same.
    """
    record = get_or_create_conversation(connection, tenant, id)
    if initial and lock_branch(connection, tenant, id, MAIN_BRANCH).head_seq == 0:
        append_items(connection, tenant, id, *initial)
    return record


def record_reply(
    connection: Connection,
    tenant: str,
    conversation: str,
    record: ReplyRecord,
    *,
    branch: int = MAIN_BRANCH,
    after: bytes | None = None,
) -> list[Entry]:
    """Appends the turn's messages and stores its manifest under the number of the last one, the reply.

    The call is paid for, so the quota of stored bytes refuses nothing here. The reservation of the call was checked.
    Other blobs of the manifest are assumed to be stored. If one is not, a foreign key refuses the reference to it.
    """
    allow_past_quota(connection)
    if record.creates_conversation is not None:
        # If another turn created it first, the append raises `StaleHead`.
        create_if_missing(connection, tenant, record.creates_conversation)
    insert_blobs(connection, tenant, record.blobs)

    def check_turn() -> None:
        if record.lease is not None:
            check_lease(connection, tenant, record.lease, ends_turn=record.ends_turn)

    def write_ledger(stored: Sequence[Entry], new_count: int) -> None:
        reply = stored[-1]
        for path in (record.client_path, record.start_path):
            if path is not None:
                insert_rows(connection, paths, [ledger.to_key(tenant, reply) | {"path": path}], ignore_existing=True)
        manifest = record.build_manifest(stored)
        if not ledger.insert_manifest(
            connection, tenant, reply, manifest, request_id=record.request_id, response_id=record.response_id
        ):
            return
        if record.exchange is not None:
            row, end = record.exchange
            end_exchange(connection, tenant, row, end, reply=(reply.branch, reply.seq))
        if not new_count:
            # The roll-up may have counted the reply without its manifest.
            reset_usage(connection, tenant, reply.conversation)
        if record.calibration is not None:
            model, calibration = record.calibration
            row = with_row_digest(calibrations, {"tenant": tenant, "model": model, "calibration": calibration})
            connection.execute(upsert(connection, calibrations, replace=["calibration", ROW_DIGEST]), row)
        if record.reservation_id is not None:
            discard_reservation(connection, tenant, record.reservation_id)
        if record.cost or record.reservation_id is not None:
            charge(connection, tenant, reply.conversation, record.cost, key_id=record.key_id)

    return append_entries(
        connection,
        tenant,
        conversation,
        record.drafts,
        branch=branch,
        after=after,
        check_turn=check_turn,
        write_extra=write_ledger,
    )
