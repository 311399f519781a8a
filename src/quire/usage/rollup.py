"""Maintains the usage roll-up: counts new entries, subtracts a conversation before a purge, checks against the log.

Every append marks its branch as uncounted in the same transaction. A job folds the entries above the branch's
high-water mark into the contributions and totals, and moves the mark, all in one transaction: a job that is lost or
repeated counts nothing twice. A purge subtracts all contributions of the conversation in its own transaction, and what
is left of the conversation is counted again. For that, the contributions of each conversation are stored apart from the
tenant's totals. All tables are derived data, which `quire scan --usage --recount` checks against the log.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    text,
)

from quire.db.column_types import is_encrypting
from quire.db.dialects import upsert
from quire.db.raw_sql import yield_to_event_loop
from quire.db.schema import (
    counted_branches,
    counted_requests,
    document_pairs,
    entries,
    manifests,
    uncounted_branches,
    usage_contributions,
    usage_totals,
    usage_turns,
)
from quire.log.conversations import get_conversation, list_branches
from quire.log.imports import Position, is_unique_id, read_ledgers
from quire.log.reads import ENTRY_COLUMNS
from quire.model import Entry, Manifest
from quire.usage.contribution import (
    Contribution,
    TurnPart,
    TurnUsage,
    UsageCounts,
    UsageKey,
    identify_request,
    pair_documents,
)

BATCH_ENTRIES = 500
"""Entries that one transaction counts: purges wait for it."""
MAX_UNCOUNTED_BRANCHES = 200
"""Branches that one transaction counts."""
COUNTING_RULES = 3
"""Version of what an entry adds to the roll-up. Conversations counted by older rules are counted again, during other
work. Version 2 counts the cost of each call instead of each turn, version 3 a request that several transcripts repeat
once, and an adviser's requests by its model. The index of the migration names it too."""
MAX_OUTDATED_CONVERSATIONS = 20
"""Conversations counted by older rules that one transaction resets."""

Pairs = set[tuple[str, str]]


class RecountResult(NamedTuple):
    """What a recount found. Everything that differed from the log was corrected."""

    conversations: int
    corrected_conversations: int
    corrected_totals: int
    """Rows of the totals and of document pairs that were not the sum of the contributions."""


def count_usage(connection: Connection, tenant: str, *, max_entries: int = BATCH_ENTRIES) -> int:
    """Counts the next entries that are not in the roll-up. Returns the number of branches, 0 if nothing is left."""
    _lock_rollup(connection, tenant)
    marks = connection.execute(
        select(uncounted_branches.c.conversation, uncounted_branches.c.branch, uncounted_branches.c.last_seq)
        .where(uncounted_branches.c.tenant == tenant)
        .order_by(uncounted_branches.c.conversation, uncounted_branches.c.branch)
        .limit(MAX_UNCOUNTED_BRANCHES)
    ).all()
    remaining, done = max_entries, 0
    by_conversation: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for conversation, branch, last_seq in marks:
        by_conversation[conversation][branch] = last_seq
    for conversation, branches in by_conversation.items():
        if remaining <= 0:
            break
        remaining -= _count_conversation(connection, tenant, conversation, branches, limit=remaining)
        done += len(branches)
    if not done:
        outdated = list(connection.execute(_OUTDATED, {"tenant": tenant}).scalars())
        for conversation in outdated:
            reset_usage(connection, tenant, conversation)
        done = len(outdated)
    return done


def has_outdated(connection: Connection, tenant: str) -> bool:
    """Whether conversations were counted by older rules."""
    return connection.execute(_OUTDATED.limit(1), {"tenant": tenant}).first() is not None


_OUTDATED = (
    select(counted_branches.c.conversation)
    .where(counted_branches.c.tenant == bindparam("tenant"), counted_branches.c.rules < literal_column("3"))
    .distinct()
    .limit(MAX_OUTDATED_CONVERSATIONS)
)


