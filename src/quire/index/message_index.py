"""The message index of a tenant: segments of each branch, and rows of the inverted index over all of them.

Every append marks its branch as unindexed in the same transaction. An indexer reads what is missing as tasks, extends
the segments, and stores them together with their postings. A writer locks the tenant's scope of messages, so segments,
postings and revisions agree at every commit, and revisions commit in their order. A purge locks it too: what was read
before a purge is refused after it.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, cast

from sqlalchemy import Connection, TextualSelect, and_, bindparam, delete, exists, func, insert, or_, select, text
from sqlalchemy import update as update_rows

from quire.db.column_types import seal_value
from quire.db.dialects import insert_or_ignore, upsert
from quire.db.raw_sql import yield_to_event_loop
from quire.db.schema import branches, entries, message_segments, terms, unindexed_branches
from quire.db.store_part import StorePart, read, read_bulk, read_inline, write_bulk
from quire.errors import InvalidEntry, StaleSegment, UnreadableSegment
from quire.index.inverted_index import (
    SearchScope,
    append_index_rows,
    get_scope,
    lock_scope,
    remove_from_index_rows,
    remove_numbers,
    split_chunks,
    update_scope,
)
from quire.index.types import (
    IndexedBranch,
    IndexingBatch,
    MessageIndexRead,
    SegmentColumns,
    SegmentData,
    SegmentRef,
    SegmentTask,
    SegmentUpdate,
    messages_scope,
)
from quire.log import conversations, reads
from quire.log.conversations import with_branch
from quire.log.types import MAIN_BRANCH, Branch, ConversationRecord, MessageKey
from quire.model import Entry, Topic, TopicIndex
from quire.search.postings import (
    ENTRIES_PER_SEGMENT,
    FORMAT_VERSION,
    MAX_MESSAGE_TOPICS,
    NUMBERS_PER_BLOCK,
    TOPIC_PASSAGE,
    IndexRowKey,
    build_postings,
    remove_postings,
)
from quire.view.recalled_messages import to_searchable_text

MAX_UNINDEXED_BRANCHES = 500
"""Branches of one indexing batch."""
MAX_READ_INDEXES = 256
"""Topic indexes of one conversation that are read to name the topics of messages."""
MAX_CHANGES = 256
"""Changed segments of one read, at about 40 kB each."""

_REF_COLUMNS = tuple(message_segments.c[name] for name in SegmentRef._fields)
_OWN_SEGMENTS = select(*_REF_COLUMNS).where(
    message_segments.c.tenant == bindparam("tenant"),
    message_segments.c.conversation == bindparam("conversation"),
    message_segments.c.branch == bindparam("branch"),
)
_SEGMENT_RANGE = _OWN_SEGMENTS.where(
    message_segments.c.segment.between(bindparam("first"), bindparam("last"))
).order_by(message_segments.c.segment)
_SEGMENT = _OWN_SEGMENTS.where(message_segments.c.segment == bindparam("segment"))
_PURGED_COUNT = select(func.count()).where(
    entries.c.tenant == bindparam("tenant"),
    entries.c.conversation == bindparam("conversation"),
    entries.c.branch == bindparam("branch"),
    entries.c.seq.between(bindparam("first"), bindparam("last")),
    entries.c.purged_at.is_not(None),
)
_MUTABLE_COLUMNS = ("revision", "last_seq", "erasures", "format", "embedder", "columns", "terms")
_UNMARK = delete(unindexed_branches).where(
    unindexed_branches.c.tenant == bindparam("of_tenant"),
    unindexed_branches.c.conversation == bindparam("of_conversation"),
    unindexed_branches.c.branch == bindparam("of_branch"),
    unindexed_branches.c.last_seq <= bindparam("of_last_seq"),
)


def list_segments(connection: Connection, tenant: str, branch: Branch) -> list[SegmentRef]:
    """The segments along a branch, oldest first. The last one of a parent may extend beyond the fork."""
    params = _list_segment_ranges(tenant, branch)
    return [SegmentRef(*row) for each in params for row in connection.execute(_SEGMENT_RANGE, each)]


def _list_segment_ranges(tenant: str, branch: Branch) -> list[dict[str, Any]]:
    """Parameters of `_SEGMENT_RANGE` along a branch, oldest first."""
    return [
        {
            "tenant": tenant,
            "conversation": branch.conversation,
            "branch": own_range.branch,
            "first": (own_range.first - 1) // ENTRIES_PER_SEGMENT,
            "last": (own_range.last - 1) // ENTRIES_PER_SEGMENT,
        }
        for own_range in reversed(list(branch.split_ranges()))
    ]


def read_segments(
    connection: Connection, tenant: str, conversation: str, refs: Sequence[SegmentRef]
) -> list[SegmentData]:
    """The bytes of these segments, in order. Raises `StaleSegment` if one was rewritten since it was listed."""
    data_by_revision: dict[int, SegmentData] = {}
    for branch, first, last in _group_consecutive(refs):
        params = {"tenant": tenant, "conversation": conversation, "branch": branch, "first": first, "last": last}
        for revision, columns, term_data in connection.execute(SEGMENT_DATA, params):
            data_by_revision[revision] = SegmentData(columns, term_data)
    if missing := [ref for ref in refs if ref.revision not in data_by_revision]:
        conversations.get_conversation(connection, tenant, conversation)
        raise StaleSegment(
            f"Segment {missing[0].segment} of branch {missing[0].branch} of {conversation!r} was rewritten since it "
            "was listed; list the segments again."
        )
    return [data_by_revision[ref.revision] for ref in refs]


SEGMENT_DATA = text("""
    SELECT revision, columns, terms FROM quire_message_segments
    WHERE tenant = :tenant AND conversation = :conversation AND branch = :branch AND segment BETWEEN :first AND :last
