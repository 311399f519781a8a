"""Recorded requests: the manifest of a reply, and the newest one that an agent sent, from a SQLite database."""

import json
import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple

from quire.errors import IntegrityViolation
from quire.rows.branches import (
    Lineage,
    choose_branch_used_last,
    find_fork_seq,
    may_have_waiting_edits,
    split_ranges,
)
from quire.rows.conversations import BRANCHES, CONVERSATIONS
from quire.rows.digests import check_row, compute_content_digest, format_digest_metadata
from quire.rows.manifests import StoredManifest, StoredObject

_CONVERSATION = "SELECT 1 FROM quire_conversations WHERE tenant = :tenant AND conversation = :conversation"
_NEWEST_MANIFEST = """
SELECT branch, seq, manifest FROM quire_manifests
WHERE tenant = :tenant AND conversation = :conversation AND branch = :branch AND seq BETWEEN :first AND :last
ORDER BY seq DESC LIMIT 1
"""
_ENTRY = """
SELECT kind, author, at, tokens, counter, notes, body, purged_at, content_digest FROM quire_entries
WHERE tenant = :tenant AND conversation = :conversation AND branch = :branch AND seq = :seq
"""


class StoredReply(NamedTuple):
    """A reply, as far as it is printed with its request."""

    seq: int
    turn: StoredObject | None
    references: tuple[Any, ...]


class ReplyRequest(NamedTuple):
    manifest: StoredManifest
    reply: StoredReply


class _BranchRow(NamedTuple):
    number: int
    lineage: Lineage
    head_seq: int
    state: Mapping[str, Any]
    updated_at: int

    @property
    def fork_seq(self) -> int:
        return find_fork_seq(self.lineage)


def find_request(
    connection: sqlite3.Connection, tenant: str, *, conversation: str | None, branch: int | None, reply: int | None
) -> ReplyRequest | None:
    """The request that this reply answered, or without one the newest if a client with its own list made it.

    None if only the engine knows: about the next request, about edits that wait for it, what a name that is no ID
    names, and how to say that something does not exist.
    """
    key: dict[str, object] = {"tenant": tenant, "conversation": conversation}
    if conversation is None:
        for name, *_ in connection.execute(CONVERSATIONS, {"tenant": tenant, "limit": 1, "everything": False}):
            key["conversation"] = name
    elif connection.execute(_CONVERSATION, key).fetchone() is None:
        return None
    branches: list[_BranchRow] = []
    for row in connection.execute(BRANCHES, key):
        check_row(row[:-1], row[-1], name=f"branch {row[1]} of {row[0]!r}")
        branches.append(_BranchRow(row[1], json.loads(row[4]), row[5], json.loads(row[8]), row[9]))
    if branch is not None:
        branches = [each for each in branches if each.number == branch]
    if not branches:
        return None
    chosen = branches[0] if branch is not None else choose_branch_used_last(branches)
    first, last = (1, chosen.head_seq) if reply is None else (reply, min(reply, chosen.head_seq))
    found = None
    for own_range in split_ranges(chosen.number, chosen.lineage, first=first, last=last):
        found = connection.execute(_NEWEST_MANIFEST, {**key, **own_range._asdict()}).fetchone()
        if found is not None:
            break
    if found is None:
        return None
    owner, seq, text = found
    manifest, state = StoredManifest(json.loads(text)), StoredObject(chosen.state)
    if reply is None and (manifest.forwarded is None or may_have_waiting_edits(state)):
        return None
    read = _read_reply(connection, {**key, "branch": owner, "seq": seq})
    return ReplyRequest(manifest, read) if read is not None else None


def _read_reply(connection: sqlite3.Connection, key: Mapping[str, Any]) -> StoredReply | None:
    row = connection.execute(_ENTRY, key).fetchone()
    if row is None:
        return None
    kind, author, at, tokens, counter, notes, body, purged_at, content_digest = row
    if purged_at is not None:
        return StoredReply(key["seq"], None, ())
    metadata = format_digest_metadata(kind, author, at, tokens, counter, notes)
    if compute_content_digest(metadata=metadata, body=body) != content_digest:
        raise IntegrityViolation
    fields = StoredObject(json.loads(notes) if notes else {})
    return StoredReply(key["seq"], fields.turn, fields.references or ())
