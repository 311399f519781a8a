"""Worklist of the sweep for missing background work: recently updated conversations of all tenants, and sweep times.

Only this module and `branch_heads` see rows of other tenants, this one only their ids and times. The sweep then reads
each conversation as its tenant.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, or_, select, text

from quire.log.dialects import upsert
from quire.log.schema import passages, search_scopes, sweeps
from quire.log.search_types import memory_scope
from quire.log.store_base import SqlStoreBase


class ConversationActivity(NamedTuple):
    """A conversation and the time of its last update."""

    tenant: str
    conversation: str
    updated_at: int


class SqlWorklist(SqlStoreBase):
    """The methods of the store for finding missing background work."""

    async def list_updated_conversations(
        self, *, since: int, until: int, limit: int = 500, after: ConversationActivity | None = None
    ) -> list[ConversationActivity]:
        """Conversations of all tenants that were last updated between these times, oldest first.

        Cursor pagination: `after` is the last one of the previous page."""
        start = after or ConversationActivity("", "", since)
        return await self._read_bulk(_list_updated_conversations, {**start._asdict(), "until": until, "limit": limit})

    async def get_sweep_time(self, name: str) -> int | None:
        """Timestamp of the last completed sweep with this name, or None."""
        return await self._read(_get_sweep_time, name)

    async def record_sweep(self, name: str, until: int) -> None:
        await self._write(_record_sweep, name, until)

    async def list_unembedded_scopes(self, *, embedder: str) -> list[str]:
        """Scopes of the tenant's memories with a passage that lacks this embedder's vector."""
        return await self._read_bulk(_list_unembedded_scopes, embedder=embedder)


def _list_updated_conversations(
    connection: Connection, _tenant: str, params: Mapping[str, Any]
) -> list[ConversationActivity]:
    statement = _UPDATED_POSTGRES if connection.dialect.name == "postgresql" else _UPDATED_SQLITE
    return [ConversationActivity._make(row) for row in connection.execute(statement, params)]


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


def _get_sweep_time(connection: Connection, _tenant: str, name: str) -> int | None:
    return connection.execute(select(sweeps.c.swept_until).where(sweeps.c.name == name)).scalar()


def _record_sweep(connection: Connection, _tenant: str, name: str, until: int) -> None:
    connection.execute(upsert(connection, sweeps, replace=["swept_until"]), {"name": name, "swept_until": until})


def _list_unembedded_scopes(connection: Connection, tenant: str, *, embedder: str) -> list[str]:
    prefix = memory_scope("")
    # The smallest string after all that have the prefix.
    prefix_end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    memory_scopes = select(search_scopes.c.scope).where(
        search_scopes.c.tenant == tenant, search_scopes.c.scope >= prefix, search_scopes.c.scope < prefix_end
    )
    candidates = connection.execute(memory_scopes).scalars().all()
    return [scope for scope in candidates if _lacks_vectors(connection, tenant, scope, embedder)]


def _lacks_vectors(connection: Connection, tenant: str, scope: str, embedder: str) -> bool:
    stored = passages.c.embedder
    lacking = or_(stored.is_(None), stored < embedder, stored > embedder)
    query = select(passages.c.number).where(passages.c.tenant == tenant, passages.c.scope == scope, lacking)
    return connection.execute(query.limit(1)).first() is not None
