"""Random samples of conversations, drawn by an index instead of a pass over all of them.

The path of a message is a hash, so the message whose path follows a random one is a random message.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from quire.log.schema import conversations, entries, paths
from quire.log.store_base import SqlStoreBase

_FIRST_PATH = bytes(32)


class SqlSampleStore(SqlStoreBase):
    """The methods of the store for samples."""

    async def list_sample_frame(self, *, limit: int) -> list[str]:
        """Ids of up to `limit` conversations that are not purged."""
        return await self._read(_list_ids, limit)

    async def draw_messages(self, random_paths: Sequence[bytes]) -> list[str]:
        """The conversation of the message after each of these paths; empty if the tenant has no message.

        A conversation is drawn with a probability proportional to the number of its messages, and may be repeated.
        """
        return await self._read_bulk(_draw_messages, random_paths)

    async def count_messages(self, conversation: str) -> int:
        """Number of messages on all branches of a conversation."""
        return await self._read(_count_messages, conversation)


def _list_ids(connection: Connection, tenant: str, limit: int) -> list[str]:
    query = select(conversations.c.conversation).where(conversations.c.tenant == tenant)
    return list(connection.execute(query.where(conversations.c.purged_at.is_(None)).limit(limit)).scalars())


def _draw_messages(connection: Connection, tenant: str, random_paths: Sequence[bytes]) -> list[str]:
    drawn = [_find_after(connection, tenant, path) for path in random_paths]
    return [conversation for conversation in drawn if conversation is not None]


def _find_after(connection: Connection, tenant: str, path: bytes) -> str | None:
    """The conversation of the first message with this path or one after it; after the last comes the first."""
    query = select(paths.c.conversation).where(paths.c.tenant == tenant).order_by(paths.c.path).limit(1)
    for start in (path, _FIRST_PATH):
        found = connection.execute(query.where(paths.c.path >= start)).scalar()
        if found is not None:
            return found
    return None


def _count_messages(connection: Connection, tenant: str, conversation: str) -> int:
    query = select(func.count()).select_from(entries)
    own = (entries.c.tenant == tenant, entries.c.conversation == conversation, entries.c.kind == "message")
    return connection.execute(query.where(*own)).scalar_one()
