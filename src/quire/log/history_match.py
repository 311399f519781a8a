"""History matching: finds the branch that stores the longest prefix of a client's messages, by their paths.

The newest paths are probed first: a client usually adds one or two messages to its last list, and otherwise every
turn would send a long list to the database.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, select

from quire.db import dialects
from quire.db.column_types import is_encrypting, open_value, seal_value
from quire.db.raw_sql import execute_sql
from quire.db.schema import branches, manifests
from quire.db.schema import conversations as conversations_table
from quire.errors import ConversationNotFound
from quire.log import conversations
from quire.log.row_digests import ROW_DIGEST
from quire.log.types import BranchMatch, ConversationOrigin

FIRST_PROBE_PATHS = 16
"""Number of the newest paths in the first query."""
MAX_SESSION_CONVERSATIONS = 200
"""Maximum number of a session's conversations that are preferred, the most recently updated ones."""


class _Scope(NamedTuple):
    """Where to search: in one conversation, or in any, first in the conversations of a session."""

    tenant: str
    conversation: str | None
    session: str | None


class _Hit(NamedTuple):
    match: BranchMatch
    is_preferred: bool
    """Whether no other conversation can have a better match. With a session, only its conversations are preferred."""


def match_history(
    connection: Connection,
    tenant: str,
    paths: Sequence[bytes],
    *,
    conversation: str | None = None,
    session: str | None = None,
) -> BranchMatch | None:
    """The branch that stores the longest prefix of messages with these paths, in one conversation or in any.

    If the given conversation stores none of them, the match is the head of its latest branch. If it does not exist,
    there is no match. With `session`, any prefix in a conversation of that session is preferred to a longer one
    elsewhere.
    """
    preferred_session = ConversationOrigin(session=session).session if conversation is None else None
    scope = _Scope(tenant, conversation, preferred_session)
    first_newest = max(0, len(paths) - FIRST_PROBE_PATHS)
    elsewhere: BranchMatch | None = None
    find_hit = _find_hit_postgres if connection.dialect.name == "postgresql" else _find_hit_sqlite
    for start, end in ((first_newest, len(paths)), (0, first_newest)):
        if start < end and (hit := find_hit(connection, scope, paths[start:end])) is not None:
            # Its other paths are not in the database: the store restores them, and the match is repeated.
            hit.match.branch.check_in_database()
            match = hit.match._replace(length=hit.match.length + start)
            if hit.is_preferred:
                return match
            elsewhere = elsewhere or match
    if conversation is None:
        return elsewhere
    try:
        branches = conversations.list_branches(connection, tenant, conversation)
    except ConversationNotFound:
        return None
    latest = max(branches, key=lambda each: (each.updated_at, each.number))
    latest.check_in_database()
    return BranchMatch(0, latest, latest.head_seq, None)


def _find_hit_sqlite(connection: Connection, scope: _Scope, paths: Sequence[bytes]) -> _Hit | None:
    tenant, conversation, session = scope
    found = None
    if session is not None:
        records = conversations.list_session(connection, tenant, session, limit=MAX_SESSION_CONVERSATIONS)
        among = [each.id for each in records]
        found = dialects.find_longest_path_sqlite(connection, paths, tenant=tenant, among=among) if among else None
    is_preferred = session is None or found is not None
    found = found or dialects.find_longest_path_sqlite(connection, paths, tenant=tenant, conversation=conversation)
    if found is None:
        return None
    index, matched_conversation, number, seq = found
    branch = conversations.get_branch(connection, tenant, matched_conversation, number)
    params = {"tenant": tenant, "conversation": matched_conversation, "branch": number, "seq": seq}
    manifest = connection.execute(_MANIFEST, params).scalar()
    return _Hit(BranchMatch(index + 1, branch, seq, manifest), is_preferred)