def _count_conversation(
    connection: Connection, tenant: str, conversation: str, branches: Mapping[int, int], *, limit: int
) -> int:
    """Counts at most `limit` entries of these branches, each up to its last entry. Returns their number."""
    contribution = _start_contribution(connection, tenant, conversation)
    counted = _read_marks(connection, tenant, conversation)
    total = 0
    for branch, last in branches.items():
        first = counted.get(branch, 0) + 1
        rows = _read_countable(connection, tenant, conversation, branch, first, last, limit=limit - total)
        _claim_requests(connection, tenant, conversation, rows)
        _fold(connection, tenant, contribution, rows)
        is_complete = len(rows) < limit - total
        counted_to = last if is_complete else rows[-1][0].seq
        _write_mark(connection, tenant, conversation, branch, counted_to)
        # The branch stays marked as uncounted if it has entries after the high-water mark. A row that an append has
        # locked will mark later entries. Waiting for it could deadlock with an import, which marks many branches in its
        # own order.
        own = (*_own(uncounted_branches, tenant, conversation), uncounted_branches.c.branch == branch)
        done = select(uncounted_branches.c.branch).where(*own, uncounted_branches.c.last_seq <= counted_to)
        unlocked = done.with_for_update(skip_locked=True).scalar_subquery()
        connection.execute(delete(uncounted_branches).where(*own, uncounted_branches.c.branch.in_(unlocked)))
        total += len(rows)
        if not is_complete:
            break
    add_contribution(connection, tenant, conversation, contribution)
    return total


def count_conversation(connection: Connection, tenant: str, conversation: str) -> int:
    """Counts the next entries of one conversation. Returns the number of branches that still have some."""
    _lock_rollup(connection, tenant)
    outdated = select(counted_branches.c.branch).where(
        *_own(counted_branches, tenant, conversation), counted_branches.c.rules < COUNTING_RULES
    )
    if connection.execute(outdated.limit(1)).first() is not None:
        reset_usage(connection, tenant, conversation)
    pending = select(uncounted_branches.c.branch, uncounted_branches.c.last_seq).where(
        *_own(uncounted_branches, tenant, conversation)
    )
    if marks := {row.branch: row.last_seq for row in connection.execute(pending)}:
        _count_conversation(connection, tenant, conversation, marks, limit=BATCH_ENTRIES)
    return len(connection.execute(pending).all()) if marks else 0


def read_conversation(connection: Connection, tenant: str, conversation: str) -> UsageCounts:
    """What a conversation added to the roll-up."""
    counts = _read_contributions(connection, tenant, conversation)
    total = Counter[str]()
    for key, each in counts.items():
        if key.dimension == "all":
            total.update(each._asdict())
    return UsageCounts(**total)


def reset_usage(connection: Connection, tenant: str, conversation: str) -> None:
    """Subtracts everything that the conversation added, and marks its branches, so that it is counted again."""
    _lock_rollup(connection, tenant)
    if not _read_marks(connection, tenant, conversation):
        return
    own_branches = list_branches(connection, tenant, conversation)
    for branch in own_branches:
        branch.check_in_database()
    _subtract_contribution(connection, tenant, conversation)
    _release_requests(connection, tenant, conversation)
    for branch in own_branches:
        if branch.head_seq > branch.fork_seq:
            mark_uncounted(connection, tenant, [(conversation, branch.number, branch.head_seq)])


def mark_uncounted(connection: Connection, tenant: str, marks: Iterable[tuple[str, int, int]]) -> None:
    """Marks branches, given by conversation, number and last entry."""
    names = ("conversation", "branch", "last_seq")
    rows = [{"tenant": tenant, **dict(zip(names, mark, strict=True))} for mark in marks]
    if rows:
        connection.execute(upsert(connection, uncounted_branches, replace=["last_seq"]), rows)