""").columns(*(message_segments.c[name] for name in ("revision", "columns", "terms")))


def _group_consecutive(refs: Iterable[SegmentRef]) -> Iterator[tuple[int, int, int]]:
    """Ranges of consecutive segments of a branch, each of which is one range of the primary key."""
    first = last = None
    for ref in sorted(refs, key=lambda ref: (ref.branch, ref.segment)):
        if first is not None and last is not None and (ref.branch, ref.segment - 1) != (last.branch, last.segment):
            yield first.branch, first.segment, last.segment
            first = ref
        first, last = first or ref, ref
    if first is not None and last is not None:
        yield first.branch, first.segment, last.segment


def has_unindexed(connection: Connection, tenant: str, *, conversations: Collection[str] | None = None) -> bool:
    """Whether entries of these conversations (None: of any) are not in the index yet."""
    query = select(unindexed_branches.c.last_seq).where(unindexed_branches.c.tenant == tenant).limit(1)
    if conversations is None:
        return connection.execute(query).first() is not None
    return any(
        connection.execute(query.where(unindexed_branches.c.conversation.in_(chunk))).first() is not None
        for chunk in split_chunks(conversations)
    )


def read_indexing_batch(
    connection: Connection,
    tenant: str,
    *,
    max_entries: int,
    embedder: str | None = None,
    conversations: Collection[str] | None = None,
) -> IndexingBatch:
    """The next segments to build, of about `max_entries` entries, from these conversations (None: from any).

    With an `embedder`, also segments that lack its vectors.
    """
    query = (
        select(
            unindexed_branches.c.conversation,
            unindexed_branches.c.branch,
            unindexed_branches.c.last_seq,
            branches.c.lineage,
        )
        .join(
            branches,
            and_(
                branches.c.tenant == unindexed_branches.c.tenant,
                branches.c.conversation == unindexed_branches.c.conversation,
                branches.c.branch == unindexed_branches.c.branch,
            ),
        )
        .where(unindexed_branches.c.tenant == tenant)
        .order_by(unindexed_branches.c.conversation, unindexed_branches.c.branch)
        .limit(MAX_UNINDEXED_BRANCHES)
    )
    queries = [query]
    if conversations is not None:
        chunks = split_chunks(sorted(conversations))
        queries = [query.where(unindexed_branches.c.conversation.in_(chunk)) for chunk in chunks]
    unindexed = [row for each in queries for row in connection.execute(each)]
    tasks: list[SegmentTask] = []
    finished: list[IndexedBranch] = []
    topics_by_conversation: dict[str, dict[MessagePlace, list[str]]] = {}
    count = 0
    for row in unindexed:
        lineage = json.loads(row.lineage)
        first_own = lineage[-1][1] + 1 if lineage else 1
        own = {"tenant": tenant, "conversation": row.conversation, "branch": row.branch}
        refs = [SegmentRef._make(each) for each in connection.execute(_OWN_SEGMENTS, own)]
        stored = {ref.segment: ref for ref in refs}
        for segment in range((first_own - 1) // ENTRIES_PER_SEGMENT, (row.last_seq - 1) // ENTRIES_PER_SEGMENT + 1):
            last = min(row.last_seq, (segment + 1) * ENTRIES_PER_SEGMENT)
            if count >= max_entries:
                return IndexingBatch(tuple(tasks), tuple(finished))
            task = _make_task(connection, tenant, row, stored.get(segment), segment, last, embedder)
            if task is not None:
                if task.stored is not None and task.data is None:
                    if row.conversation not in topics_by_conversation:
                        topics_by_conversation[row.conversation] = _read_topics(connection, tenant, row.conversation)
                    task = task._replace(topics=_select_topics(topics_by_conversation[row.conversation], task))
                tasks.append(task)
                count += len(task.entries)
        finished.append(IndexedBranch(row.conversation, row.branch, row.last_seq))
    return IndexingBatch(tuple(tasks), tuple(finished))


def _make_task(
    connection: Connection,
    tenant: str,
    row: Any,
    stored: SegmentRef | None,
    segment: int,
    last: int,
    embedder: str | None,
) -> SegmentTask | None:
    """The task of one segment, or None if it has everything."""
    first = segment * ENTRIES_PER_SEGMENT + 1
    data: SegmentData | None = None
    if stored is not None and stored.format == FORMAT_VERSION:
        is_embedded = embedder is None or stored.embedder == embedder
        if stored.last_seq >= last and is_embedded:
            return None
        [data] = read_segments(connection, tenant, row.conversation, [stored])
        if stored.last_seq < last:
            first = stored.last_seq + 1
    own_entries = reads.read_own_range(connection, tenant, row.conversation, branch=row.branch, first=first, last=last)
    if not own_entries:
        reads.check_in_database(connection, tenant, [row.conversation])
    return SegmentTask(row.conversation, row.branch, segment, last, stored, data, tuple(own_entries))


MessagePlace = tuple[int, int]
"""Branch that owns a message, and the message's number."""


