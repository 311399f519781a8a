"""Turn leases: which server process runs the turn of a branch, stored in the database, so that all processes agree.

A process acquires the lease before a turn and renews it while the turn runs; the transaction that records the answer
deletes it. A lease that is not renewed expires by the clock of the database, and another process may take it over.
Every write of a turn checks its lease in the same transaction (fencing), so a process that lost it records nothing.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, delete, literal_column, select, text, update

from quire.db.dialects import sanitize_text
from quire.db.schema import turn_leases
from quire.db.store_part import StorePart, read_inline, write
from quire.errors import TurnLeaseLost
from quire.log.conversations import get_branch
from quire.log.tenant_masker import mask_text
from quire.log.types import TurnLease
from quire.model.ids import new_id

LEASE_SECONDS = 15
"""Seconds after its last renewal when a lease expires: the process that held it has died, or cannot reach the
database."""
OUTCOME_SECONDS = 600
"""Seconds for which the outcome of a turn without an answer is stored for other processes."""
MAX_ACQUIRE_ATTEMPTS = 5
"""Attempts to acquire a lease that other processes release and acquire at the same time."""

_NOW = {
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}
"""The time of the database in microseconds since 1970. Servers may have different clocks."""


class IdempotencyKey(NamedTuple):
    """Identifies the attempts to send one question: the entry before it, and the digest of the message."""

    after: int
    question: bytes


class LeaseGrant(NamedTuple):
    """A lease that was acquired, and the head of the branch read after that."""

    lease: TurnLease
    head_seq: int


class LeaseState(NamedTuple):
    """The lease of a branch as it is stored."""

    lease: TurnLease
    idempotency_key: IdempotencyKey | None
    is_running: bool
    """Whether the turn has not ended and the lease has not expired."""
    stop_requested: bool
    approval: str | None
    """Id of the last approval that the turn requested."""
    is_approved: bool | None
    """The decision, once there is one."""
    outcome: str | None
    """JSON of the last event of a turn that ended without an answer."""


def acquire_lease(
    connection: Connection,
    tenant: str,
    conversation: str,
    branch: int,
    *,
    owner: str,
    idempotency_key: IdempotencyKey | None = None,
) -> LeaseGrant | LeaseState:
    """Acquires the lease of a branch. Returns the state of the lease if a turn is running there.

    `owner` names the process, for the operator.
    """
    lease = TurnLease(conversation, branch, new_id())
    after, question = idempotency_key or (None, None)
    row = {"owner": owner, "after_seq": after, "question_digest": question, "seconds": LEASE_SECONDS}
    for _ in range(MAX_ACQUIRE_ATTEMPTS):
        acquired = connection.execute(
            text(_ACQUIRE.format(now=_NOW[connection.dialect.name])), row | _to_params(tenant, lease)
        )
        if acquired.first() is not None:
            return LeaseGrant(lease, get_branch(connection, tenant, conversation, branch).head_seq)
        if (state := get_lease(connection, tenant, conversation, branch)) is not None:
            return state
    raise TurnLeaseLost(f"Other processes start turns on branch {branch} of {conversation!r}; send the question again.")


_ACQUIRE = """
    INSERT INTO quire_turn_leases (
        tenant, conversation, branch, turn, owner, after_seq, question_digest, expires_at, stop_requested
    ) VALUES (
        :tenant, :conversation, :branch, :turn, :owner, :after_seq, :question_digest, {now} + :seconds * 1000000, 0
    )
    ON CONFLICT (tenant, conversation, branch) DO UPDATE SET
        turn = excluded.turn, owner = excluded.owner, after_seq = excluded.after_seq,
        question_digest = excluded.question_digest, expires_at = excluded.expires_at,
        stop_requested = 0, pending_call = NULL, approval = NULL, is_approved = NULL, outcome = NULL
    WHERE quire_turn_leases.outcome IS NOT NULL OR quire_turn_leases.expires_at <= {now}
    RETURNING turn
"""


def check_lease(connection: Connection, tenant: str, lease: TurnLease, *, ends_turn: bool) -> None:
    """Raises `TurnLeaseLost` unless this turn has the lease, which is then renewed, or deleted if the turn ends.

    The row stays locked until the transaction ends, so that no other process takes the lease over before.
    """
    if ends_turn:
        result = connection.execute(delete(turn_leases).where(*_is_lease(tenant, lease)))
    else:
        result = connection.execute(_renewal(connection).where(*_is_lease(tenant, lease)))
    if result.rowcount != 1:
        raise TurnLeaseLost


def end_lease(connection: Connection, tenant: str, lease: TurnLease, *, outcome: str | None = None) -> None:
    """Ends a turn without an answer. Its `outcome` is stored for the processes that wait for it, if there is one."""
    if outcome is None:
        connection.execute(delete(turn_leases).where(*_is_lease(tenant, lease)))
        return
    ended = update(turn_leases).values(outcome=sanitize_text(mask_text(connection, outcome)))
    connection.execute(ended.where(*_is_lease(tenant, lease)))
    old = turn_leases.c.expires_at <= _now(connection) - OUTCOME_SECONDS * 1_000_000
    connection.execute(delete(turn_leases).where(turn_leases.c.tenant == tenant, old))


def delete_outcomes(connection: Connection, tenant: str, conversation: str) -> None:
    """Deletes the outcomes of a conversation's turns: an error message may quote what a purge erases."""
    ended = (turn_leases.c.conversation == conversation) & turn_leases.c.outcome.is_not(None)
    connection.execute(delete(turn_leases).where(turn_leases.c.tenant == tenant, ended))