def recount_conversation(connection: Connection, tenant: str, conversation: str) -> bool:
    """Compares the contributions of a conversation with its counted entries. Corrects them, and returns whether they
    differed."""
    _lock_rollup(connection, tenant)
    if any(branch.state.offloaded for branch in list_branches(connection, tenant, conversation)):
        # It was counted before its entries were moved.
        return False
    contribution = _start_contribution(connection, tenant, conversation)
    marks = _read_marks(connection, tenant, conversation)
    for branch, last in marks.items():
        first = 1
        while rows := _read_countable(connection, tenant, conversation, branch, first, last, limit=BATCH_ENTRIES):
            _fold(connection, tenant, contribution, rows)
            first = rows[-1][0].seq + 1
    turn_columns = [usage_turns.c[name] for name in TurnUsage._fields]
    turn_rows = connection.execute(select(*turn_columns).where(*_own(usage_turns, tenant, conversation)))
    stored = _read_contributions(connection, tenant, conversation), {TurnUsage._make(row) for row in turn_rows}
    if stored == (contribution.counts, set(contribution.turns)):
        return False
    _subtract_contribution(connection, tenant, conversation)
    for branch, last in marks.items():
        _write_mark(connection, tenant, conversation, branch, last)
    add_contribution(connection, tenant, conversation, contribution)
    return True


def recount_totals(connection: Connection, tenant: str) -> int:
    """Compares totals and document pairs with the sum of all contributions. Corrects them, and returns how many rows
    differed."""
    _lock_rollup(connection, tenant)
    key = [usage_contributions.c[name] for name in UsageKey._fields]
    sums = [func.sum(usage_contributions.c[name]) for name in UsageCounts._fields]
    query = select(*key, *sums).where(usage_contributions.c.tenant == tenant).group_by(*key)
    expected = {UsageKey._make(row[:3]): UsageCounts(*map(int, row[3:])) for row in connection.execute(query)}
    stored = _read_counts(connection, usage_totals, usage_totals.c.tenant == tenant)
    differing = sorted(key for key in expected.keys() | stored.keys() if expected.get(key) != stored.get(key))
    _delete_rows(connection, usage_totals, [{"tenant": tenant, **key._asdict()} for key in differing])
    new_rows = [{"tenant": tenant, **key._asdict(), **expected[key]._asdict()} for key in differing if key in expected]
    if new_rows:
        connection.execute(insert(usage_totals), new_rows)
    return len(differing) + _recount_pairs(connection, tenant)


def _recount_pairs(connection: Connection, tenant: str) -> int:
    uses: defaultdict[str, Counter[str]] = defaultdict(Counter)
    query = select(usage_contributions.c.conversation, usage_contributions.c.name, usage_contributions.c.uses).where(
        usage_contributions.c.tenant == tenant,
        usage_contributions.c.dimension == "document",
        usage_contributions.c.uses > 0,
    )
    for conversation, name, count in connection.execute(query):
        uses[conversation][name] += count
    expected = Counter(pair for each in uses.values() for pair in pair_documents(each))
    columns = document_pairs.c.first, document_pairs.c.second, document_pairs.c.conversations
    rows = connection.execute(select(*columns).where(document_pairs.c.tenant == tenant))
    stored = {(row[0], row[1]): row[2] for row in rows}
    differing = sorted(pair for pair in expected.keys() | stored.keys() if expected.get(pair) != stored.get(pair))
    keys = [{"tenant": tenant, "first": pair[0], "second": pair[1]} for pair in differing]
    _delete_rows(connection, document_pairs, keys)
    new_rows = [
        {**key, "conversations": expected[pair]} for key, pair in zip(keys, differing, strict=True) if expected[pair]
    ]
    if new_rows:
        connection.execute(insert(document_pairs), new_rows)
    return len(differing)


def _lock_rollup(connection: Connection, tenant: str) -> None:
    """Lets one transaction at a time change the roll-up of a tenant: a purge must subtract what a job counted before
    it. On SQLite every write transaction is alone anyway."""
    if connection.dialect.name == "postgresql":
        lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
        connection.execute(lock, {"name": f"quire usage {tenant}"})


