"""Operations over all tenants: conversations for the sweep of missing background work, and heads for event streams.

Only this module sees rows of other tenants. The sweep sees ids and times, and then reads each conversation as its
tenant. An event stream sees the numbers of heads, only of conversations that it names.
"""

import json
from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, select, text

from quire.db.dialects import upsert
from quire.db.notifications import ConversationKey
from quire.db.schema import sweeps
from quire.db.store_part import StorePart, read, read_bulk, read_inline, write
from quire.db.tenant_keys import list_encrypted_tenants


class ConversationActivity(NamedTuple):
    """A conversation and the time of its last update."""

    tenant: str
    conversation: str
    updated_at: int


# Row-level security hides rows of other tenants even from the owner; this function returns only these columns.
_UPDATED_POSTGRES = text("""
    SELECT tenant, conversation, updated_at
    FROM quire_list_updated_conversations(:updated_at, :tenant, :conversation, :until, :limit)
""")
_UPDATED_SQLITE = text("""
    SELECT tenant, conversation, updated_at FROM quire_conversations
    WHERE (updated_at, tenant, conversation) > (:updated_at, :tenant, :conversation) AND updated_at <= :until
    ORDER BY updated_at, tenant, conversation LIMIT :limit
""")


def list_updated_conversations(
    connection: Connection,
    _tenant: str,
    *,
    since: int,
    until: int,
    limit: int = 500,
    after: ConversationActivity | None = None,
) -> list[ConversationActivity]:
    """Conversations of all tenants that were last updated between these times, oldest first.

    Cursor pagination: `after` is the last one of the previous page.
    """
    statement = _UPDATED_POSTGRES if connection.dialect.name == "postgresql" else _UPDATED_SQLITE
    start = after or ConversationActivity("", "", since)
    rows = connection.execute(statement, {**start._asdict(), "until": until, "limit": limit})
    return [ConversationActivity._make(row) for row in rows]


def get_sweep_time(connection: Connection, _tenant: str, name: str) -> int | None:
    """Timestamp of the last completed sweep with this name, or None."""
    return connection.execute(select(sweeps.c.swept_until).where(sweeps.c.name == name)).scalar()


def record_sweep(connection: Connection, _tenant: str, name: str, until: int) -> None:
    connection.execute(upsert(connection, sweeps, replace=["swept_until"]), {"name": name, "swept_until": until})


_HEADS_POSTGRES = text("""
    SELECT tenant, conversation, branch, head_seq
    FROM quire_list_branch_heads(CAST(:tenants AS text[]), CAST(:conversations AS text[]))
    ORDER BY tenant, conversation, branch
""")
_HEADS_SQLITE = text("""
    SELECT tenant, conversation, branch, head_seq
    FROM json_each(:keys) AS watched
    JOIN quire_branches ON tenant = watched.value ->> 0 AND conversation = watched.value ->> 1
    ORDER BY tenant, conversation, branch
""")


def list_branch_heads(
    connection: Connection, _tenant: str, keys: Collection[ConversationKey]
) -> dict[ConversationKey, dict[int, int]]:
    """The head of every branch of these conversations, which may be of any tenant."""
    if connection.dialect.name == "postgresql":
        tenants, conversations = [key[0] for key in keys], [key[1] for key in keys]
        rows = connection.execute(_HEADS_POSTGRES, {"tenants": tenants, "conversations": conversations})
    else:
        rows = connection.execute(_HEADS_SQLITE, {"keys": json.dumps(list(keys))})
    heads: defaultdict[ConversationKey, dict[int, int]] = defaultdict(dict)
    for tenant, conversation, branch, head_seq in rows:
        heads[tenant, conversation][branch] = head_seq
    return dict(heads)


_OBJECT_WORK_POSTGRES = text("SELECT tenant FROM quire_list_object_work(:pending_before, :restored_before)")
_OBJECT_WORK_SQLITE = text("""
    SELECT tenant FROM quire_pending_objects WHERE since < :pending_before
    UNION SELECT tenant FROM quire_archives WHERE object IS NULL AND changed_at < :restored_before
""")


def list_object_work(connection: Connection, _tenant: str, *, pending_before: int, restored_before: int) -> list[str]:
    """Tenants with objects to remove, or with conversations that were restored from object storage before a time."""
    statement = _OBJECT_WORK_POSTGRES if connection.dialect.name == "postgresql" else _OBJECT_WORK_SQLITE
    times = {"pending_before": pending_before, "restored_before": restored_before}
    return sorted(connection.execute(statement, times).scalars())


def get_data_version(connection: Connection, _tenant: str) -> int | None:
    """A number that differs after a commit of another connection. None on PostgreSQL, which has no such number."""
    if connection.dialect.name == "postgresql":
        return None
    return connection.execute(text("PRAGMA data_version")).scalar_one()


class AllTenants(StorePart):
    """What background work and event streams read of all tenants."""

    list_branch_heads = read(list_branch_heads)
    list_updated_conversations = read_bulk(list_updated_conversations)
    get_sweep_time = read(get_sweep_time)
    record_sweep = write(record_sweep)
    list_object_work = read_bulk(list_object_work)
    get_data_version = read_inline(get_data_version)
    list_encrypted_tenants = read(list_encrypted_tenants)