def list_topics(connection: Connection, tenant: str, task: SegmentTask) -> dict[int, list[str]]:
    """Texts of the topics that cite messages of a segment, by the message's number."""
    return _select_topics(_read_topics(connection, tenant, task.conversation), task)


def _select_topics(topics: Mapping[MessagePlace, list[str]], task: SegmentTask) -> dict[int, list[str]]:
    return {
        seq: texts
        for (branch, seq), texts in topics.items()
        if branch == task.branch and (seq - 1) // ENTRIES_PER_SEGMENT == task.segment
    }


def _read_topics(connection: Connection, tenant: str, conversation: str) -> dict[MessagePlace, list[str]]:
    topics: defaultdict[MessagePlace, list[str]] = defaultdict(list)
    for entry in reversed(reads.read_topic_indexes(connection, tenant, conversation)):
        for place, texts in locate_topics(
            entry, conversations.get_branch(connection, tenant, conversation, entry.branch)
        ).items():
            topics[place] += texts
    return topics


def locate_topics(entry: Entry, branch: Branch) -> dict[MessagePlace, list[str]]:
    """Texts of the topics of an index on this branch, by the messages that they cite."""
    topics: defaultdict[MessagePlace, list[str]] = defaultdict(list)
    for place, topic in _iter_citations(entry, branch):
        if len(topics[place]) < MAX_MESSAGE_TOPICS:
            topics[place].append(f"{topic.label}: {topic.text}")
    return topics