def _start_contribution(connection: Connection, tenant: str, conversation: str) -> Contribution:
    origin = get_conversation(connection, tenant, conversation).origin
    return Contribution(
        project=origin.project if origin is not None else None, source=origin.client if origin is not None else None
    )


def _fold(
    connection: Connection, tenant: str, contribution: Contribution, rows: Sequence[tuple[Entry, str | None]]
) -> None:
    """Adds entries of one branch, in order."""
    if not rows:
        return
    first, last = rows[0][0], rows[-1][0]
    questions = _read_questions(connection, tenant, first, last)
    table = counted_requests.c
    of_branch = *_own(counted_requests, tenant, first.conversation), table.branch == first.branch
    copies = select(table.seq).where(*of_branch, table.seq.between(first.seq, last.seq), table.is_counted == 0)
    copied = set(connection.execute(copies).scalars())
    for entry, manifest in rows:
        question = questions[bisect_right(questions, entry.seq) - 1]
        contribution.add(
            entry,
            Manifest.parse(manifest) if manifest is not None else None,
            question=question,
            is_copy=entry.seq in copied,
        )
        if manifest is not None:
            # A long manifest takes milliseconds to parse.
            yield_to_event_loop(connection)


def _claim_requests(
    connection: Connection, tenant: str, conversation: str, rows: Sequence[tuple[Entry, str | None]]
) -> None:
    """Records which of these replies are counted. A conversation whose import was counted before the gateway's record
    of the same reply is counted again."""
    table = counted_requests.c
    items: dict[Position, tuple[str, bytes]] = {}
    if any(manifest is None for _, manifest in rows):
        ledger = read_ledgers(connection, tenant, [conversation]).get(conversation, {})
        items = {position: item for item, position in ledger.items() if is_unique_id(item[0])}
    named: dict[Position, tuple[bytes, int]] = {}
    for entry, manifest in rows:
        position, is_recorded = (entry.branch, entry.seq), manifest is not None
        request = identify_request(entry, None if is_recorded else items.get(position))
        if request is not None:
            named[position] = (request, int(is_recorded))
    if not named:
        return
    known = select(table.request, table.conversation, table.branch, table.seq, table.is_recorded).where(
        table.tenant == tenant,
        table.request.in_({request for request, _ in named.values()}),
        table.is_counted == 1,
    )
    counted = {row[0]: ((row[1], row[2], row[3]), row[4]) for row in connection.execute(known)}
    claims: list[dict[str, Any]] = []
    displaced: set[str] = set()
    for (branch, seq), (request, is_recorded) in named.items():
        place = (conversation, branch, seq)
        holder, is_holder_recorded = counted.get(request, (place, 1))
        # Recorded replies are requests of their own, whatever ids an upstream gives them.
        is_counted = holder == place or bool(is_recorded)
        if is_recorded and not is_holder_recorded and holder[0] != conversation:
            displaced.add(holder[0])
        if is_counted:
            counted[request] = (place, is_recorded)
        key = {"tenant": tenant, "request": request, "conversation": conversation, "branch": branch, "seq": seq}
        claims.append({**key, "is_counted": int(is_counted), "is_recorded": is_recorded})
    for name in sorted(displaced):
        reset_usage(connection, tenant, name)
    connection.execute(upsert(connection, counted_requests, replace=["is_counted", "is_recorded"]), claims)


def _release_requests(connection: Connection, tenant: str, conversation: str) -> None:
    """Forgets the requests of a conversation. Others that repeat one which was counted here are counted again."""
    own, table = _own(counted_requests, tenant, conversation), counted_requests.c
    counted = select(table.request).where(*own, table.is_counted == 1)
    others = (
        select(table.conversation)
        .distinct()
        .where(table.tenant == tenant, table.request.in_(counted), table.conversation != conversation)
    )
    names = sorted(connection.execute(others).scalars())
    connection.execute(delete(counted_requests).where(*own))
    for name in names:
        reset_usage(connection, tenant, name)


