"""Reads along a branch: each is a range scan of the branch's own entries, then of its ancestors' where needed."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, Integer, Select, and_, bindparam, func, literal_column, or_, select

from quire.db.column_types import is_encrypting, measure_plaintext
from quire.db.database import check_inline_rows, fetch_all
from quire.db.schema import archives, entries
from quire.db.store_part import EntriesOffloaded
from quire.errors import EntryNotFound
from quire.log.types import Branch, MessageKey, Window
from quire.model import Entry, EntryKind, Role, Span
from quire.rows.branches import BranchRange

EntryQuery = Select[*tuple[Any, ...]]

WINDOW_BATCH_SIZE = 512
"""Entries per statement in a window with `max_tokens`. Up to this many are read at once."""

BODY_CHARS_PER_TOKEN = 8
"""Estimate for a message whose tokens are not counted. Its stored JSON is longer than its text."""

_KEY_BATCH_SIZE = 100
"""Maximum keys of messages in one statement."""

_SEQ_BATCH_SIZE = 500
"""Maximum entry numbers in one statement."""

ENTRY_COLUMNS = (
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
    entries.c.content_digest,
)
"""In the order of the fields of `Entry`, so that a row needs no conversion."""

RANGE: EntryQuery = (
    select(*ENTRY_COLUMNS)
    .where(
        entries.c.tenant == bindparam("tenant"),
        entries.c.conversation == bindparam("conversation"),
        entries.c.branch == bindparam("branch"),
        entries.c.seq >= bindparam("first"),
        entries.c.seq <= bindparam("last"),
    )
    .order_by(entries.c.seq)
)
NEWEST_FIRST: EntryQuery = RANGE.order_by(None).order_by(entries.c.seq.desc())
# A literal, not a bound parameter: the planner uses the partial index only if it sees the value.
_IS_CONTROL = entries.c.kind != literal_column("'message'")
CONTROL_ENTRIES: EntryQuery = RANGE.where(_IS_CONTROL)
# What may differ from entries that were read before: new ones, and purged ones. The last known entry is read again,
# because its digest proves that those before it are the same.
CHANGED: EntryQuery = RANGE.where(or_(entries.c.seq >= bindparam("known_last"), entries.c.purged_at.is_not(None)))
_HAS_REFERENCES = '"references":['
_REFERENCING: EntryQuery = RANGE.where(entries.c.notes.contains(_HAS_REFERENCES, autoescape=True))


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
    """Matching entries, oldest first; with `limit`, the oldest of them."""
    statement = _filter_query(RANGE, kinds, roles)
    oldest_first = reversed(list(branch.split_ranges(first, last)))
    return _read_ranges(connection, tenant, branch, statement, oldest_first, limit)


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
    """The newest `limit` matching entries, oldest first."""
    statement = _filter_query(NEWEST_FIRST, kinds, roles)
    tail = _read_ranges(connection, tenant, branch, statement, branch.split_ranges(first, last), limit)
    tail.reverse()
    return tail


def get_entry(connection: Connection, tenant: str, branch: Branch, seq: int) -> Entry:
    rows = read_range(connection, tenant, branch, first=seq, last=seq)
    if not rows:
        raise EntryNotFound(f"Branch {branch.number} has the entries 1 to {branch.head_seq}; there is no #{seq}.")
    return rows[0]


def read_entries(connection: Connection, tenant: str, branch: Branch, seqs: Collection[int]) -> list[Entry]:
    """These entries of a branch in ascending order. Unknown numbers are skipped."""
    branch.check_in_database()
    result: list[Entry] = []
    for own_range in reversed(list(branch.split_ranges())):
        in_range = sorted(seq for seq in set(seqs) if own_range.first <= seq <= own_range.last)
        for start in range(0, len(in_range), _SEQ_BATCH_SIZE):
            params = {"tenant": tenant, "conversation": branch.conversation, "branch": own_range.branch}
            cursor = connection.execute(_BY_SEQ, {**params, "seqs": in_range[start : start + _SEQ_BATCH_SIZE]})
            result.extend(map(_to_entry, fetch_all(connection, cursor, text_column=_BODY_COLUMN)))
    return result


_BY_SEQ: EntryQuery = (
    select(*ENTRY_COLUMNS)
    .where(
        entries.c.tenant == bindparam("tenant"),
        entries.c.conversation == bindparam("conversation"),
        entries.c.branch == bindparam("branch"),
        entries.c.seq.in_(bindparam("seqs", expanding=True)),
    )
    .order_by(entries.c.seq)
)


def read_own_range(
    connection: Connection, tenant: str, conversation: str, *, branch: int, first: int, last: int
) -> list[Entry]:
    """Entries of the branch's own rows, oldest first."""
    params = {"tenant": tenant, "conversation": conversation, "branch": branch, "first": first, "last": last}
    return [_to_entry(row) for row in connection.execute(RANGE, params)]


