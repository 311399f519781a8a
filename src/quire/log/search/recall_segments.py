"""Recall segments: the recall index of a branch's entries, stored as bytes.

A purge deletes the segments with a purged message, and a segment that was built before the purge is refused after it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import Connection, and_, delete, func, or_, select, text

from quire.errors import InvalidEntry, StaleSegment
from quire.log import conversations
from quire.log.dialects import upsert
from quire.log.ids import new_id
from quire.log.raw_sql import fetch_binary
from quire.log.schema import entries, recall_segments
from quire.log.search import passages
from quire.log.search.inverted_index import split_chunks
from quire.log.types import ENTRIES_PER_SEGMENT, Branch, SegmentRef, SegmentRow, conversation_scope, message_key

_REF_COLUMNS = tuple(recall_segments.c[name] for name in SegmentRef._fields)


def list_segments(connection: Connection, tenant: str, branch: Branch) -> list[SegmentRef]:
    """The segments along a branch, oldest first. The last one of a parent may extend beyond the fork."""
    ranges = list(branch.split_ranges())
    if not ranges:
        return []
    along_branch = or_(
        *(
            and_(
                recall_segments.c.branch == own_range.branch,
                recall_segments.c.segment.between(
                    (own_range.first - 1) // ENTRIES_PER_SEGMENT, (own_range.last - 1) // ENTRIES_PER_SEGMENT
                ),
            )
            for own_range in ranges
        )
    )
    query = select(*_REF_COLUMNS).where(
        recall_segments.c.tenant == tenant, recall_segments.c.conversation == branch.conversation, along_branch
    )
    branch_order = {own_range.branch: index for index, own_range in enumerate(reversed(ranges))}
    refs = [SegmentRef._make(row) for row in connection.execute(query)]
    return sorted(refs, key=lambda ref: (branch_order[ref.branch], ref.segment))


def read_segments(connection: Connection, tenant: str, conversation: str, refs: Sequence[SegmentRef]) -> list[bytes]:
    """The bytes of these segments, in order; raises `StaleSegment` if the version of one has changed."""
    data_by_version: dict[str, bytes] = {}
    for branch, first, last in _group_consecutive(refs):
        params = {"tenant": tenant, "conversation": conversation, "branch": branch, "first": first, "last": last}
        data_by_version.update(fetch_binary(connection, SEGMENT_DATA, params))
    if missing := [ref for ref in refs if ref.version not in data_by_version]:
        conversations.get_conversation(connection, tenant, conversation)
        raise StaleSegment(
            f"Segment {missing[0].segment} of branch {missing[0].branch} of {conversation!r} was rewritten or deleted "
            "since it was listed; list the segments again."
        )
    return [data_by_version[ref.version] for ref in refs]


def put_segment(connection: Connection, tenant: str, conversation: str, segment_row: SegmentRow) -> SegmentRef:
    """Stores a segment and the passages of its messages. A stored segment with later entries is returned unchanged."""
    branch = conversations.get_branch(connection, tenant, conversation, segment_row.branch, lock=True)
    first = _find_first_own_seq(branch, segment_row)
    _check_passage_keys(segment_row, first)
    _check_not_stale(connection, tenant, branch, segment_row, first)
    stored = _get_stored(connection, tenant, conversation, segment_row)
    if stored is not None and stored.last_seq > segment_row.last_seq:
        return stored
    ref = SegmentRef(segment_row.branch, segment_row.segment, segment_row.last_seq, new_id())
    row = {"tenant": tenant, "conversation": conversation, **ref._asdict(), "data": segment_row.data}
    connection.execute(upsert(connection, recall_segments, replace=["last_seq", "version", "data"]), row)
    keys = [message_key(segment_row.branch, seq) for seq in range(first, segment_row.last_seq + 1)]
    passages.put_passages(connection, tenant, conversation_scope(conversation), segment_row.passages, replacing=keys)
    return ref


def delete_segments(
    connection: Connection, tenant: str, conversation: str, entry_keys: Iterable[tuple[int, int]]
) -> None:
    """Deletes the segments of these entries, given by branch and number."""
    by_branch: defaultdict[int, set[int]] = defaultdict(set)
    for branch, seq in entry_keys:
        by_branch[branch].add((seq - 1) // ENTRIES_PER_SEGMENT)
    for branch, numbers in by_branch.items():
        own_segments = (
            recall_segments.c.tenant == tenant,
            recall_segments.c.conversation == conversation,
            recall_segments.c.branch == branch,
        )
        for chunk in split_chunks(sorted(numbers)):
            connection.execute(delete(recall_segments).where(*own_segments, recall_segments.c.segment.in_(chunk)))


SEGMENT_DATA = text("""
    SELECT version, data FROM quire_recall_segments
    WHERE tenant = :tenant AND conversation = :conversation AND branch = :branch AND segment BETWEEN :first AND :last
""")


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


def _find_first_own_seq(branch: Branch, segment_row: SegmentRow) -> int:
    """The first entry of the segment that the branch owns."""
    first = max(segment_row.segment * ENTRIES_PER_SEGMENT, branch.fork_seq) + 1
    last = min((segment_row.segment + 1) * ENTRIES_PER_SEGMENT, branch.head_seq)
    if not first <= segment_row.last_seq <= last:
        raise InvalidEntry(
            f"Segment {segment_row.segment} of branch {branch.number} can hold the entries {first} to {last}, "
            f"but this one ends with #{segment_row.last_seq}."
        )
    return first


def _check_passage_keys(segment_row: SegmentRow, first: int) -> None:
    own = {message_key(segment_row.branch, seq) for seq in range(first, segment_row.last_seq + 1)}
    for passage in segment_row.passages:
        if passage.key not in own:
            raise InvalidEntry(
                f"The passage {passage.key!r} belongs to no entry of the segment, #{first} to #{segment_row.last_seq}."
            )


def _check_not_stale(connection: Connection, tenant: str, branch: Branch, segment_row: SegmentRow, first: int) -> None:
    """Raises `StaleSegment` if an entry was purged since the segment was read.

    A purge locks the branch's row too and is final, so an equal number of purged entries means the same entries.
    """
    purged = select(func.count()).where(
        entries.c.tenant == tenant,
        entries.c.conversation == branch.conversation,
        entries.c.branch == branch.number,
        entries.c.seq.between(first, segment_row.last_seq),
        entries.c.purged_at.is_not(None),
    )
    if connection.execute(purged).scalar() != segment_row.purged_count:
        raise StaleSegment(
            f"An entry from #{first} to #{segment_row.last_seq} of branch {branch.number} of {branch.conversation!r} "
            "was purged since the segment was read; read its entries again and rebuild it."
        )


def _get_stored(connection: Connection, tenant: str, conversation: str, segment_row: SegmentRow) -> SegmentRef | None:
    query = select(*_REF_COLUMNS).where(
        recall_segments.c.tenant == tenant,
        recall_segments.c.conversation == conversation,
        recall_segments.c.branch == segment_row.branch,
        recall_segments.c.segment == segment_row.segment,
    )
    row = connection.execute(query).first()
    return None if row is None else SegmentRef._make(row)