def _read_questions(connection: Connection, tenant: str, first: Entry, last: Entry) -> list[int]:
    """Numbers of the user's messages between two entries of a branch, after the newest one before them. 0 if that is
    not in this branch."""
    own = (*_own(entries, tenant, first.conversation), entries.c.branch == first.branch, entries.c.role == "user")
    before = select(func.max(entries.c.seq)).where(*own, entries.c.seq <= first.seq)
    between = select(entries.c.seq).where(*own, entries.c.seq > first.seq, entries.c.seq <= last.seq)
    earlier = connection.execute(before).scalar() or 0
    return [earlier, *connection.execute(between.order_by(entries.c.seq)).scalars()]


def _read_countable(
    connection: Connection, tenant: str, conversation: str, branch: int, first: int, last: int, *, limit: int
) -> list[tuple[Entry, str | None]]:
    """The branch's own entries that may add to the roll-up, each with its manifest."""
    params = {"tenant": tenant, "conversation": conversation, "branch": branch, "first": first, "last": last}
    countable = _ENCRYPTED_COUNTABLE if is_encrypting() else _COUNTABLE
    rows = connection.execute(countable.limit(limit), params)
    return [(Entry._make(row[:-1]), row[-1]) for row in rows]


_BILLED_KINDS = ("compaction", "topic_index")
"""Kinds of entries, other than replies, for which a model may have been called."""
_WITH_MANIFEST = (
    select(*ENTRY_COLUMNS, manifests.c.manifest)
    .outerjoin(
        manifests,
        and_(
            manifests.c.tenant == entries.c.tenant,
            manifests.c.conversation == entries.c.conversation,
            manifests.c.branch == entries.c.branch,
            manifests.c.seq == entries.c.seq,
        ),
    )
    .where(
        entries.c.tenant == bindparam("tenant"),
        entries.c.conversation == bindparam("conversation"),
        entries.c.branch == bindparam("branch"),
        entries.c.seq.between(bindparam("first"), bindparam("last")),
    )
    .order_by(entries.c.seq)
)
_COUNTABLE = _WITH_MANIFEST.where(
    or_(entries.c.role == "assistant", entries.c.kind.in_(_BILLED_KINDS), entries.c.notes.contains('"references":'))
)
_ENCRYPTED_COUNTABLE = _WITH_MANIFEST.where(
    or_(entries.c.role == "assistant", entries.c.kind.in_(_BILLED_KINDS), entries.c.notes.is_not(None))
)
"""The database cannot search in encrypted metadata. An entry without references adds nothing."""


def _read_marks(connection: Connection, tenant: str, conversation: str) -> dict[int, int]:
    query = select(counted_branches.c.branch, counted_branches.c.last_seq).where(
        *_own(counted_branches, tenant, conversation)
    )
    return {row.branch: row.last_seq for row in connection.execute(query)}


def _write_mark(connection: Connection, tenant: str, conversation: str, branch: int, last_seq: int) -> None:
    row = {
        "tenant": tenant, "conversation": conversation, "branch": branch, "last_seq": last_seq, "rules": COUNTING_RULES
    }  # fmt: skip
    connection.execute(upsert(connection, counted_branches, replace=["last_seq"]), row)


def add_contribution(connection: Connection, tenant: str, conversation: str, contribution: Contribution) -> None:
    counts, own = contribution.counts, {"tenant": tenant, "conversation": conversation}
    links_documents = any(key.dimension == "document" and each.uses for key, each in counts.items())
    pairs: Pairs = _read_pairs(connection, tenant, conversation) if links_documents else set()
    _increment(connection, usage_contributions, own, counts)
    _increment(connection, usage_totals, {"tenant": tenant}, counts)
    _add_turns(connection, own, contribution)
    if links_documents:
        _replace_pairs(connection, tenant, pairs, _read_pairs(connection, tenant, conversation))


