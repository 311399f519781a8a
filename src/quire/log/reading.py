"""Reads along a branch: each is a range on one index, then on the parents' as far as it must."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, cast

from sqlalchemy import Connection, Select, bindparam, literal_column, select

from quire.errors import EntryNotFound
from quire.log.database import expect_rows
from quire.log.driver import fetch
from quire.log.records import Branch, Segment, Window
from quire.log.schema import entries
from quire.model import Entry, EntryKind, Role, Span

Rows = Select[*tuple[Any, ...]]

COLUMNS = (
    entries.c.conversation,
    entries.c.branch,
    entries.c.seq,
    entries.c.kind,
    entries.c.role,
    entries.c.author,
    entries.c.at,
    entries.c.digest,
    entries.c.path,
    entries.c.tokens,
    entries.c.counter,
    entries.c.body,
    entries.c.notes,
    entries.c.purged_at,
)
"""In the order of `Entry`, so that a row is one as it comes."""

RANGE: Rows = (
    select(*COLUMNS)
    .where(
        entries.c.tenant == bindparam("tenant"),
        entries.c.conversation == bindparam("conversation"),
        entries.c.branch == bindparam("branch"),
        entries.c.seq >= bindparam("first"),
        entries.c.seq <= bindparam("last"),
    )
    .order_by(entries.c.seq)
)
NEWEST_FIRST: Rows = RANGE.order_by(None).order_by(entries.c.seq.desc())
# Written out, not bound: the partial index is used only where the planner can see the value.
CONTROL: Rows = RANGE.where(entries.c.kind != literal_column("'message'"))
_REFERRING: Rows = RANGE.where(entries.c.notes.contains('"references":[', autoescape=True))


def read_range(
    connection: Connection,
    tenant: str,
    branch: Branch,
    *,
    first: int = 1,
    last: int | None = None,
    kinds: Collection[EntryKind] | None = None,
    roles: Collection[Role] | None = None,
    limit: int | None = None,
) -> list[Entry]:
    """Entries in their order, the oldest `limit` of those that fit."""
    statement = _filtered(RANGE, kinds, roles)
    pieces = reversed(list(branch.segments(first, last)))
    return _read(connection, tenant, branch, statement, pieces, limit)


def read_tail(
    connection: Connection,
    tenant: str,
    branch: Branch,
    *,
    limit: int,
    first: int = 1,
    last: int | None = None,
    kinds: Collection[EntryKind] | None = None,
    roles: Collection[Role] | None = None,
) -> list[Entry]:
    """The newest `limit` entries that fit, oldest first."""
    statement = _filtered(NEWEST_FIRST, kinds, roles)
    found = _read(connection, tenant, branch, statement, branch.segments(first, last), limit)
    found.reverse()
    return found


def get_entry(connection: Connection, tenant: str, branch: Branch, seq: int) -> Entry:
    found = read_range(connection, tenant, branch, first=seq, last=seq)
    if not found:
        raise EntryNotFound(f"Branch {branch.number} runs from entry 1 to {branch.head_seq}; there is no #{seq}.")
    return found[0]


def read_entries(connection: Connection, tenant: str, branch: Branch, seqs: Collection[int]) -> list[Entry]:
    """These entries of a branch, in their order; numbers that it does not have are passed over."""
    found: list[Entry] = []
    for piece in reversed(list(branch.segments())):
        wanted = sorted(seq for seq in set(seqs) if piece.first <= seq <= piece.last)
        for start in range(0, len(wanted), _AT_ONCE):
            known = {"tenant": tenant, "conversation": branch.conversation, "branch": piece.branch}
            rows = connection.execute(_BY_NUMBER, {**known, "seqs": wanted[start : start + _AT_ONCE]})
            found.extend(Entry._make(row) for row in rows)
    return found


_AT_ONCE = 500
_BY_NUMBER: Rows = (
    select(*COLUMNS)
    .where(
        entries.c.tenant == bindparam("tenant"),
        entries.c.conversation == bindparam("conversation"),
        entries.c.branch == bindparam("branch"),
        entries.c.seq.in_(bindparam("seqs", expanding=True)),
    )
    .order_by(entries.c.seq)
)


def read_referring(connection: Connection, tenant: str, branch: Branch) -> list[Entry]:
    """The entries whose notes name documents."""
    return _read(connection, tenant, branch, _REFERRING, reversed(list(branch.segments())), None)


def control_entries(connection: Connection, tenant: str, branch: Branch, *, last: int) -> list[Entry]:
    """The entries up to `last` that are not messages: few, and on an index of their own."""
    return _read(connection, tenant, branch, CONTROL, reversed(list(branch.segments(1, last))), None)


def read_window(connection: Connection, tenant: str, branch: Branch, *, max_tokens: int | None = None) -> Window:
    """The active compaction stands after what it covers, so one range holds it and all that it leaves to be seen.

    With `max_tokens` a long range is read from its end, and only until that many tokens are found.
    """
    active = branch.state.active
    covers = active.covers if active is not None else None
    floor = covers.last + 1 if covers is not None else 1
    after = _read_active(connection, tenant, branch, first=floor, max_tokens=max_tokens)
    before = read_range(connection, tenant, branch, last=covers.first - 1) if covers and covers.first > 1 else []
    pinned = [get_entry(connection, tenant, branch, seq) for seq in branch.state.pins if covers and seq in covers]
    messages = _messages(before) + _messages(after)
    compaction = None
    if active is not None:
        place = active.seq - after[0].seq
        compaction = after[place] if place >= 0 else get_entry(connection, tenant, branch, active.seq)
    return Window(branch, compaction, tuple(pinned), messages, _unread(floor, after))


def _read_active(
    connection: Connection, tenant: str, branch: Branch, *, first: int, max_tokens: int | None
) -> list[Entry]:
    if max_tokens is None or branch.head_seq - first < CHUNK:
        return read_range(connection, tenant, branch, first=first)
    found: list[Entry] = []
    tokens, last = 0, branch.head_seq
    while last >= first and tokens <= max_tokens:
        chunk = read_tail(connection, tenant, branch, first=first, last=last, limit=CHUNK)
        # A message that was never counted weighs about an eighth of its characters.
        tokens += sum(len(entry.raw) // 8 if entry.tokens is None else entry.tokens for entry in chunk)
        found = chunk + found
        last = chunk[0].seq - 1
    return found


CHUNK = 512
"""A window of up to so many entries is read at once."""


def _unread(first: int, found: Sequence[Entry]) -> Span | None:
    return Span(first=first, last=found[0].seq - 1) if found and found[0].seq > first else None


def _messages(found: Sequence[Entry]) -> tuple[Entry, ...]:
    return tuple([entry for entry in found if entry.kind == "message"])


def _filtered(statement: Rows, kinds: Collection[EntryKind] | None, roles: Collection[Role] | None) -> Rows:
    if kinds is not None:
        statement = statement.where(entries.c.kind.in_(kinds))
    if roles is not None:
        statement = statement.where(entries.c.role.in_(roles))
    return statement


def _read(
    connection: Connection,
    tenant: str,
    branch: Branch,
    statement: Rows,
    pieces: Iterable[Segment],
    limit: int | None,
) -> list[Entry]:
    found: list[Entry] = []
    for piece in pieces:
        expect_rows(connection, limit or piece.last - piece.first)
        known = {
            "tenant": tenant,
            "conversation": branch.conversation,
            "branch": piece.branch,
            "first": piece.first,
            "last": piece.last,
        }
        if limit is None and statement in _FIXED:
            rows = fetch(connection, statement, known)
        else:
            wanted = statement if limit is None else statement.limit(limit - len(found))
            rows = connection.execute(wanted, known).all()
        found.extend(map(_new_entry, rows))
        if limit is not None and len(found) >= limit:
            break
    return found


_FIXED = {RANGE, CONTROL}
_new_entry: Callable[[tuple[Any, ...]], Entry] = partial(cast(Any, tuple).__new__, Entry)