def _iter_citations(entry: Entry, branch: Branch) -> Iterator[tuple[MessagePlace, Topic]]:
    # Changed content is not indexed: the digest is checked.
    for topic in cast(TopicIndex, entry.body).topics:
        for seq in topic.messages:
            owner = branch.find_owner(seq)
            if owner is not None:
                yield (owner, seq), topic


def put_segments(
    connection: Connection, tenant: str, updates: Sequence[SegmentUpdate], *, indexed: Sequence[IndexedBranch] = ()
) -> list[SegmentUpdate]:
    """Stores segments with their postings in one transaction, and returns the refused ones.

    A segment is refused if it was changed, or one of its entries purged, since they were read. The branches in
    `indexed` are no longer unindexed, unless one of their segments was refused.
    """
    scope = lock_messages(connection, tenant)
    refused: list[SegmentUpdate] = []
    numbered: list[tuple[int, Sequence[Mapping[str, int]]]] = []
    numbered_topics: list[tuple[int, Sequence[Mapping[str, int]]]] = []
    topic_indexes: list[Entry] = []
    for update in updates:
        _check_range(conversations.get_branch(connection, tenant, update.conversation, update.branch), update)
        own = {"tenant": tenant, "conversation": update.conversation, "branch": update.branch}
        row = connection.execute(_SEGMENT, {**own, "segment": update.segment}).first()
        stored = None if row is None else SegmentRef._make(row)
        # A purge is final, so an equal number of purged entries means the same entries.
        read_range = {"first": update.first_read_seq, "last": update.last_seq}
        purged_count = connection.execute(_PURGED_COUNT, {**own, **read_range}).scalar_one()
        revision = stored.revision if stored is not None else None
        if revision != update.base_revision or purged_count != update.purged_count:
            refused.append(update)
            continue
        number = stored.number if stored is not None else scope.next_number
        if update.replaces_rows and stored is not None and stored.format == FORMAT_VERSION:
            # Its bytes could not be read, so the terms of its messages are not known.
            first = number * ENTRIES_PER_SEGMENT
            removed = remove_numbers(connection, tenant, scope.scope, range(first, first + ENTRIES_PER_SEGMENT))
            scope = scope._replace(passage_count=scope.passage_count - removed)
        scope = scope._replace(
            next_number=max(scope.next_number, number + 1),
            revision=scope.revision + 1,
            passage_count=scope.passage_count + len(update.term_counts),
        )
        new_row = {
            **own,
            "segment": update.segment,
            "number": number,
            "revision": scope.revision,
            "last_seq": update.last_seq,
            "erasures": stored.erasures if stored is not None else 0,
            "format": FORMAT_VERSION,
            "embedder": update.embedder,
            **update.data._asdict(),
        }
        connection.execute(upsert(connection, message_segments, replace=_MUTABLE_COLUMNS), new_row)
        numbered += [(number * ENTRIES_PER_SEGMENT + row, counts) for row, counts in update.term_counts]
        numbered_topics += [(number * ENTRIES_PER_SEGMENT + row, counts) for row, counts in update.topic_counts]
        topic_indexes += update.topic_indexes
    append_index_rows(connection, tenant, scope.scope, build_postings(numbered))
    for entry in topic_indexes:
        scope = _add_topics(connection, tenant, scope, entry, numbered_topics)
    if numbered_topics:
        postings = build_postings(numbered_topics, first_passage=TOPIC_PASSAGE)
        append_index_rows(connection, tenant, scope.scope, postings)
    update_scope(connection, tenant, scope)
    unfinished = {(each.conversation, each.branch) for each in refused}
    # Branches that have moved on stay marked. The last statement, since an append waits for its locks.
    finished = [each for each in indexed if each[:2] not in unfinished]
    for count, each in enumerate(finished):
        if count % 500 == 499:
            yield_to_event_loop(connection)
        connection.execute(_UNMARK, {"of_tenant": tenant, **{f"of_{k}": v for k, v in each._asdict().items()}})
    return refused


