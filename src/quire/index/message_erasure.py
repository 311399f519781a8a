"""Erases purged messages from the message index: their postings, their rows in segments, their vectors.

The terms of a message are found again from its text. If they differ from the terms of its row in the segment, or the
segment cannot be read, every row of its block of the inverted index is searched instead.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from sqlalchemy import Connection, select

from quire.db.schema import message_segments
from quire.errors import UnreadableSegment
from quire.index.inverted_index import SearchScope, remove_from_index_rows, remove_numbers, split_chunks, update_scope
from quire.index.message_index import (
    locate_topics,
    lock_messages,
    mark_unindexed,
    read_segments,
    rewrite_segment,
)
from quire.index.types import SegmentData, SegmentRef
from quire.log.types import Branch
from quire.model import Entry
from quire.search.postings import ENTRIES_PER_SEGMENT, FORMAT_VERSION, NUMBERS_PER_BLOCK, IndexRowKey, remove_postings
from quire.view.recalled_messages import to_searchable_text


def erase_messages(
    connection: Connection, tenant: str, all_branches: Sequence[Branch], purged: Sequence[Entry]
) -> None:
    """Erases these entries of a conversation, given with their text, from the index.

    Segments with messages that a purged topic index cites are emptied and built again.
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
    for ref in _list_segments(connection, tenant, conversation, {*by_segment, *with_topics}):
        erased = by_segment[ref.branch, ref.segment]
        scope = scope._replace(revision=scope.revision + 1)
        [data] = read_segments(connection, tenant, conversation, [ref])
        segment = None
        if ref.format == FORMAT_VERSION and (ref.branch, ref.segment) not in with_topics:
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


def _list_segments(
    connection: Connection, tenant: str, conversation: str, keys: Collection[tuple[int, int]]
) -> Iterable[SegmentRef]:
    columns = [message_segments.c[name] for name in SegmentRef._fields]
    own = (message_segments.c.tenant == tenant, message_segments.c.conversation == conversation)
    for branch in sorted({branch for branch, _ in keys}):
        for chunk in split_chunks(sorted(segment for owner, segment in keys if owner == branch)):
            query = select(*columns).where(
                *own, message_segments.c.branch == branch, message_segments.c.segment.in_(chunk)
            )
            yield from map(SegmentRef._make, connection.execute(query).all())


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
