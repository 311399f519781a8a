"""Rows of the inverted index, one per term and block of numbers, and the scopes that they belong to.

See `quire.search.postings` for the bytes of a row. A writer locks the row of its scope, which has its counters and the
format version of its index.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection, bindparam, delete, select, update

from quire.db.dialects import append_bytes, insert_or_ignore
from quire.db.raw_sql import yield_to_event_loop
from quire.db.schema import search_scopes, terms
from quire.search.postings import FORMAT_VERSION, NUMBERS_PER_BLOCK, POSTING_BYTES, IndexRowKey, remove_postings

_ROWS_PER_STATEMENT = 500
_ROWS_PER_APPEND = 2_000
"""Rows of the index that are written before other tasks run."""

T = TypeVar("T")


class SearchScope(NamedTuple):
    scope: str
    next_number: int
    passage_count: int
    revision: int
    format: int


_COLUMNS = tuple(search_scopes.c[name] for name in SearchScope._fields)


def get_scope(connection: Connection, tenant: str, scope: str) -> SearchScope | None:
    row = connection.execute(_select(tenant, scope)).first()
    return None if row is None else SearchScope._make(row)


def has_scope(connection: Connection, tenant: str, scope: str) -> bool:
    return get_scope(connection, tenant, scope) is not None


def lock_scope(connection: Connection, tenant: str, scope: str) -> SearchScope:
    """Locks the scope, which is created if needed, until the commit."""
    new_row = {"tenant": tenant, **SearchScope(scope, 0, 0, 0, FORMAT_VERSION)._asdict()}
    connection.execute(insert_or_ignore(connection, search_scopes), new_row)
    row = connection.execute(_select(tenant, scope).with_for_update()).first()
    # None if a purge has just deleted the whole scope.
    return SearchScope._make(row) if row is not None else lock_scope(connection, tenant, scope)


def update_scope(connection: Connection, tenant: str, scope: SearchScope) -> None:
    key = (search_scopes.c.tenant == tenant, search_scopes.c.scope == scope.scope)
    connection.execute(update(search_scopes).where(*key).values(**scope._asdict()))


def _select(tenant: str, scope: str):
    return select(*_COLUMNS).where(search_scopes.c.tenant == tenant, search_scopes.c.scope == scope)


def append_index_rows(connection: Connection, tenant: str, scope: str, added: Mapping[IndexRowKey, bytes]) -> None:
    """Appends postings to these rows, or creates them."""
    # In the order of the primary key: neighboring rows share a page.
    keys = sorted(added, key=lambda key: (key[1], key[0]))
    rows = [
        {"tenant": tenant, "scope": scope, "term": term, "block": block, "postings": added[block, term]}
        for block, term in keys
    ]
    for start in range(0, len(rows), _ROWS_PER_APPEND):
        if start:
            yield_to_event_loop(connection)
        append_bytes(connection, terms, rows[start : start + _ROWS_PER_APPEND], "postings")


def remove_from_index_rows(
    connection: Connection,
    tenant: str,
    scope: str,
    removed: Mapping[IndexRowKey, Collection[int]],
    *,
    remove_numbers: Callable[[bytes, Collection[int]], bytes],
) -> None:
    """Removes these passage numbers from rows. Deletes rows that become empty."""
    by_block: dict[int, dict[str, Collection[int]]] = {}
    for (block, term), numbers in removed.items():
        by_block.setdefault(block, {})[term] = numbers
    for block, numbers_by_term in by_block.items():
        own_rows = (terms.c.tenant == tenant, terms.c.scope == scope, terms.c.block == block)
        remaining: dict[str, bytes] = {}
        for chunk in split_chunks(numbers_by_term):
            rows = connection.execute(select(terms.c.term, terms.c.postings).where(*own_rows, terms.c.term.in_(chunk)))
            remaining.update((row.term, remove_numbers(row.postings, numbers_by_term[row.term])) for row in rows)
        for chunk in split_chunks(term for term, postings in remaining.items() if not postings):
            connection.execute(delete(terms).where(*own_rows, terms.c.term.in_(chunk)))
        changed = [{"of_term": term, "postings": postings} for term, postings in remaining.items() if postings]
        if changed:
            statement = update(terms).where(*own_rows, terms.c.term == bindparam("of_term"))
            connection.execute(statement.values(postings=bindparam("postings")), changed)


def remove_numbers(connection: Connection, tenant: str, scope: str, numbers: Collection[int]) -> int:
    """Removes messages from every row of their block, and returns how many were in any."""
    removed: set[int] = set()
    own = (terms.c.tenant == tenant, terms.c.scope == scope)
    for block in sorted({number // NUMBERS_PER_BLOCK for number in numbers}):
        in_block = [number for number in numbers if number // NUMBERS_PER_BLOCK == block]
        offsets = {number % NUMBERS_PER_BLOCK for number in in_block}
        for term, postings in connection.execute(
            select(terms.c.term, terms.c.postings).where(*own, terms.c.block == block)
        ).all():
            found = {int.from_bytes(postings[at : at + 2], "little") for at in range(0, len(postings), POSTING_BYTES)}
            if found.isdisjoint(offsets):
                continue
            removed |= {block * NUMBERS_PER_BLOCK + offset for offset in found & offsets}
            row = (*own, terms.c.block == block, terms.c.term == term)
            remaining = remove_postings(postings, found & offsets)
            if remaining:
                connection.execute(update(terms).where(*row).values(postings=remaining))
            else:
                connection.execute(delete(terms).where(*row))
    return len(removed)


def split_chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """Splits items into lists that are short enough for one statement."""
    iterator = iter(items)
    while chunk := list(islice(iterator, _ROWS_PER_STATEMENT)):
        yield chunk
