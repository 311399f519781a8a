"""Where a client's list of messages goes on: one look-up by path, and what the next turn needs to know of the place.

The newest paths are tried first and alone: a client adds a message or two to what it sent before, and a long list would
otherwise travel to the database with every turn.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select

from quire.errors import ConversationNotFound
from quire.log import branches, dialects
from quire.log.driver import cursor_of, fetch
from quire.log.records import Branch, Recognised
from quire.log.schema import manifests

AT_ONCE = 16
"""So many of the newest paths are tried before all."""


def recognise(
    connection: Connection, tenant: str, told: Sequence[bytes], conversation: str | None
) -> Recognised | None:
    """The place of the longest stored beginning of a list with these paths, in one conversation or in any.

    Of a named conversation that has none of them, the branch that was used last, at its head; None if there is none.
    """
    later = max(0, len(told) - AT_ONCE)
    for start, end in ((later, len(told)), (0, later)):
        if start < end:
            found = _found(connection, tenant, told[start:end], conversation)
            if found is not None:
                return found._replace(length=found.length + start)
    return None if conversation is None else _in_use(connection, tenant, conversation)


def _found(connection: Connection, tenant: str, told: Sequence[bytes], conversation: str | None) -> Recognised | None:
    if connection.dialect.name == "postgresql":
        return _found_at_once(connection, tenant, told, conversation)
    found = dialects.find_longest(connection, told, tenant=tenant, conversation=conversation)
    if found is None:
        return None
    place, where, number, seq = found
    branch = branches.get_branch(connection, tenant, where, number)
    known = {"tenant": tenant, "conversation": where, "branch": number, "seq": seq}
    filed = fetch(connection, _MANIFEST, known)
    return Recognised(place + 1, branch, seq, filed[0][0] if filed else None)


def _found_at_once(
    connection: Connection, tenant: str, told: Sequence[bytes], conversation: str | None
) -> Recognised | None:
    """On PostgreSQL a statement is a round trip, so there is one for all three questions."""
    known = {"told": list(told), "tenant": tenant, "conversation": conversation}
    with cursor_of(connection) as cursor:
        cursor.execute(_ANYWHERE if conversation is None else _HERE, known)
        row: Any = cursor.fetchone()
    if row is None:
        return None
    length, seq, manifest, *branch = row
    return Recognised(length, branches.read_row(branch), seq, manifest)


_ONE = """
    WITH given AS MATERIALIZED (
        SELECT list.place, found.conversation, found.branch, found.seq
        FROM (
            SELECT path, place FROM unnest(%(told)s::bytea[]) WITH ORDINALITY AS each (path, place) ORDER BY place DESC
        ) AS list
        CROSS JOIN LATERAL (
            SELECT stored.conversation, stored.branch, stored.seq FROM quire_paths AS stored
            WHERE stored.tenant = %(tenant)s AND stored.path = list.path{here}
            ORDER BY stored.conversation DESC, stored.branch DESC LIMIT 1
        ) AS found
        ORDER BY list.place DESC LIMIT 1
    )
    SELECT given.place, given.seq, filed.manifest, line.conversation, line.branch, line.name, line.created_at,
        line.lineage, line.head_seq, line.head_digest, line.head_path, line.state, line.used_at
    FROM given
    JOIN quire_branches AS line
        ON line.tenant = %(tenant)s AND line.conversation = given.conversation AND line.branch = given.branch
    LEFT JOIN quire_manifests AS filed
        ON filed.tenant = %(tenant)s AND filed.conversation = given.conversation AND filed.branch = given.branch
        AND filed.seq = given.seq
"""
_ANYWHERE = _ONE.format(here="")
_HERE = _ONE.format(here=" AND stored.conversation = %(conversation)s")


def _in_use(connection: Connection, tenant: str, conversation: str) -> Recognised | None:
    try:
        known = branches.list_branches(connection, tenant, conversation)
    except ConversationNotFound:
        return None
    branch: Branch = max(known, key=lambda each: (each.used_at, each.number))
    return Recognised(0, branch, branch.head_seq, None)


_MANIFEST = select(manifests.c.manifest).where(
    manifests.c.tenant == bindparam("tenant"),
    manifests.c.conversation == bindparam("conversation"),
    manifests.c.branch == bindparam("branch"),
    manifests.c.seq == bindparam("seq"),
)