def _add_turns(connection: Connection, own: Mapping[str, str], contribution: Contribution) -> None:
    """Inserts turns. The first of a branch may continue one that an earlier count began, and replaces it."""
    table, continued = usage_turns.c, set[int]()
    rows: list[dict[str, Any]] = []
    for (branch, question), part in contribution.turn_parts.items():
        if branch not in continued:
            continued.add(branch)
            earlier = delete(usage_turns).where(
                *_own(usage_turns, own["tenant"], own["conversation"]), table.branch == branch, table.seq > question
            )
            found = connection.execute(earlier.returning(*(table[name] for name in TurnUsage._fields))).all()
            for row in found:
                part = TurnPart(TurnUsage._make(row), has_reply=True).merge(part)
        if part.usage.cost_nanos or part.usage.tokens:
            rows.append({**own, **part.usage._asdict()})
    if rows:
        connection.execute(insert(usage_turns), rows)


def _subtract_contribution(connection: Connection, tenant: str, conversation: str) -> None:
    pairs = _read_pairs(connection, tenant, conversation)
    counts = _read_contributions(connection, tenant, conversation)
    negative = {key: UsageCounts(*(-count for count in each)) for key, each in counts.items()}
    _increment(connection, usage_totals, {"tenant": tenant}, negative)
    is_empty = [usage_totals.c[name] == 0 for name in UsageCounts._fields]
    _delete_rows(connection, usage_totals, [{"tenant": tenant, **key._asdict()} for key in counts], *is_empty)
    for table in (usage_contributions, usage_turns, counted_branches):
        connection.execute(delete(table).where(*_own(table, tenant, conversation)))
    _replace_pairs(connection, tenant, pairs, set())


def _increment(
    connection: Connection, table: Table, own: Mapping[str, str], counts: Mapping[UsageKey, UsageCounts]
) -> None:
    if counts:
        rows = [{**own, **key._asdict(), **each._asdict()} for key, each in counts.items()]
        connection.execute(upsert(connection, table, increment=UsageCounts._fields), rows)


def _read_contributions(connection: Connection, tenant: str, conversation: str) -> dict[UsageKey, UsageCounts]:
    return _read_counts(connection, usage_contributions, *_own(usage_contributions, tenant, conversation))


def _read_counts(connection: Connection, table: Table, *where: ColumnElement[bool]) -> dict[UsageKey, UsageCounts]:
    columns = [table.c[name] for name in (*UsageKey._fields, *UsageCounts._fields)]
    rows = connection.execute(select(*columns).where(*where))
    return {UsageKey._make(row[:3]): UsageCounts(*row[3:]) for row in rows}


def _read_pairs(connection: Connection, tenant: str, conversation: str) -> Pairs:
    uses = func.sum(usage_contributions.c.uses)
    query = (
        select(usage_contributions.c.name, uses)
        .where(*_own(usage_contributions, tenant, conversation), usage_contributions.c.dimension == "document")
        .group_by(usage_contributions.c.name)
        .having(uses > 0)
    )
    return set(pair_documents({name: int(count) for name, count in connection.execute(query)}))


def _replace_pairs(connection: Connection, tenant: str, before: Pairs, after: Pairs) -> None:
    changes = [(pair, 1) for pair in sorted(after - before)] + [(pair, -1) for pair in sorted(before - after)]
    rows = [
        {"tenant": tenant, "first": first, "second": second, "conversations": count}
        for (first, second), count in changes
    ]
    if rows:
        connection.execute(upsert(connection, document_pairs, increment=["conversations"]), rows)
    removed = [{"tenant": tenant, "first": first, "second": second} for first, second in before - after]
    _delete_rows(connection, document_pairs, removed, document_pairs.c.conversations <= 0)


def _own(table: Table, tenant: str, conversation: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return table.c.tenant == tenant, table.c.conversation == conversation


def _delete_rows(
    connection: Connection, table: Table, keys: Sequence[Mapping[str, Any]], *where: ColumnElement[bool]
) -> None:
    if keys:
        by_key = [table.c[name] == bindparam(f"of_{name}") for name in keys[0]]
        params = [{f"of_{name}": value for name, value in key.items()} for key in keys]
        connection.execute(delete(table).where(*by_key, *where), params)
