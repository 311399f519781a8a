"""The passages that a search can find, and the rows that say in which of them a word stands.

Whoever changes a scope holds its row in `quire_scopes` first: then passages and words are in step at every commit.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, select, update

from quire.errors import InvalidEntry
from quire.log import schema, terms, vectors
from quire.log.dialects import insert_new, insert_rows
from quire.log.found import Embedded, Passage, Unembedded
from quire.log.postings import BLOCK, postings, without
from quire.log.schema import passages, scopes
from quire.log.terms import Place, chunked
from quire.log.words import storable, words

# A title says what its passage is about.
_TITLE_COUNTS = 2


class _Stored(NamedTuple):
    key: str
    part: int
    number: int
    title: str
    text: str
    digest: bytes
    at: int | None
    embedder: str | None

    def same_as(self, passage: Passage) -> bool:
        """Nothing is to be written; a vector that is there already is kept where none is given."""
        known = (self.digest, self.at) == (passage.digest, passage.at)
        return known and passage.embedder in (None, self.embedder)


_STORED = select(*(passages.c[name] for name in _Stored._fields)).where(
    passages.c.tenant == bindparam("tenant"), passages.c.scope == bindparam("scope")
)


def put(
    connection: Connection, tenant: str, scope: str, given: Iterable[Passage], *, replacing: Collection[str] = ()
) -> None:
    """Stores these passages in place of all that their keys, and those in `replacing`, had before."""
    wanted = _by_place(given)
    keys = {key for key, _ in wanted} | set(replacing)
    following, count = _hold(connection, tenant, scope)
    stored = _stored(connection, tenant, scope, keys)
    gone = [old for old in stored if not _stays(old, wanted)]
    kept = {(old.key, old.part) for old in stored if _stays(old, wanted)}
    fresh = [passage for place, passage in wanted.items() if place not in kept]
    _remove(connection, tenant, scope, gone)
    _insert(connection, tenant, scope, fresh, first=following)
    _release(connection, tenant, scope, following + len(fresh), count + len(fresh) - len(gone))


def drop(connection: Connection, tenant: str, scope: str, keys: Collection[str]) -> None:
    """These keys have no passages any more."""
    if keys and _known(connection, tenant, scope):
        put(connection, tenant, scope, (), replacing=keys)


def drop_scope(connection: Connection, tenant: str, scope: str) -> None:
    """Nothing of the scope can be found any more."""
    if not _known(connection, tenant, scope):
        return
    _hold(connection, tenant, scope)
    for table in (schema.terms, passages, scopes):
        connection.execute(delete(table).where(table.c.tenant == tenant, table.c.scope == scope))


def get(connection: Connection, tenant: str, scope: str, key: str) -> list[Passage]:
    """The passages under a key, in the order of their parts. Vectors are for searching and not read back."""
    found = _stored(connection, tenant, scope, [key])
    return [
        Passage(old.key, old.text, old.part, old.title, old.at, old.embedder)
        for old in sorted(found, key=lambda old: old.part)
    ]


def unembedded(connection: Connection, tenant: str, scope: str, *, embedder: str, limit: int) -> list[Unembedded]:
    """Passages that have no vector of this embedder: those without any first, then those of another."""
    named = passages.c.embedder
    found: list[Unembedded] = []
    # Each is a range of one index: those that have theirs are never read.
    for lacking in (named.is_(None), named < embedder, named > embedder):
        if len(found) < limit:
            wanted = (
                select(*(passages.c[name] for name in Unembedded._fields))
                .where(passages.c.tenant == tenant, passages.c.scope == scope, lacking)
                .order_by(named, passages.c.number)
                .limit(limit - len(found))
            )
            found.extend(Unembedded._make(row) for row in connection.execute(wanted))
    return found


def put_vectors(
    connection: Connection, tenant: str, scope: str, embedded: Sequence[Embedded], *, embedder: str
) -> None:
    """Gives passages their vectors, unless their text has changed or gone since it was read."""
    if not embedded:
        return
    _hold(connection, tenant, scope)
    made = {(each.key, each.part, each.digest): each.vector for each in embedded}
    stored = _stored(connection, tenant, scope, {each.key for each in embedded})
    matched = [old for old in stored if (old.key, old.part, old.digest) in made]
    vectors.remove(connection, tenant, scope, [(old.number, old.embedder) for old in matched])
    fresh = [(old.number, made[old.key, old.part, old.digest]) for old in matched]
    vectors.add(connection, tenant, scope, fresh, embedder=embedder)
    for some in chunked(number for number, _ in fresh):
        mine = (passages.c.tenant == tenant, passages.c.scope == scope, passages.c.number.in_(some))
        connection.execute(update(passages).where(*mine).values(embedder=embedder))


def _by_place(given: Iterable[Passage]) -> dict[tuple[str, int], Passage]:
    placed: dict[tuple[str, int], Passage] = {}
    for passage in given:
        if (passage.embedder is None) != (passage.vector is None):
            raise InvalidEntry(f"The passage {passage.key!r} needs an embedder and its vector together, or neither.")
        place = passage.key, passage.part
        if place in placed:
            raise InvalidEntry(f"Part {passage.part} of {passage.key!r} is given twice; number the parts of a key.")
        placed[place] = passage._replace(text=storable(passage.text), title=storable(passage.title))
    return placed


def _stays(old: _Stored, wanted: dict[tuple[str, int], Passage]) -> bool:
    new = wanted.get((old.key, old.part))
    return new is not None and old.same_as(new)


def _known(connection: Connection, tenant: str, scope: str) -> bool:
    wanted = select(scopes.c.next).where(scopes.c.tenant == tenant, scopes.c.scope == scope)
    return connection.execute(wanted).first() is not None


def _hold(connection: Connection, tenant: str, scope: str) -> tuple[int, int]:
    """The next number of the scope and how many passages it has; nobody else changes it before the commit."""
    made = {"tenant": tenant, "scope": scope, "next": 0, "passages": 0}
    connection.execute(insert_new(connection, scopes), made)
    mine = select(scopes.c.next, scopes.c.passages).where(scopes.c.tenant == tenant, scopes.c.scope == scope)
    held = connection.execute(mine.with_for_update()).first()
    # None where a purge has just dropped the whole scope.
    return (held.next, held.passages) if held is not None else _hold(connection, tenant, scope)


def _release(connection: Connection, tenant: str, scope: str, following: int, count: int) -> None:
    mine = (scopes.c.tenant == tenant, scopes.c.scope == scope)
    connection.execute(update(scopes).where(*mine).values(next=following, passages=count))


def _stored(connection: Connection, tenant: str, scope: str, keys: Collection[str]) -> list[_Stored]:
    known = {"tenant": tenant, "scope": scope}
    return [
        _Stored._make(row)
        for some in chunked(keys)
        for row in connection.execute(_STORED.where(passages.c.key.in_(some)), known)
    ]


def _insert(connection: Connection, tenant: str, scope: str, fresh: Sequence[Passage], *, first: int) -> None:
    if not fresh:
        return
    rows = [
        {
            "tenant": tenant,
            "scope": scope,
            "key": passage.key,
            "part": passage.part,
            "number": number,
            "title": passage.title,
            "text": passage.text,
            "digest": passage.digest,
            "at": passage.at,
            "embedder": passage.embedder,
        }
        for number, passage in enumerate(fresh, start=first)
    ]
    insert_rows(connection, passages, rows)
    numbered = [(number, passage) for number, passage in enumerate(fresh, start=first)]
    terms.add(
        connection, tenant, scope, postings((number, _counts(each.title, each.text)) for number, each in numbered)
    )
    by_embedder: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for number, passage in numbered:
        if passage.embedder is not None and passage.vector is not None:
            by_embedder[passage.embedder].append((number, passage.vector))
    for embedder, given in by_embedder.items():
        vectors.add(connection, tenant, scope, given, embedder=embedder)


def _counts(title: str, text: str) -> dict[str, int]:
    counts = words(text)
    for word, count in words(title).items():
        counts[word] += _TITLE_COUNTS * count
    return counts


def _remove(connection: Connection, tenant: str, scope: str, gone: Sequence[_Stored]) -> None:
    having: defaultdict[Place, set[int]] = defaultdict(set)
    for old in gone:
        for word in _counts(old.title, old.text):
            having[old.number // BLOCK, word].add(old.number)
    terms.take_out(connection, tenant, scope, having, without=without)
    vectors.remove(connection, tenant, scope, [(old.number, old.embedder) for old in gone])
    for some in chunked([old.number for old in gone]):
        mine = (passages.c.tenant == tenant, passages.c.scope == scope, passages.c.number.in_(some))
        connection.execute(delete(passages).where(*mine))
