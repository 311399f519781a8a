"""History matching: finds the branch that stores the longest prefix of a client's messages, by their paths.

The newest paths are probed first: a client usually adds one or two messages to its last list, and otherwise every
turn would send a long list to the database.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select

from quire.errors import ConversationNotFound
from quire.log import conversations, dialects
from quire.log.raw_sql import fetch, open_cursor
from quire.log.schema import manifests
from quire.log.types import Branch, BranchMatch

FIRST_PROBE_PATHS = 16
"""Number of the newest paths in the first query."""


def match_history(
    connection: Connection, tenant: str, paths: Sequence[bytes], conversation: str | None
) -> BranchMatch | None:
    """The branch that stores the longest prefix of a list with these paths, in one conversation or in any.

    If a given conversation has none of them, its latest branch, at its head; None if the conversation does not exist.
    """
    first_newest = max(0, len(paths) - FIRST_PROBE_PATHS)
    for start, end in ((first_newest, len(paths)), (0, first_newest)):
        if start < end:
            match = _find_match(connection, tenant, paths[start:end], conversation)
            if match is not None:
                return match._replace(length=match.length + start)
    return None if conversation is None else _match_latest_branch(connection, tenant, conversation)


def _find_match(
    connection: Connection, tenant: str, paths: Sequence[bytes], conversation: str | None
) -> BranchMatch | None:
    if connection.dialect.name == "postgresql":
        return _find_match_postgres(connection, tenant, paths, conversation)
    match = dialects.find_longest_path(connection, paths, tenant=tenant, conversation=conversation)
    if match is None:
        return None
    index, matched_conversation, number, seq = match
    branch = conversations.get_branch(connection, tenant, matched_conversation, number)
    params = {"tenant": tenant, "conversation": matched_conversation, "branch": number, "seq": seq}
    manifest = fetch(connection, _MANIFEST, params)
    return BranchMatch(index + 1, branch, seq, manifest[0][0] if manifest else None)


def _find_match_postgres(
    connection: Connection, tenant: str, paths: Sequence[bytes], conversation: str | None
) -> BranchMatch | None:
    """Reads path, branch and manifest in one statement, because each is a round trip on PostgreSQL."""
    params = {"paths": list(paths), "tenant": tenant, "conversation": conversation}
    with open_cursor(connection) as cursor:
        cursor.execute(_MATCH_ANY_CONVERSATION if conversation is None else _MATCH_ONE_CONVERSATION, params)
        row: Any = cursor.fetchone()
    if row is None:
        return None
    length, seq, manifest, *branch = row
    return BranchMatch(length, conversations.parse_branch_row(branch), seq, manifest)


_MATCH_SQL = """
    WITH hit AS MATERIALIZED (
        SELECT list.ordinal, stored.conversation, stored.branch, stored.seq
        FROM (
            SELECT path, ordinal FROM unnest(%(paths)s::bytea[]) WITH ORDINALITY AS each (path, ordinal)
            ORDER BY ordinal DESC
        ) AS list
        CROSS JOIN LATERAL (
            SELECT p.conversation, p.branch, p.seq FROM quire_paths AS p
            WHERE p.tenant = %(tenant)s AND p.path = list.path{conversation_filter}
            ORDER BY p.conversation DESC, p.branch DESC LIMIT 1
        ) AS stored
        ORDER BY list.ordinal DESC LIMIT 1
    )
    SELECT hit.ordinal, hit.seq, m.manifest, b.conversation, b.branch, b.name, b.created_at,
        b.lineage, b.head_seq, b.head_digest, b.head_path, b.state, b.updated_at, b.row_digest
    FROM hit
    JOIN quire_branches AS b
        ON b.tenant = %(tenant)s AND b.conversation = hit.conversation AND b.branch = hit.branch
    LEFT JOIN quire_manifests AS m
        ON m.tenant = %(tenant)s AND m.conversation = hit.conversation AND m.branch = hit.branch AND m.seq = hit.seq
"""
_MATCH_ANY_CONVERSATION = _MATCH_SQL.format(conversation_filter="")
_MATCH_ONE_CONVERSATION = _MATCH_SQL.format(conversation_filter=" AND p.conversation = %(conversation)s")


def _match_latest_branch(connection: Connection, tenant: str, conversation: str) -> BranchMatch | None:
    try:
        branches = conversations.list_branches(connection, tenant, conversation)
    except ConversationNotFound:
        return None
    branch: Branch = max(branches, key=lambda each: (each.updated_at, each.number))
    return BranchMatch(0, branch, branch.head_seq, None)


_MANIFEST = select(manifests.c.manifest).where(
    manifests.c.tenant == bindparam("tenant"),
    manifests.c.conversation == bindparam("conversation"),
    manifests.c.branch == bindparam("branch"),
    manifests.c.seq == bindparam("seq"),
)
