"""Spending: costs of model calls by conversation and API key, and the reservations by which spend caps hold.

All state is in the database, so that a cap holds for all nodes together. Before a call that a cap applies to, its
estimated cost is reserved. The transaction that records the reply replaces the reservation by the actual cost. A call
is admitted while what is spent and reserved is below the cap and leaves room for its input. How long its reply will be
is not known, so the last admitted call can pass the cap by the cost of its reply.
"""

from functools import cache
from typing import NamedTuple, assert_never
from zlib import crc32

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    ScalarSelect,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    text,
)

from quire.db.dialects import upsert
from quire.db.schema import api_keys, costs, spend_reservations, spending, stored_bytes
from quire.db.store_part import StorePart, read, read_inline, write
from quire.db.stored_bytes import UncountedBytes
from quire.errors import SpendCapReached, SpendReserved, SpendScope, StorageQuotaReached, TooManyRequests
from quire.log.conversations import get_conversation
from quire.model.ids import new_id, now

SPENDING_SHARDS = 8
"""Rows that hold the total of one API key. Conversations are distributed over them."""
RESERVATION_SECONDS = 3_600
"""Seconds after which a reservation that no process settled no longer counts: its process has died."""
ROUNDING_USD = 1e-9
"""Difference of summed costs that counts as none."""
NO_CONVERSATION = ""
"""Conversation of calls that belong to none, such as token counts."""
NO_KEY = ""
"""Key id of calls without an API key."""


class SpendCaps(NamedTuple):
    """Caps in US dollars, or None where there is none."""

    conversation: float | None = None
    key: float | None = None
    tenant: float | None = None

    @property
    def exist(self) -> bool:
        return any(cap is not None for cap in self)

    def by_scope(self) -> dict[SpendScope, float]:
        """The caps that exist."""
        caps: dict[SpendScope, float | None] = {
            "conversation": self.conversation,
            "key": self.key,
            "tenant": self.tenant,
        }
        return {scope: cap for scope, cap in caps.items() if cap is not None}


class SpendingKey(NamedTuple):
    """The API key that calls are charged to, and its spend cap."""

    id: str
    max_spend: float | None = None


class SpendReservation(NamedTuple):
    """The estimated cost of a call in progress."""

    id: str
    input_usd: float
    """Cost of the input alone: charged if the call was sent and its outcome is unknown."""


class StorageDemand(NamedTuple):
    """Bytes that a call will store, and the tenant's quota for them."""

    stored_bytes: int
    quota: int


class _Spending(NamedTuple):
    scope: SpendScope
    cap: float
    spent: float
    reserved: float

    def check(self, input_usd: float) -> None:
        """Raises `SpendCapReached` if the cap is spent, or what is left of it is less than the cost of this input."""
        if self.spent >= self.cap:
            raise SpendCapReached(scope=self.scope, spent=self.spent, cap=self.cap)
        if self.spent + input_usd > self.cap + ROUNDING_USD:
            raise SpendCapReached(scope=self.scope, spent=self.spent, cap=self.cap, estimated=input_usd)


def charge(connection: Connection, tenant: str, conversation: str, cost_usd: float, *, key_id: str = NO_KEY) -> None:
    """Adds a cost to the totals of the conversation and of the API key."""
    row = {"tenant": tenant, "conversation": conversation, "key_id": key_id, "cost_usd": cost_usd}
    connection.execute(upsert(connection, costs, increment=["cost_usd"]), row)
    row = {"tenant": tenant, "key_id": key_id, "shard": shard_of(conversation), "cost_usd": cost_usd}
    connection.execute(upsert(connection, spending, increment=["cost_usd"]), row)


def shard_of(conversation: str) -> int:
    return crc32(conversation.encode(errors="replace")) % SPENDING_SHARDS


def discard_reservation(connection: Connection, tenant: str, reservation: str) -> None:
    """Removes the reservation of a call whose actual cost the same transaction charges."""
    connection.execute(_DISCARD, {"tenant": tenant, "reservation": reservation})


_RESERVE = insert(spend_reservations)
_DISCARD = delete(spend_reservations).where(
    spend_reservations.c.tenant == bindparam("tenant"), spend_reservations.c.reservation == bindparam("reservation")
)
_DISCARD_EXPIRED = delete(spend_reservations).where(
    spend_reservations.c.tenant == bindparam("tenant"), spend_reservations.c.expires_at <= bindparam("now")
)