def _find_hit_postgres(connection: Connection, scope: _Scope, paths: Sequence[bytes]) -> _Hit | None:
    """Reads path, branch and manifest in one statement, because each is a round trip on PostgreSQL."""
    if scope.conversation is not None:
        statement = _MATCH_ONE_CONVERSATION
    else:
        statement = _MATCH_ANY_CONVERSATION if scope.session is None else _MATCH_SESSION_FIRST
    from sqlalchemy.util import await_only

    session = seal_value(conversations_table.c.session, scope.session)
    cursor = execute_sql(connection, statement, {**scope._asdict(), "session": session, "paths": list(paths)})
    row: Any = await_only(cursor.fetchone())
    if row is None:
        return None
    is_preferred, length, seq, manifest, *branch = row
    if is_encrypting():
        manifest = open_value(manifests.c.manifest, manifest)
        columns = [branches.c[name] for name in (*conversations.BRANCH_FIELDS, ROW_DIGEST)]
        branch = [open_value(column, value) for column, value in zip(columns, branch, strict=True)]
    return _Hit(BranchMatch(length, conversations.parse_branch_row(tuple(branch)), seq, manifest), is_preferred)


_HIT_SQL = """
    SELECT {is_preferred} AS is_preferred, list.ordinal, stored.conversation, stored.branch, stored.seq
    FROM (
        SELECT path, ordinal FROM unnest(%(paths)s::bytea[]) WITH ORDINALITY AS each (path, ordinal)
        ORDER BY ordinal DESC
    ) AS list
    CROSS JOIN LATERAL (
        SELECT p.conversation, p.branch, p.seq FROM quire_paths AS p
        WHERE p.tenant = %(tenant)s AND p.path = list.path{condition}
        ORDER BY p.conversation DESC, p.branch DESC LIMIT 1
    ) AS stored
    ORDER BY list.ordinal DESC LIMIT 1
"""
_READ_HIT_SQL = """
    SELECT hit.is_preferred, hit.ordinal, hit.seq, m.manifest, b.conversation, b.branch, b.name, b.created_at,
        b.lineage, b.head_seq, b.head_digest, b.head_path, b.state, b.updated_at, b.row_digest
    FROM hit
    JOIN quire_branches AS b
        ON b.tenant = %(tenant)s AND b.conversation = hit.conversation AND b.branch = hit.branch
    LEFT JOIN quire_manifests AS m
        ON m.tenant = %(tenant)s AND m.conversation = hit.conversation AND m.branch = hit.branch AND m.seq = hit.seq
"""
_ANY_HIT_SQL = _HIT_SQL.format(is_preferred="true", condition="")
_MATCH_ANY_CONVERSATION = f"WITH hit AS MATERIALIZED ({_ANY_HIT_SQL}) {_READ_HIT_SQL}"
_ONE_HIT_SQL = _HIT_SQL.format(is_preferred="true", condition=" AND p.conversation = %(conversation)s")
_MATCH_ONE_CONVERSATION = f"WITH hit AS MATERIALIZED ({_ONE_HIT_SQL}) {_READ_HIT_SQL}"
# The array is a condition of the index: a join could scan every conversation that begins with the same message.
_SESSION_HIT_SQL = _HIT_SQL.format(
    is_preferred="true", condition=" AND p.conversation = ANY (ARRAY(SELECT conversation FROM session_conversations))"
)
_OTHER_HIT_SQL = _HIT_SQL.format(is_preferred="false", condition=" AND NOT EXISTS (SELECT 1 FROM session_hit)")
_MATCH_SESSION_FIRST = f"""
    WITH session_conversations AS MATERIALIZED (
        SELECT conversation FROM quire_conversations
        WHERE tenant = %(tenant)s AND session = %(session)s AND (purged_at IS NULL OR purged_at < updated_at)
        ORDER BY updated_at DESC, conversation DESC LIMIT {MAX_SESSION_CONVERSATIONS}
    ),
    session_hit AS MATERIALIZED ({_SESSION_HIT_SQL}),
    other_hit AS MATERIALIZED ({_OTHER_HIT_SQL}),
    hit AS (SELECT * FROM session_hit UNION ALL SELECT * FROM other_hit)
    {_READ_HIT_SQL}
"""  # noqa: S608 (constants)


_MANIFEST = select(manifests.c.manifest).where(
    manifests.c.tenant == bindparam("tenant"),
    manifests.c.conversation == bindparam("conversation"),
    manifests.c.branch == bindparam("branch"),
    manifests.c.seq == bindparam("seq"),
)
