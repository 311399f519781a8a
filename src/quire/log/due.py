"""What may have been left undone: who used which conversation when, and how far somebody has looked since.

The one place that sees more than a tenant's own rows, and of the others' it sees ids and times alone. What is missing
in a conversation is then read as its tenant.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, or_, select, text

from quire.log.dialects import upsert
from quire.log.found import conversation_scope, memory_scope
from quire.log.schema import passages, scopes, sweeps
from quire.log.steps import SqlSteps


class Used(NamedTuple):
    """A conversation, and when something was last added to it."""

    tenant: str
    conversation: str
    used_at: int


class SqlDue(SqlSteps):
    """Where to look for work that nobody waits for."""

    async def used(self, *, since: int, upto: int, limit: int = 500, after: Used | None = None) -> list[Used]:
        """Conversations of all tenants last used between these times, the longest ago first; `after` is the last one of
        the page before."""
        start = after or Used("", "", since)
        return await self._read(_used, {**start._asdict(), "upto": upto, "limit": limit})

    async def looked(self, name: str) -> int | None:
        """Up to which time somebody looked, under this name; None if nobody ever did."""
        return await self._read(_looked, name)

    async def note_look(self, name: str, upto: int) -> None:
        await self._write(_note_look, name, upto)

    async def scopes_without_vectors(self, conversation: str, *, embedder: str) -> list[str]:
        """Of a conversation's passages and the tenant's memories, the scopes in which one lacks this embedder's."""
        return await self._read(_scopes_without_vectors, conversation, embedder=embedder)


def _used(connection: Connection, _tenant: str, known: Mapping[str, Any]) -> list[Used]:
    statement = _USED_POSTGRES if connection.dialect.name == "postgresql" else _USED_SQLITE
    return [Used._make(row) for row in connection.execute(statement, known)]


# Row-level security shows nobody all rows, the owner neither: the function may, and gives these columns of them.
_USED_POSTGRES = text("""
    SELECT tenant, conversation, used_at FROM quire_used(:used_at, :tenant, :conversation, :upto, :limit)
""")
_USED_SQLITE = text("""
    SELECT tenant, conversation, used_at FROM quire_conversations
    WHERE (used_at, tenant, conversation) > (:used_at, :tenant, :conversation) AND used_at <= :upto
    ORDER BY used_at, tenant, conversation LIMIT :limit
""")


def _looked(connection: Connection, _tenant: str, name: str) -> int | None:
    return connection.execute(select(sweeps.c.upto).where(sweeps.c.name == name)).scalar()


def _note_look(connection: Connection, _tenant: str, name: str, upto: int) -> None:
    connection.execute(upsert(connection, sweeps, changing=["upto"]), {"name": name, "upto": upto})


def _scopes_without_vectors(connection: Connection, tenant: str, conversation: str, *, embedder: str) -> list[str]:
    beginning = memory_scope("")
    # Up to the first name after all that begin so.
    after = beginning[:-1] + chr(ord(beginning[-1]) + 1)
    remembered = select(scopes.c.scope).where(
        scopes.c.tenant == tenant, scopes.c.scope >= beginning, scopes.c.scope < after
    )
    candidates = [conversation_scope(conversation), *connection.execute(remembered).scalars()]
    return [scope for scope in candidates if _lacks_vectors(connection, tenant, scope, embedder)]


def _lacks_vectors(connection: Connection, tenant: str, scope: str, embedder: str) -> bool:
    named = passages.c.embedder
    lacking = or_(named.is_(None), named < embedder, named > embedder)
    wanted = select(passages.c.number).where(passages.c.tenant == tenant, passages.c.scope == scope, lacking)
    return connection.execute(wanted.limit(1)).first() is not None