def read_messages(connection: Connection, tenant: str, keys: Sequence[MessageKey]) -> list[Entry | None]:
    """The messages with these keys, in their order, or None for one that is gone or purged."""
    found: dict[MessageKey, Entry] = {}
    for start in range(0, len(keys), _KEY_BATCH_SIZE):
        # A lookup in the primary key for each message. Each term has the tenant: with a condition on the tenant alone,
        # SQLite reads all messages of the tenant.
        is_key = or_(
            *(
                and_(
                    entries.c.tenant == tenant,
                    entries.c.conversation == each.conversation,
                    entries.c.branch == each.branch,
                    entries.c.seq == each.seq,
                )
                for each in keys[start : start + _KEY_BATCH_SIZE]
            )
        )
        query = select(*ENTRY_COLUMNS).where(entries.c.kind == "message", entries.c.purged_at.is_(None), is_key)
        for row in connection.execute(query):
            entry = Entry._make(row)
            found[MessageKey(entry.conversation, entry.branch, entry.seq)] = entry
    return [found.get(key) for key in keys]


def read_referencing_entries(connection: Connection, tenant: str, branch: Branch) -> list[Entry]:
    """Entries of the branch whose metadata references documents."""
    if is_encrypting():
        every = read_range(connection, tenant, branch)
        return [entry for entry in every if _HAS_REFERENCES in (entry.raw_metadata or "")]
    return _read_ranges(connection, tenant, branch, _REFERENCING, reversed(list(branch.split_ranges())), None)


def find_replies(connection: Connection, tenant: str, branch: Branch, text: str) -> list[Entry]:
    """Replies of the branch whose content or metadata has a text. The database compares, and returns only these, unless
    the tenant is encrypted."""
    if is_encrypting():
        replies = read_range(connection, tenant, branch, kinds=["message"], roles=["assistant"])
        return [entry for entry in replies if text in entry.raw or text in (entry.raw_metadata or "")]
    has_text = or_(entries.c.body.contains(text, autoescape=True), entries.c.notes.contains(text, autoescape=True))
    statement = _filter_query(RANGE, ["message"], ["assistant"]).where(has_text)
    return _read_ranges(connection, tenant, branch, statement, branch.split_ranges(), None)


def list_roles(connection: Connection, tenant: str, branch: Branch) -> list[tuple[int, str]]:
    """Numbers and roles of the questions and replies of the branch, without their content, oldest first."""
    rows: list[tuple[int, str]] = []
    for own_range in reversed(list(branch.split_ranges())):
        query = select(entries.c.seq, entries.c.role).where(
            entries.c.tenant == tenant,
            entries.c.conversation == branch.conversation,
            entries.c.branch == own_range.branch,
            entries.c.seq.between(own_range.first, own_range.last),
            entries.c.role.in_(("user", "assistant")),
        )
        rows.extend((seq, role) for seq, role in connection.execute(query.order_by(entries.c.seq)))
    return rows