def _add_topics(
    connection: Connection,
    tenant: str,
    scope: SearchScope,
    entry: Entry,
    numbered: list[tuple[int, Sequence[Mapping[str, int]]]],
) -> SearchScope:
    """Adds topics to the segments of the messages that they cite, and their term counts to `numbered`.

    A segment that cannot be read is built again, with its topics.
    """
    from quire.search.segment_codec import decode_segment, encode_segment
    from quire.search.segments import add_passages

    branch = conversations.get_branch(connection, tenant, entry.conversation, entry.branch)
    by_segment: defaultdict[tuple[int, int], dict[int, list[str]]] = defaultdict(dict)
    for (owner, seq), texts in locate_topics(entry, branch).items():
        by_segment[owner, (seq - 1) // ENTRIES_PER_SEGMENT][seq] = texts
    for (owner, segment), topics in sorted(by_segment.items()):
        own = {"tenant": tenant, "conversation": entry.conversation, "branch": owner, "segment": segment}
        row = connection.execute(_SEGMENT, own).first()
        ref = None if row is None else SegmentRef._make(row)
        if ref is None or ref.format != FORMAT_VERSION:
            continue
        [data] = read_segments(connection, tenant, entry.conversation, [ref])
        with suppress(UnreadableSegment):
            changed, added = add_passages(decode_segment(*data), topics)
            if added:
                scope = scope._replace(revision=scope.revision + 1)
                changed_data = SegmentData(*encode_segment(changed))
                rewrite_segment(connection, tenant, entry.conversation, ref, changed_data, revision=scope.revision)
                numbered += [(ref.number * ENTRIES_PER_SEGMENT + row, counts) for row, counts in added]
    return scope


def rewrite_segment(
    connection: Connection,
    tenant: str,
    conversation: str,
    ref: SegmentRef,
    data: SegmentData,
    *,
    revision: int,
    format: int = FORMAT_VERSION,
) -> None:
    """Replaces the bytes of a segment some of whose rows changed."""
    key = (
        message_segments.c.tenant == tenant,
        message_segments.c.conversation == conversation,
        message_segments.c.branch == ref.branch,
        message_segments.c.segment == ref.segment,
    )
    values = {"last_seq": ref.last_seq, "revision": revision, "format": format, "erasures": ref.erasures + 1}
    connection.execute(update_rows(message_segments).where(*key).values(**values, **data._asdict()))


def erase_messages(
    connection: Connection, tenant: str, all_branches: Sequence[Branch], purged: Sequence[Entry]
) -> None:
    """Erases these entries of a conversation, given with their text, from the index.

    The terms of a message are found again from its text. If they differ from the terms of its row in the segment, every
    row of its block of the inverted index is searched instead. Segments that cannot be read, and those with messages
    that a purged topic index cites, are emptied and built again.
    """
    from quire.search import segments
    from quire.search.segment_codec import decode_segment, encode_segment

    scope, conversation = lock_messages(connection, tenant), all_branches[0].conversation
    by_segment: defaultdict[tuple[int, int], list[Entry]] = defaultdict(list)
    with_topics: set[tuple[int, int]] = set()
    for entry in purged:
        if entry.kind == "message":
            by_segment[entry.branch, (entry.seq - 1) // ENTRIES_PER_SEGMENT].append(entry)
        elif entry.kind == "topic_index":
            [branch] = (each for each in all_branches if each.number == entry.branch)
            places = locate_topics(entry, branch)
            with_topics |= {(owner, (seq - 1) // ENTRIES_PER_SEGMENT) for owner, seq in places}
    numbers_by_row: defaultdict[IndexRowKey, set[int]] = defaultdict(set)
    for owner, number in sorted({*by_segment, *with_topics}):
        own = {"tenant": tenant, "conversation": conversation, "branch": owner, "segment": number}
        row = connection.execute(_SEGMENT, own).first()
        if row is None:
            continue
        ref, erased = SegmentRef._make(row), by_segment[owner, number]
        scope = scope._replace(revision=scope.revision + 1)
        [data] = read_segments(connection, tenant, conversation, [ref])
        segment = None
        if ref.format == FORMAT_VERSION and (owner, number) not in with_topics:
            with suppress(UnreadableSegment):
                segment = decode_segment(data.columns, data.terms)
        if segment is None:
            scope = _drop_segment(connection, tenant, conversation, ref, scope)
            continue
        rows = {
            int(seq): row
            for row, seq in enumerate(segment.columns.seq)
            if segment.columns.roles[row] != segments.ERASED_ROLE
        }
        indexed = [(rows[entry.seq], entry) for entry in erased if entry.seq in rows]
        for row, entry in indexed:
            number = ref.number * ENTRIES_PER_SEGMENT + row
            message_terms = segments.count_message_terms(to_searchable_text(entry.message))
            if set(map(segments.hash_term, message_terms)) != segments.list_term_hashes(segment, row):
                remove_numbers(connection, tenant, scope.scope, [number])
                continue
            for term in message_terms:
                numbers_by_row[number // NUMBERS_PER_BLOCK, term].add(number)
        scope = scope._replace(passage_count=scope.passage_count - len(indexed))
        remaining = segments.erase_messages(segment, [entry.seq for entry in erased])
        if (remaining.columns.roles == segments.ERASED_ROLE).all():
            remaining = segments.build_segment(())
        data = SegmentData(*encode_segment(remaining))
        rewrite_segment(connection, tenant, conversation, ref, data, revision=scope.revision)
    remove_from_index_rows(connection, tenant, scope.scope, numbers_by_row, remove_numbers=remove_postings)
    update_scope(connection, tenant, scope)


def retire_segments(connection: Connection, tenant: str, conversation: str) -> None:
    """Empties the segments of a conversation whose entries are replaced, and puts them aside, so that it gets new ones.

    Their numbers are not used again until `remove_retired` has removed their postings, which no search finds.
    """
    own = message_segments.c.tenant == tenant, message_segments.c.conversation == conversation
    rows = connection.execute(select(message_segments.c.branch, message_segments.c.segment).where(*own)).all()
    if not rows:
        return
    scope = lock_messages(connection, tenant)
    table = message_segments.c
    for branch, segment in rows:
        scope = scope._replace(revision=scope.revision + 1)
        # Below any number that a segment has.
        aside = -1 - table.number
        values = {"segment": aside, "revision": scope.revision, "format": 0, "columns": b"", "terms": b""}
        key = *own, table.branch == branch, table.segment == segment, table.segment >= 0
        connection.execute(update_rows(message_segments).where(*key).values(values))
    update_scope(connection, tenant, scope)


def remove_retired(connection: Connection, tenant: str) -> None:
    """Removes the segments that `retire_segments` put aside from the index."""
    retired = message_segments.c.tenant == tenant, message_segments.c.segment < 0
    numbers = list(connection.execute(select(message_segments.c.number).where(*retired)).scalars())
    if not numbers:
        return
    scope = lock_messages(connection, tenant)
    rows = [number * ENTRIES_PER_SEGMENT + row for number in numbers for row in range(ENTRIES_PER_SEGMENT)]
    removed = remove_numbers(connection, tenant, scope.scope, rows)
    update_scope(connection, tenant, scope._replace(passage_count=scope.passage_count - removed))
    connection.execute(delete(message_segments).where(*retired))


def _drop_segment(
    connection: Connection, tenant: str, conversation: str, ref: SegmentRef, scope: SearchScope
) -> SearchScope:
    """Empties a segment, and marks its branch as unindexed, so that it is built again."""
    first = ref.number * ENTRIES_PER_SEGMENT
    removed = remove_numbers(connection, tenant, scope.scope, range(first, first + ENTRIES_PER_SEGMENT))
    empty = SegmentData(b"", b"")
    rewrite_segment(connection, tenant, conversation, ref, empty, revision=scope.revision, format=0)
    mark_unindexed(connection, tenant, conversation, ref.branch, ref.last_seq)
    return scope._replace(passage_count=scope.passage_count - removed)


def _check_range(branch: Branch, update: SegmentUpdate) -> None:
    first = max(update.segment * ENTRIES_PER_SEGMENT, branch.fork_seq) + 1
    last = min((update.segment + 1) * ENTRIES_PER_SEGMENT, branch.head_seq)
    if not first <= update.last_seq <= last:
        raise InvalidEntry(
            f"Segment {update.segment} of branch {branch.number} can hold the entries {first} to {last}, "
            f"but this one ends with #{update.last_seq}."
        )


def lock_messages(connection: Connection, tenant: str) -> SearchScope:
    """Locks the scope of messages. An index of another format is emptied, and every branch marked as unindexed."""
    scope = lock_scope(connection, tenant, messages_scope(tenant))
    if scope.format == FORMAT_VERSION:
        return scope
    connection.execute(delete(terms).where(terms.c.tenant == tenant, terms.c.scope == scope.scope))
    mark_all_unindexed(connection, tenant)
    scope = scope._replace(format=FORMAT_VERSION, passage_count=0, revision=scope.revision + 1)
    update_scope(connection, tenant, scope)
    return scope


def reset_format(connection: Connection, tenant: str) -> None:
    """Starts the rebuild of a message index of another format."""
    lock_messages(connection, tenant)


def mark_all_unindexed(connection: Connection, tenant: str) -> None:
    """Marks every branch that has entries of its own as unindexed, so that its segments are checked."""
    of_branch = (getattr(entries.c, name) == getattr(branches.c, name) for name in ("tenant", "conversation", "branch"))
    rows = select(branches.c.tenant, branches.c.conversation, branches.c.branch, branches.c.head_seq).where(
        branches.c.tenant == tenant, exists().where(*of_branch)
    )
    connection.execute(delete(unindexed_branches).where(unindexed_branches.c.tenant == tenant))
    connection.execute(insert(unindexed_branches).from_select(["tenant", "conversation", "branch", "last_seq"], rows))


def mark_unembedded(connection: Connection, tenant: str, embedder: str) -> int:
    """Marks the branches with messages that lack a vector of this embedder as unindexed. Returns their number."""
    lacking = or_(message_segments.c.embedder.is_(None), message_segments.c.embedder != embedder)
    query = (
        select(message_segments.c.conversation, message_segments.c.branch, func.max(message_segments.c.last_seq))
        .where(message_segments.c.tenant == tenant, lacking, func.length(message_segments.c.columns) > 0)
        .group_by(message_segments.c.conversation, message_segments.c.branch)
    )
    rows = connection.execute(query).all()
    for conversation, branch, last_seq in rows:
        mark_unindexed(connection, tenant, conversation, branch, last_seq)
    return len(rows)


def mark_unindexed(connection: Connection, tenant: str, conversation: str, branch: int, last_seq: int) -> None:
    """Marks a branch whose segments must be checked, unless it is marked already."""
    row = {"tenant": tenant, "conversation": conversation, "branch": branch, "last_seq": last_seq}
    connection.execute(insert_or_ignore(connection, unindexed_branches), row)


def read_message_index(
    connection: Connection, tenant: str, query_terms: Collection[str], *, after_revision: int
) -> MessageIndexRead:
    """The segments that changed after a revision, at most `MAX_CHANGES`, and with the last of them the postings."""
    scope = get_scope(connection, tenant, messages_scope(tenant))
    if scope is None:
        return MessageIndexRead(0, True, True, (), {})
    changes: tuple[SegmentColumns, ...] = ()
    revision = scope.revision
    if revision > after_revision:
        params = {"tenant": tenant, "revision": after_revision, "limit": MAX_CHANGES}
        rows = connection.execute(CHANGED_SEGMENTS, params).all()
        changes = tuple(SegmentColumns._make(row[1:]) for row in rows)
        if len(rows) == MAX_CHANGES:
            return MessageIndexRead(rows[-1][0], False, True, changes, {})
    postings: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
    sealed_scope = seal_value(terms.c.scope, scope.scope)
    for chunk in split_chunks([seal_value(terms.c.term, each) for each in query_terms]):
        if connection.dialect.name == "postgresql":
            statement, chunk_terms = _POSTINGS_POSTGRES, {"terms": chunk}
        else:
            statement = _build_sqlite_query(len(chunk))
            chunk_terms = {f"term_{number}": term for number, term in enumerate(chunk)}
        params = {"tenant": tenant, "scope": sealed_scope, **chunk_terms}
        for term, block, data in connection.execute(statement, params):
            postings[term].append((block, data))
    return MessageIndexRead(revision, True, scope.format == FORMAT_VERSION, changes, postings)


CHANGED_SEGMENTS = text("""
    SELECT revision, number, conversation, branch, format, columns FROM quire_message_segments
    WHERE tenant = :tenant AND revision > :revision ORDER BY revision LIMIT :limit
""").columns(*(message_segments.c[each] for each in ("revision", *SegmentColumns._fields)))
_POSTING_COLUMNS = (terms.c.term, terms.c.block, terms.c.postings)
_POSTINGS_POSTGRES = text("""
    SELECT term, block, postings FROM quire_terms
    WHERE tenant = :tenant AND scope = :scope AND term = ANY(:terms)
""").columns(*_POSTING_COLUMNS)


@cache
def _build_sqlite_query(count: int) -> TextualSelect:
    names = ", ".join(f":term_{number}" for number in range(count))
    return text(f"""
        SELECT term, block, postings FROM quire_terms
        WHERE tenant = :tenant AND scope = :scope AND term IN ({names})
    """).columns(*_POSTING_COLUMNS)  # noqa: S608 (the inserted text has only names of parameters)


def read_messages(
    connection: Connection, tenant: str, keys: Sequence[MessageKey]
) -> tuple[list[Entry | None], dict[str, ConversationRecord]]:
    """The messages with these keys, None for one that is gone or purged, and their conversations by id."""
    records = conversations.get_conversations(connection, tenant, {key.conversation for key in keys})
    return reads.read_messages(connection, tenant, keys), records


def find_topics(connection: Connection, tenant: str, keys: Collection[MessageKey]) -> dict[MessageKey, list[Topic]]:
    """The topics that cite these messages, by the newest indexes of their conversations."""
    found: defaultdict[MessageKey, list[Topic]] = defaultdict(list)
    key_set = set(keys)
    for conversation in sorted({key.conversation for key in keys}):
        for entry in reads.read_topic_indexes(connection, tenant, conversation, limit=MAX_READ_INDEXES):
            branch = conversations.get_branch(connection, tenant, conversation, entry.branch)
            for place, topic in _iter_citations(entry, branch):
                if (key := MessageKey(conversation, *place)) in key_set:
                    found[key].append(topic)
    return found


class MessageIndex(StorePart):
    """The message index: segments of each branch, and an inverted index over all of them."""

    read_segments = read(read_segments)
    has_unindexed = read_inline(has_unindexed)
    read_batch = read_bulk(read_indexing_batch)
    list_topics = read_bulk(list_topics)
    put_segments = write_bulk(put_segments)
    mark_unembedded = write_bulk(mark_unembedded)
    reset_format = write_bulk(reset_format)
    remove_retired = write_bulk(remove_retired)
    read_changes = read(read_message_index)
    read_messages = read(read_messages)
    find_topics = read(find_topics)

    async def list_segments(self, conversation: str, *, branch: int = MAIN_BRANCH) -> list[SegmentRef]:
        """The segments along a branch, oldest first, without their bytes."""
        return await self.run(read_inline, with_branch(list_segments), conversation, branch)

    async def fetch_segments(self, branch: Branch) -> list[SegmentRef]:
        """The segments along a branch whose row was just read; without forks in one round trip."""
        ranges = _list_segment_ranges(self.base.tenant, branch)
        return [SegmentRef(*row) for each in ranges for row in await self.base.fetch(_SEGMENT_RANGE, each)]