def get_cost(connection: Connection, tenant: str, conversation: str) -> float:
    """Total cost of the conversation's model calls in US dollars."""
    query = select(func.sum(costs.c.cost_usd)).where(costs.c.tenant == tenant, costs.c.conversation == conversation)
    return connection.execute(query).scalar() or 0.0


def sum_by_key(connection: Connection, tenant: str) -> dict[str, float]:
    """Total cost of each of this tenant's API keys in US dollars; '' is the key of calls without one."""
    query = select(spending.c.key_id, func.sum(spending.c.cost_usd)).where(spending.c.tenant == tenant)
    return {row[0]: row[1] for row in connection.execute(query.group_by(spending.c.key_id))}


def check_spend(
    connection: Connection,
    tenant: str,
    conversation: str,
    caps: SpendCaps,
    *,
    key_id: str = NO_KEY,
    input_usd: float = 0.0,
) -> None:
    """Raises `SpendCapReached` if a cap is spent, or what is left of it is less than the cost of a call's input."""
    for each in _read_spending(connection, tenant, conversation, key_id, caps):
        each.check(input_usd)


def reserve_spend(
    connection: Connection,
    tenant: str,
    conversation: str,
    amount_usd: float,
    caps: SpendCaps,
    *,
    key_id: str = NO_KEY,
    input_usd: float = 0.0,
    storage: StorageDemand | None = None,
) -> str:
    """Reserves an estimated cost, and bytes to store, before a call and returns the reservation's id.

    Raises `SpendCapReached` if a cap is spent or cannot pay the call's input, and `SpendReserved` if calls in progress
    may spend what it needs. Likewise `StorageQuotaReached`, and `TooManyRequests` if calls in progress may store the
    rest of the quota.
    """
    _lock_caps(connection, tenant, conversation, key_id, caps, has_storage=storage is not None)
    if storage is not None:
        _check_storage(connection, tenant, storage)
    for each in _read_spending(connection, tenant, conversation, key_id, caps):
        each.check(input_usd)
        committed = each.spent + each.reserved
        if committed >= each.cap or committed + input_usd > each.cap + ROUNDING_USD:
            raise SpendReserved(scope=each.scope, spent=each.spent, reserved=each.reserved, cap=each.cap)
    reservation, at = new_id(), now()
    row = {
        "tenant": tenant,
        "reservation": reservation,
        "conversation": conversation,
        "key_id": key_id,
        "amount_usd": amount_usd,
        "expires_at": at + RESERVATION_SECONDS * 1_000_000,
        "stored_bytes": storage.stored_bytes if storage is not None else 0,
    }
    connection.execute(_DISCARD_EXPIRED, {"tenant": tenant, "now": at})
    connection.execute(_RESERVE, row)
    return reservation


def settle_spend(connection: Connection, tenant: str, reservation: str, cost_usd: float) -> None:
    """Replaces a reservation by the actual cost, 0 for a call that was not billed. `record_reply` does the same.

    A reservation that is settled already changes nothing.
    """
    settled = delete(spend_reservations).where(
        spend_reservations.c.tenant == tenant, spend_reservations.c.reservation == reservation
    )
    row = connection.execute(settled.returning(spend_reservations.c.conversation, spend_reservations.c.key_id)).first()
    if row is not None and cost_usd:
        charge(connection, tenant, row.conversation, cost_usd, key_id=row.key_id)


def add_cost(connection: Connection, tenant: str, conversation: str, cost_usd: float, *, key_id: str = NO_KEY) -> float:
    """Adds to the cost of the conversation and of the API key. Returns the conversation's total."""
    get_conversation(connection, tenant, conversation)
    charge(connection, tenant, conversation, cost_usd, key_id=key_id)
    return get_cost(connection, tenant, conversation)


def find_spending_key(connection: Connection, tenant: str, conversation: str) -> SpendingKey | None:
    """The API key with the highest cost in this conversation, to which its background work is charged."""
    same_key = (api_keys.c.tenant == costs.c.tenant) & (api_keys.c.id == costs.c.key_id)
    query = (
        select(costs.c.key_id, api_keys.c.max_spend)
        .join_from(costs, api_keys, same_key)
        .where(costs.c.tenant == tenant, costs.c.conversation == conversation)
        .order_by(costs.c.cost_usd.desc(), costs.c.key_id)
    )
    row = connection.execute(query).first()
    return SpendingKey(*row) if row is not None else None