def sum_message_tokens(connection: Connection, tenant: str, branch: Branch, *, first: int, last: int) -> int:
    """Tokens of the messages `first` to `last` of the branch, without reading them. A message without a count is
    estimated as in a window."""
    length = func.length(entries.c.body, type_=Integer)
    if is_encrypting():
        length = measure_plaintext(entries.c.body, length)
    tokens = func.coalesce(entries.c.tokens, length // BODY_CHARS_PER_TOKEN)
    total = 0
    for own_range in branch.split_ranges(first, last):
        query = select(func.coalesce(func.sum(tokens), 0)).where(
            entries.c.tenant == tenant,
            entries.c.conversation == branch.conversation,
            entries.c.branch == own_range.branch,
            entries.c.seq.between(own_range.first, own_range.last),
            entries.c.kind == "message",
        )
        total += int(connection.execute(query).scalar_one())
    return total


def read_control_entries(connection: Connection, tenant: str, branch: Branch, *, last: int) -> list[Entry]:
    """The entries up to `last` that are not messages. They are few and have a partial index."""
    return _read_ranges(connection, tenant, branch, CONTROL_ENTRIES, reversed(list(branch.split_ranges(1, last))), None)


def read_topic_indexes(
    connection: Connection, tenant: str, conversation: str, *, limit: int | None = None
) -> list[Entry]:
    """Topic indexes on any branch of a conversation, newest first, except purged ones."""
    own = (entries.c.tenant == tenant, entries.c.conversation == conversation)
    query = select(*ENTRY_COLUMNS).where(
        *own, _IS_CONTROL, entries.c.kind == "topic_index", entries.c.purged_at.is_(None)
    )
    cursor = connection.execute(query.order_by(entries.c.seq.desc(), entries.c.branch).limit(limit))
    return list(map(_to_entry, fetch_all(connection, cursor, text_column=_BODY_COLUMN)))


def read_window(
    connection: Connection,
    tenant: str,
    branch: Branch,
    *,
    max_tokens: int | None = None,
    known: Window | None = None,
) -> Window:
    """The active compaction and the messages that it does not cover.

    A compaction comes after the entries that it covers, so one range holds it and the messages after them. With
    `max_tokens`, a long range is read from its end, until it has that many tokens. Entries of a `known` window of the
    branch are not read again.
    """
    active = branch.state.active_compaction
    covers = active.covers if active is not None else None
    first_after = covers.last + 1 if covers is not None else 1
    loaded = known.loaded if known is not None else ()
    after = _read_after_compaction(connection, tenant, branch, first=first_after, max_tokens=max_tokens, known=loaded)
    before = read_range(connection, tenant, branch, last=covers.first - 1) if covers and covers.first > 1 else []
    pinned: list[Entry] = []
    if active is not None and covers is not None:
        # Covered messages that stay in the view: pinned ones, and ones that the compaction preserves.
        seqs = [seq for seq in {*branch.state.pins, *(active.preserved or ())} if seq in covers]
        pinned = read_entries(connection, tenant, branch, seqs) if seqs else []
    messages = _select_messages(before) + _select_messages(after)
    compaction = None
    if active is not None:
        index = active.seq - after[0].seq
        compaction = after[index] if index >= 0 else get_entry(connection, tenant, branch, active.seq)
    not_loaded = Span(first=first_after, last=after[0].seq - 1) if after and after[0].seq > first_after else None
    question = _read_question(connection, tenant, branch, after[0] if after else None, not_loaded)
    return Window(branch, compaction, tuple(pinned), messages, not_loaded, question, tuple(after))


def find_changed_range(known: Window, branch: Branch) -> dict[str, Any] | None:
    """Parameters of `CHANGED` for the entries of a known window, or None if they are in rows of several branches."""
    if not known.loaded or known.loaded[-1].seq > branch.head_seq:
        return None
    [own_range, *others] = branch.split_ranges(known.loaded[0].seq)
    return None if others else {**own_range._asdict(), "known_last": known.loaded[-1].seq}


def extend_window(
    known: Window, branch: Branch, changed: Sequence[tuple[Any, ...]], *, max_tokens: int | None
) -> Window | None:
    """The window of a branch, by a known one and the rows that `CHANGED` has of its entries.

    None if more must be read: the compaction or the pins have changed, an entry was purged, or the window has entries
    of another range, which may have been purged too.
    """
    first, last, state, known_state = known.loaded[0].seq, known.loaded[-1], branch.state, known.branch.state
    if (state.active_compaction, state.pins) != (known_state.active_compaction, known_state.pins):
        return None
    begins_earlier = bool(known.messages) and known.messages[0].seq < first
    if begins_earlier or known.pinned or known.not_loaded is not None or known.question is not None:
        return None
    read = list(map(_to_entry, changed))
    if not read or (read[0].seq, read[0].digest) != (last.seq, last.digest):
        return None
    new = read[1:]
    loaded = (*known.loaded, *new)
    is_long = branch.head_seq - first >= WINDOW_BATCH_SIZE
    if max_tokens is not None and is_long and _sum_loaded_tokens(loaded) > max_tokens:
        return None
    return known._replace(branch=branch, messages=known.messages + _select_messages(new), loaded=loaded)


def _read_after_compaction(
    connection: Connection,
    tenant: str,
    branch: Branch,
    *,
    first: int,
    max_tokens: int | None,
    known: Sequence[Entry],
) -> Sequence[Entry]:
    """Entries from `first` on. What precedes the active compaction is read whole: it was reduced to fit."""
    whole = _extend_known(connection, tenant, branch, first=first, known=known)
    if max_tokens is None or branch.head_seq - first < WINDOW_BATCH_SIZE:
        return whole or read_range(connection, tenant, branch, first=first)
    if whole and _sum_loaded_tokens(whole) <= max_tokens:
        return whole
    active = branch.state.active_compaction
    first_new = max(first, active.seq) if active is not None else first
    loaded: list[Entry] = []
    tokens, last = 0, branch.head_seq
    while last >= first_new and tokens <= max_tokens:
        chunk = read_tail(connection, tenant, branch, first=first_new, last=last, limit=WINDOW_BATCH_SIZE)
        tokens += _sum_loaded_tokens(chunk)
        loaded = chunk + loaded
        last = chunk[0].seq - 1
    if first <= last < first_new:
        return read_range(connection, tenant, branch, first=first, last=last) + loaded
    # Results without the call that they answer could not be sent.
    while loaded[0].role == "tool" and last >= first_new:
        earlier = read_tail(connection, tenant, branch, first=first_new, last=last, limit=WINDOW_BATCH_SIZE)
        calls = [index for index, entry in enumerate(earlier) if entry.role not in ("tool", None)]
        earlier = earlier[calls[-1] :] if calls else earlier
        loaded, last = earlier + loaded, earlier[0].seq - 1
    return loaded


def _extend_known(
    connection: Connection, tenant: str, branch: Branch, *, first: int, known: Sequence[Entry]
) -> Sequence[Entry] | None:
    """The entries from `first` on, if they begin with the `known` ones, of which only purged ones are read again.

    None if the branch has other entries now: the digest of the last known one covers all those before it.
    """
    if not known or known[0].seq != first or known[-1].seq > branch.head_seq:
        return None
    last, ranges = known[-1], reversed(list(branch.split_ranges(first)))
    changed = _read_ranges(connection, tenant, branch, CHANGED, ranges, None, known_last=last.seq)
    purged = {entry.seq: entry for entry in takewhile(lambda each: each.seq < last.seq, changed)}
    newest = changed[len(purged) :]
    if not newest or newest[0].digest != last.digest:
        return None
    if changed == [last]:
        return known
    earlier = [purged.get(entry.seq, entry) for entry in known[:-1]] if purged else known[:-1]
    return [*earlier, *newest]


def _sum_loaded_tokens(loaded: Iterable[Entry]) -> int:
    """Tokens of these entries. Estimated for a message without a count."""
    return sum([len(entry.raw) // BODY_CHARS_PER_TOKEN if entry.tokens is None else entry.tokens for entry in loaded])


def _read_question(
    connection: Connection, tenant: str, branch: Branch, first: Entry | None, not_loaded: Span | None
) -> Entry | None:
    """The question of the turn that the loaded entries begin inside of: not loaded, or covered by the compaction."""
    if first is not None and first.role == "user":
        return None
    if not_loaded is not None:
        earlier = read_tail(
            connection,
            tenant,
            branch,
            limit=1,
            first=not_loaded.first,
            last=not_loaded.last,
            kinds=["message"],
            roles=["user"],
        )
        if earlier:
            return earlier[0]
    active = branch.state.active_compaction
    return get_entry(connection, tenant, branch, active.question) if active and active.question else None


def _select_messages(loaded: Sequence[Entry]) -> tuple[Entry, ...]:
    return tuple([entry for entry in loaded if entry.kind == "message"])


def _filter_query(
    statement: EntryQuery, kinds: Collection[EntryKind] | None, roles: Collection[Role] | None
) -> EntryQuery:
    if kinds is not None:
        statement = statement.where(entries.c.kind.in_(kinds))
        if "message" not in kinds:
            statement = statement.where(_IS_CONTROL)
    if roles is not None:
        statement = statement.where(entries.c.role.in_(roles))
    return statement


def _read_ranges(
    connection: Connection,
    tenant: str,
    branch: Branch,
    statement: EntryQuery,
    ranges: Iterable[BranchRange],
    limit: int | None,
    **parameters: int,
) -> list[Entry]:
    branch.check_in_database()
    result: list[Entry] = []
    for own_range in ranges:
        check_inline_rows(connection, limit or own_range.last - own_range.first)
        params = {
            "tenant": tenant,
            "conversation": branch.conversation,
            "branch": own_range.branch,
            "first": own_range.first,
            "last": own_range.last,
            **parameters,
        }
        query = statement if limit is None else statement.limit(limit - len(result))
        rows = fetch_all(connection, connection.execute(query, params), text_column=_BODY_COLUMN)
        result.extend(map(_to_entry, rows))
        if limit is not None and len(result) >= limit:
            break
    return result


_BODY_COLUMN = ENTRY_COLUMNS.index(entries.c.body)
_to_entry: Callable[[tuple[Any, ...]], Entry] = partial(cast(Any, tuple).__new__, Entry)


_TOKEN_SUMS = (
    select(entries.c.conversation, func.sum(entries.c.tokens))
    .where(
        entries.c.tenant == bindparam("tenant"),
        entries.c.conversation.in_(bindparam("conversations", expanding=True)),
        entries.c.kind == "message",
    )
    .group_by(entries.c.conversation)
)


def sum_tokens(connection: Connection, tenant: str, conversations: Collection[str]) -> dict[str, int]:
    """Tokens of all messages of each conversation, on all branches. Messages that were not counted add none."""
    if not conversations:
        return {}
    rows = connection.execute(_TOKEN_SUMS, {"tenant": tenant, "conversations": list(conversations)})
    sums = {conversation: int(tokens or 0) for conversation, tokens in rows}
    offloaded = list_offloaded(connection, tenant, [each for each in conversations if each not in sums])
    return sums | {conversation: each.tokens for conversation, each in offloaded.items()}


def check_in_database(connection: Connection, tenant: str, conversations: Collection[str]) -> None:
    """Raises `EntriesOffloaded` if the entries of one of these conversations are in object storage."""
    for conversation in list_offloaded(connection, tenant, conversations):
        raise EntriesOffloaded(conversation)


class OffloadedConversation(NamedTuple):
    """What lists show of a conversation whose entries are in object storage."""

    conversation: str
    title: str
    tokens: int


def list_offloaded(
    connection: Connection, tenant: str, conversations: Collection[str]
) -> dict[str, OffloadedConversation]:
    """Those of these conversations whose entries are in object storage, by id."""
    if not conversations:
        return {}
    query = select(archives.c.conversation, archives.c.title, archives.c.tokens).where(
        archives.c.tenant == tenant, archives.c.conversation.in_(list(conversations)), archives.c.object.is_not(None)
    )
    return {row[0]: OffloadedConversation._make(row) for row in connection.execute(query)}
