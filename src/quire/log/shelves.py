"""Shelves: the recall index of a branch's entries, kept as bytes beside the log that it was made from.

A shelf that holds a purged message is gone, and one that was made before the purge cannot come back after it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import Connection, and_, delete, func, or_, select, text

from quire.errors import InvalidEntry, StaleShelf
from quire.log import branches, passages
from quire.log.dialects import upsert
from quire.log.driver import fetch_bytes
from quire.log.found import SHELF, Shelf, ShelfMark, conversation_scope, message_key
from quire.log.fresh import new_id
from quire.log.records import Branch
from quire.log.schema import entries, shelves
from quire.log.terms import chunked


def list_shelves(connection: Connection, tenant: str, branch: Branch) -> list[ShelfMark]:
    """The shelves along a branch, oldest first. The last one of a parent may go on after the fork."""
    pieces = list(branch.segments())
    if not pieces:
        return []
    along = or_(
        *(
            and_(
                shelves.c.branch == piece.branch,
                shelves.c.shelf.between((piece.first - 1) // SHELF, (piece.last - 1) // SHELF),
            )
            for piece in pieces
        )
    )
    wanted = select(shelves.c.branch, shelves.c.shelf, shelves.c.upto, shelves.c.version).where(
        shelves.c.tenant == tenant, shelves.c.conversation == branch.conversation, along
    )
    age = {piece.branch: place for place, piece in enumerate(reversed(pieces))}
    found = [ShelfMark._make(row) for row in connection.execute(wanted)]
    return sorted(found, key=lambda mark: (age[mark.branch], mark.shelf))


def read_shelves(connection: Connection, tenant: str, conversation: str, marks: Sequence[ShelfMark]) -> list[bytes]:
    """The bytes of these shelves, in their order; `StaleShelf` if one is no longer what its mark says."""
    found: dict[str, bytes] = {}
    for branch, first, last in _runs(marks):
        known = {"tenant": tenant, "conversation": conversation, "branch": branch, "first": first, "last": last}
        found.update(fetch_bytes(connection, DATA, known))
    if missing := [mark for mark in marks if mark.version not in found]:
        branches.get_conversation(connection, tenant, conversation)
        raise StaleShelf(
            f"Shelf {missing[0].shelf} of branch {missing[0].branch} of {conversation!r} was rewritten or removed "
            "since it was listed; list the shelves again."
        )
    return [found[mark.version] for mark in marks]


def put_shelf(connection: Connection, tenant: str, conversation: str, shelf: Shelf) -> ShelfMark:
    """Stores a shelf and the passages of its messages. One that is filled further already stays as it is."""
    place = branches.get_branch(connection, tenant, conversation, shelf.branch, lock=True)
    first = _first_own(place, shelf)
    _refuse_strange(shelf, first)
    _refuse_stale(connection, tenant, place, shelf, first)
    stored = _stored(connection, tenant, conversation, shelf)
    if stored is not None and stored.upto > shelf.upto:
        return stored
    mark = ShelfMark(shelf.branch, shelf.number, shelf.upto, new_id())
    row = {"tenant": tenant, "conversation": conversation, **mark._asdict(), "data": shelf.data}
    connection.execute(upsert(connection, shelves, changing=["upto", "version", "data"]), row)
    keys = [message_key(shelf.branch, seq) for seq in range(first, shelf.upto + 1)]
    passages.put(connection, tenant, conversation_scope(conversation), shelf.passages, replacing=keys)
    return mark


def drop_shelves(connection: Connection, tenant: str, conversation: str, gone: Iterable[tuple[int, int]]) -> None:
    """Removes the shelves that hold these entries, named by branch and number."""
    by_branch: defaultdict[int, set[int]] = defaultdict(set)
    for branch, seq in gone:
        by_branch[branch].add((seq - 1) // SHELF)
    for branch, numbers in by_branch.items():
        mine = (shelves.c.tenant == tenant, shelves.c.conversation == conversation, shelves.c.branch == branch)
        for some in chunked(sorted(numbers)):
            connection.execute(delete(shelves).where(*mine, shelves.c.shelf.in_(some)))


DATA = text("""
    SELECT version, data FROM quire_shelves
    WHERE tenant = :tenant AND conversation = :conversation AND branch = :branch AND shelf BETWEEN :first AND :last
""")


def _runs(marks: Iterable[ShelfMark]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring shelves of a branch, which are one range of the key."""
    first = last = None
    for mark in sorted(marks, key=lambda mark: (mark.branch, mark.shelf)):
        if first is not None and last is not None and (mark.branch, mark.shelf - 1) != (last.branch, last.shelf):
            yield first.branch, first.shelf, last.shelf
            first = mark
        first, last = first or mark, mark
    if first is not None and last is not None:
        yield first.branch, first.shelf, last.shelf


def _first_own(place: Branch, shelf: Shelf) -> int:
    """The first entry of the shelf that is the branch's own."""
    first = max(shelf.number * SHELF, place.fork_seq) + 1
    last = min((shelf.number + 1) * SHELF, place.head_seq)
    if not first <= shelf.upto <= last:
        raise InvalidEntry(
            f"Shelf {shelf.number} of branch {place.number} can hold the entries {first} to {last}, "
            f"and this one ends with #{shelf.upto}."
        )
    return first


def _refuse_strange(shelf: Shelf, first: int) -> None:
    own = {message_key(shelf.branch, seq) for seq in range(first, shelf.upto + 1)}
    for passage in shelf.passages:
        if passage.key not in own:
            raise InvalidEntry(
                f"The passage {passage.key!r} is of no entry from #{first} to #{shelf.upto} of its shelf."
            )


def _refuse_stale(connection: Connection, tenant: str, place: Branch, shelf: Shelf, first: int) -> None:
    """A purge also holds the branch's row, and what is purged stays so: the same number is the same entries."""
    purged = select(func.count()).where(
        entries.c.tenant == tenant,
        entries.c.conversation == place.conversation,
        entries.c.branch == place.number,
        entries.c.seq.between(first, shelf.upto),
        entries.c.purged_at.is_not(None),
    )
    if connection.execute(purged).scalar() != shelf.purged:
        raise StaleShelf(
            f"An entry from #{first} to #{shelf.upto} of branch {place.number} of {place.conversation!r} was purged "
            "since the shelf's were read; read them again and make the shelf anew."
        )


def _stored(connection: Connection, tenant: str, conversation: str, shelf: Shelf) -> ShelfMark | None:
    wanted = select(shelves.c.branch, shelves.c.shelf, shelves.c.upto, shelves.c.version).where(
        shelves.c.tenant == tenant,
        shelves.c.conversation == conversation,
        shelves.c.branch == shelf.branch,
        shelves.c.shelf == shelf.number,
    )
    row = connection.execute(wanted).first()
    return None if row is None else ShelfMark._make(row)