def _lock_caps(
    connection: Connection, tenant: str, conversation: str, key_id: str, caps: SpendCaps, *, has_storage: bool
) -> None:
    """Lets one transaction at a time reserve under the same cap. On SQLite every write transaction is alone anyway."""
    if connection.dialect.name != "postgresql":
        return
    names: list[str] = []
    if caps.tenant is not None or has_storage:
        names.append(f"quire spend tenant {tenant}")
    if caps.key is not None:
        names.append(f"quire spend key {key_id}")
    if caps.conversation is not None:
        names.append(f"quire spend conversation {tenant} {conversation}")
    locks = ", ".join(f"pg_advisory_xact_lock(hashtextextended(:name_{index}, 0))" for index in range(len(names)))
    params = {f"name_{index}": name for index, name in enumerate(names)}
    connection.execute(text(f"SELECT {locks}"), params)


def _check_storage(connection: Connection, tenant: str, storage: StorageDemand) -> None:
    stored, reserved = connection.execute(_STORAGE, {"tenant": tenant, "now": now()}).one()
    if stored is None:
        raise UncountedBytes
    needed, quota = storage
    if stored + needed > quota:
        raise StorageQuotaReached(stored=stored, added=needed, quota=quota)
    if stored + reserved + needed > quota:
        raise TooManyRequests(
            f"Of the tenant's quota of {quota:,} stored bytes, {stored:,} are used and {reserved:,} are reserved for "
            "calls in progress; retry when they have ended.",
            retry_after=2,
        )


_STORAGE = select(
    select(stored_bytes.c.bytes).where(stored_bytes.c.tenant == bindparam("tenant")).scalar_subquery(),
    select(func.coalesce(func.sum(spend_reservations.c.stored_bytes), literal_column("0")))
    .where(spend_reservations.c.tenant == bindparam("tenant"), spend_reservations.c.expires_at > bindparam("now"))
    .scalar_subquery(),
)


def _read_spending(
    connection: Connection, tenant: str, conversation: str, key_id: str, caps: SpendCaps
) -> list[_Spending]:
    """Reads everything in one statement: a call that is settled meanwhile counts once, as reserved or as spent."""
    capped = caps.by_scope()
    if not capped:
        return []
    params = {"tenant": tenant, "conversation": conversation, "key_id": key_id, "now": now()}
    sums = connection.execute(_spending_query(tuple(capped)), params).one()
    totals = zip(capped.items(), sums[::2], sums[1::2], strict=True)
    return [_Spending(scope, cap, spent, reserved) for (scope, cap), spent, reserved in totals]


@cache
def _spending_query(scopes: tuple[SpendScope, ...]) -> Executable:
    """Selects what is spent and what is reserved of each scope."""
    spent, reserved = spending.c, spend_reservations.c
    in_tenant, in_progress = spent.tenant == bindparam("tenant"), reserved.expires_at > bindparam("now")
    is_reserved = (reserved.tenant == bindparam("tenant"), in_progress)
    columns: list[ScalarSelect[float]] = []
    for scope in scopes:
        match scope:
            case "conversation":
                same = costs.c.conversation == bindparam("conversation")
                columns += [
                    _sum(costs.c.cost_usd, costs.c.tenant == bindparam("tenant"), same),
                    _sum(reserved.amount_usd, *is_reserved, reserved.conversation == bindparam("conversation")),
                ]
            case "key":
                columns += [
                    _sum(spent.cost_usd, in_tenant, spent.key_id == bindparam("key_id")),
                    _sum(reserved.amount_usd, *is_reserved, reserved.key_id == bindparam("key_id")),
                ]
            case "tenant":
                columns += [_sum(spent.cost_usd, in_tenant), _sum(reserved.amount_usd, *is_reserved)]
            case _:
                assert_never(scope)
    return select(*columns)


def _sum(amount: ColumnElement[float], *conditions: ColumnElement[bool]) -> ScalarSelect[float]:
    return select(func.coalesce(func.sum(amount), literal_column("0.0"))).where(*conditions).scalar_subquery()


class Spending(StorePart):
    """Costs of model calls, and the reservations under spend caps."""

    add_cost = write(add_cost)
    charge = write(charge)
    get_cost = read_inline(get_cost)
    sum_by_key = read(sum_by_key)
    check = read_inline(check_spend)
    reserve = write(reserve_spend)
    settle = write(settle_spend)
    find_key = read_inline(find_spending_key)
