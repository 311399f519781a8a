"""The rows of the index: postings of words, and blocks of vectors. Whoever changes them holds the scope's row."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from sqlalchemy import Connection, bindparam, delete, select, update

from quire.log.dialects import append_bytes
from quire.log.schema import terms

T = TypeVar("T")
Place = tuple[int, str]
"""A block and a term: one row."""

_CHUNK = 500


def add(connection: Connection, tenant: str, scope: str, added: Mapping[Place, bytes]) -> None:
    """Makes these rows longer, or makes them."""
    rows = [
        {"tenant": tenant, "scope": scope, "term": term, "block": block, "places": places}
        for (block, term), places in sorted(added.items())
    ]
    if rows:
        append_bytes(connection, terms, rows, "places")


def take_out(
    connection: Connection,
    tenant: str,
    scope: str,
    gone: Mapping[Place, Collection[int]],
    *,
    without: Callable[[bytes, Collection[int]], bytes],
) -> None:
    """Makes rows shorter by these numbers; a row with nothing left goes."""
    by_block: dict[int, dict[str, Collection[int]]] = {}
    for (block, term), numbers in gone.items():
        by_block.setdefault(block, {})[term] = numbers
    for block, having in by_block.items():
        mine = (terms.c.tenant == tenant, terms.c.scope == scope, terms.c.block == block)
        left: dict[str, bytes] = {}
        for some in chunked(having):
            rows = connection.execute(select(terms.c.term, terms.c.places).where(*mine, terms.c.term.in_(some)))
            left.update((row.term, without(row.places, having[row.term])) for row in rows)
        for some in chunked(term for term, places in left.items() if not places):
            connection.execute(delete(terms).where(*mine, terms.c.term.in_(some)))
        shorter = [{"of_term": term, "places": places} for term, places in left.items() if places]
        if shorter:
            changed = update(terms).where(*mine, terms.c.term == bindparam("of_term"))
            connection.execute(changed.values(places=bindparam("places")), shorter)


def chunked(items: Iterable[T]) -> Iterator[list[T]]:
    """Few enough at a time for one statement."""
    rest = iter(items)
    while some := list(islice(rest, _CHUNK)):
        yield some
