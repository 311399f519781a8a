"""Erases purged messages from the message index: their postings, their rows in segments, their vectors.

The terms of a message are found again from its text. If they are not those of its row in the segment, or the segment
cannot be read, every row of its block of the inverted index is searched instead.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select, update

from quire.db.schema import message_segments
from quire.errors import UnreadableSegment
from quire.index.inverted_index import SearchScope, remove_from_index_rows, remove_numbers, split_chunks, update_scope
from quire.index.message_index import lock_messages, mark_unindexed, read_segments
from quire.index.types import SegmentData, SegmentRef
from quire.model import Entry
from quire.search.format import FORMAT_VERSION
from quire.search.postings import ENTRIES_PER_SEGMENT, NUMBERS_PER_BLOCK, IndexRowKey, remove_postings
from quire.view.recalled_messages import message_to_text

if TYPE_CHECKING:
    from quire.search.segments import Segment


def erase_messages(connection: Connection, tenant: str, conversation: str, purged: Sequence[Entry]) -> None:
    """Erases these entries, given with their text, from the index."""
    messages = [entry for entry in purged if entry.kind == "message"]
    scope = lock_messages(connection, tenant)
    by_segment: defaultdict[tuple[int, int], list[Entry]] = defaultdict(list)
    for entry in messages:
        by_segment[entry.branch, (entry.seq - 1) // ENTRIES_PER_SEGMENT].append(entry)
    numbers_by_row: defaultdict[IndexRowKey, set[int]] = defaultdict(set)
    for ref in _list_segments(connection, tenant, conversation, by_segment):
        erased = by_segment[ref.branch, ref.segment]
        scope = scope._replace(revision=scope.revision + 1)
        segment = _read_segment(connection, tenant, conversation, ref)
        if segment is None:
            scope = _drop_segment(connection, tenant, conversation, ref, scope)
            continue
        count = _collect_postings(connection, tenant, scope, ref, segment, erased, numbers_by_row)
        scope = scope._replace(passage_count=scope.passage_count - count)
        _write_erased(connection, tenant, conversation, ref, segment, erased, revision=scope.revision)
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


def _read_segment(connection: Connection, tenant: str, conversation: str, ref: SegmentRef) -> "Segment | None":
    from quire.search.segment_codec import decode_segment

    [data] = read_segments(connection, tenant, conversation, [ref])
    if ref.format != FORMAT_VERSION:
        return None
    try:
        return decode_segment(data.columns, data.terms)
    except UnreadableSegment:
        return None


def _collect_postings(
    connection: Connection,
    tenant: str,
    scope: SearchScope,
    ref: SegmentRef,
    segment: "Segment",
    erased: Sequence[Entry],
    numbers_by_row: defaultdict[IndexRowKey, set[int]],
) -> int:
    """Collects the postings to remove; returns the number of messages that were in the segment."""
    from quire.search.segments import ERASED_ROLE, MAX_INDEXED_CHARS, count_message_terms, hash_term, list_term_hashes

    columns, count = segment.columns, 0
    rows = {int(seq): row for row, seq in enumerate(columns.seq) if columns.roles[row] != ERASED_ROLE}
    for entry in erased:
        row = rows.get(entry.seq)
        if row is None:
            continue
        count += 1
        number = ref.number * ENTRIES_PER_SEGMENT + row
        message_terms = count_message_terms(message_to_text(entry.message)[:MAX_INDEXED_CHARS])
        if set(map(hash_term, message_terms)) != list_term_hashes(segment, row):
            remove_numbers(connection, tenant, scope.scope, [number])
            continue
        for term in message_terms:
            numbers_by_row[number // NUMBERS_PER_BLOCK, term].add(number)
    return count


def _write_erased(
    connection: Connection,
    tenant: str,
    conversation: str,
    ref: SegmentRef,
    segment: "Segment",
    erased: Sequence[Entry],
    *,
    revision: int,
) -> None:
    from quire.search.segment_codec import encode_segment
    from quire.search.segments import ERASED_ROLE, build_segment
    from quire.search.segments import erase_messages as erase_rows

    remaining = erase_rows(segment, [entry.seq for entry in erased])
    if (remaining.columns.roles == ERASED_ROLE).all():
        remaining = build_segment(())
    columns, term_data = encode_segment(remaining)
    _update_segment(
        connection, tenant, conversation, ref, SegmentData(columns, term_data), last_seq=ref.last_seq, revision=revision
    )


def _drop_segment(
    connection: Connection, tenant: str, conversation: str, ref: SegmentRef, scope: SearchScope
) -> SearchScope:
    """Empties a segment that cannot be read, and marks its branch as unindexed, so that it is built again."""
    first = ref.number * ENTRIES_PER_SEGMENT
    removed = remove_numbers(connection, tenant, scope.scope, range(first, first + ENTRIES_PER_SEGMENT))
    _update_segment(
        connection, tenant, conversation, ref, SegmentData(b"", b""), last_seq=ref.last_seq, revision=scope.revision,
        format=0,
    )  # fmt: skip
    mark_unindexed(connection, tenant, conversation, ref.branch, ref.last_seq)
    return scope._replace(passage_count=scope.passage_count - removed)


def _update_segment(
    connection: Connection,
    tenant: str,
    conversation: str,
    ref: SegmentRef,
    data: SegmentData,
    *,
    last_seq: int,
    revision: int,
    format: int = FORMAT_VERSION,
) -> None:
    key = (
        message_segments.c.tenant == tenant,
        message_segments.c.conversation == conversation,
        message_segments.c.branch == ref.branch,
        message_segments.c.segment == ref.segment,
    )
    values = {"last_seq": last_seq, "revision": revision, "format": format, "erasures": ref.erasures + 1}
    connection.execute(update(message_segments).where(*key).values(**values, **data._asdict()))
