"""The heads of many branches in one query, for the event streams of a server.

Like the worklist, it sees rows of other tenants: only numbers, and only of conversations that the caller names.
"""

import json
from collections import defaultdict
from collections.abc import Collection

from sqlalchemy import Connection, text

from quire.log.notifications import ConversationKey
from quire.log.store_base import SqlStoreBase

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


class SqlBranchHeads(SqlStoreBase):
    """The methods of the store for watching conversations."""

    async def list_branch_heads(self, keys: Collection[ConversationKey]) -> dict[ConversationKey, dict[int, int]]:
        """The head of every branch of these conversations, which may be of any tenant."""
        return await self._read(_list_branch_heads, keys)

    async def get_data_version(self) -> int | None:
        """A number that differs after a commit of another connection. None on PostgreSQL, which has no such number."""
        return await self._read_inline(_get_data_version)


def _list_branch_heads(
    connection: Connection, _tenant: str, keys: Collection[ConversationKey]
) -> dict[ConversationKey, dict[int, int]]:
    if connection.dialect.name == "postgresql":
        tenants, conversations = [key[0] for key in keys], [key[1] for key in keys]
        rows = connection.execute(_HEADS_POSTGRES, {"tenants": tenants, "conversations": conversations})
    else:
        rows = connection.execute(_HEADS_SQLITE, {"keys": json.dumps(list(keys))})
    heads: defaultdict[ConversationKey, dict[int, int]] = defaultdict(dict)
    for tenant, conversation, branch, head_seq in rows:
        heads[tenant, conversation][branch] = head_seq
    return dict(heads)


def _get_data_version(connection: Connection, _tenant: str) -> int | None:
    if connection.dialect.name == "postgresql":
        return None
    return connection.execute(text("PRAGMA data_version")).scalar_one()