def renew_leases(connection: Connection, tenant: str, turns: Collection[str]) -> list[LeaseState]:
    """Renews the leases of these turns. Returns those that still belong to them."""
    connection.execute(_renewal(connection).where(turn_leases.c.tenant == tenant, turn_leases.c.turn.in_(turns)))
    return list_leases(connection, tenant, turns)


def list_leases(connection: Connection, tenant: str, turns: Collection[str]) -> list[LeaseState]:
    """The leases of these turns. One that ended or was taken over is absent."""
    query = select(*_state_columns(connection)).where(turn_leases.c.tenant == tenant, turn_leases.c.turn.in_(turns))
    return _to_states(connection.execute(query).all())


def get_lease(connection: Connection, tenant: str, conversation: str, branch: int) -> LeaseState | None:
    """The lease of a branch, also one that ended with an outcome or expired."""
    query = select(*_state_columns(connection)).where(*_is_branch(tenant, conversation, branch))
    states = _to_states(connection.execute(query).all())
    return states[0] if states else None


def list_running(connection: Connection, tenant: str) -> list[LeaseState]:
    """The leases of all turns that are running. One whose `approval` has no decision waits for the user."""
    query = select(*_state_columns(connection)).where(turn_leases.c.tenant == tenant, _is_running(connection))
    return _to_states(connection.execute(query.order_by(turn_leases.c.conversation, turn_leases.c.branch)).all())


def request_stop(connection: Connection, tenant: str, conversation: str, branch: int) -> bool:
    """Asks the process that runs the branch's turn to stop it. Returns whether a turn is running."""
    stop = update(turn_leases).values(stop_requested=1).where(*_is_branch(tenant, conversation, branch))
    return connection.execute(stop.where(_is_running(connection))).rowcount == 1


def request_approval(connection: Connection, tenant: str, lease: TurnLease, call: str) -> str:
    """Records that a tool call of the turn waits for approval. Returns the id of the approval.

    The id of the call does not identify it: a model may repeat an earlier call's id.
    """
    approval = new_id()
    waiting = update(turn_leases).values(pending_call=sanitize_text(call), approval=approval, is_approved=None)
    if connection.execute(waiting.where(*_is_lease(tenant, lease))).rowcount != 1:
        raise TurnLeaseLost
    return approval


def decide_approval(
    connection: Connection, tenant: str, conversation: str, branch: int, call: str, *, approve: bool
) -> str | None:
    """Records the first decision on a tool call. Returns the id of the approval, None if the call waits for none."""
    decided = update(turn_leases).values(is_approved=int(approve)).where(*_is_branch(tenant, conversation, branch))
    is_pending = (turn_leases.c.pending_call == sanitize_text(call)) & turn_leases.c.is_approved.is_(None)
    returned = decided.where(is_pending, _is_running(connection)).returning(turn_leases.c.approval)
    return connection.execute(returned).scalar()


def _now(connection: Connection) -> ColumnElement[int]:
    return literal_column(_NOW[connection.dialect.name])


def _renewal(connection: Connection) -> Any:
    return update(turn_leases).values(expires_at=_now(connection) + LEASE_SECONDS * 1_000_000)


def _is_running(connection: Connection) -> ColumnElement[bool]:
    return turn_leases.c.outcome.is_(None) & (turn_leases.c.expires_at > _now(connection))


def _is_branch(tenant: str, conversation: str, branch: int) -> tuple[ColumnElement[bool], ...]:
    columns = turn_leases.c
    return columns.tenant == tenant, columns.conversation == conversation, columns.branch == branch


def _is_lease(tenant: str, lease: TurnLease) -> tuple[ColumnElement[bool], ...]:
    return *_is_branch(tenant, lease.conversation, lease.branch), turn_leases.c.turn == lease.turn


def _to_params(tenant: str, lease: TurnLease) -> dict[str, object]:
    return {"tenant": tenant, **lease._asdict()}


def _state_columns(connection: Connection) -> tuple[ColumnElement[Any], ...]:
    return *turn_leases.c, _is_running(connection).label("is_running")


def _to_states(rows: Collection[Row[Any]]) -> list[LeaseState]:
    return [
        LeaseState(
            lease=TurnLease(row.conversation, row.branch, row.turn),
            idempotency_key=None if row.after_seq is None else IdempotencyKey(row.after_seq, row.question_digest),
            is_running=bool(row.is_running),
            stop_requested=bool(row.stop_requested),
            approval=row.approval,
            is_approved=None if row.is_approved is None else bool(row.is_approved),
            outcome=row.outcome,
        )
        for row in rows
    ]


class TurnLeases(StorePart):
    """Turn leases."""

    acquire = write(acquire_lease)
    renew = write(renew_leases)
    list = read_inline(list_leases)
    list_running = read_inline(list_running)
    get = read_inline(get_lease)
    end = write(end_lease)
    request_stop = write(request_stop)
    request_approval = write(request_approval)
    decide_approval = write(decide_approval)
