"""Searchable passages, written together with their rows in the inverted index.

A writer first locks the scope's row in `quire_search_scopes`, so passages and index agree at every commit.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, select, update

from quire.errors import InvalidEntry
from quire.log.dialects import insert_rows, sanitize_text
from quire.log.raw_sql import yield_to_event_loop
from quire.log.schema import passages
from quire.log.search import inverted_index, vectors
from quire.log.search.inverted_index import split_chunks
from quire.log.search.scopes import has_scope, lock_scope, update_scope
from quire.log.search_types import Passage, PassageVector, UnembeddedPassage
from quire.search.postings import NUMBERS_PER_BLOCK, IndexRowKey, build_postings, remove_postings

_TITLE_WEIGHT = 2
"""A word in the title counts as this many words of the text."""
MAX_UNINTERRUPTED_CHARS = 20_000
"""Characters whose terms are counted before other tasks run."""


class _StoredPassage(NamedTuple):
    key: str
    part: int
    number: int
    title: str
    text: str
    digest: bytes
    at: int | None
    embedder: str | None

    def is_same_as(self, passage: Passage) -> bool:
        """Whether nothing needs to be written; a passage without a vector does not remove a stored one."""
        stored = Passage(self.key, self.text, self.part, self.title, self.at)
        return stored.digest == self.digest == passage.digest and passage.embedder in (None, self.embedder)


_STORED_PASSAGES = select(*(passages.c[name] for name in _StoredPassage._fields)).where(
    passages.c.tenant == bindparam("tenant"), passages.c.scope == bindparam("scope")
)


def put_passages(
    connection: Connection, tenant: str, scope: str, items: Iterable[Passage], *, replacing: Collection[str] = ()
) -> None:
    """Stores these passages, replacing all former passages of their keys and of the keys in `replacing`."""
    new = _index_by_key(items)
    keys = {key for key, _ in new} | set(replacing)
    locked = lock_scope(connection, tenant, scope)
    stored = _read_stored(connection, tenant, scope, keys)
    removed = [old for old in stored if not _is_unchanged(old, new)]
    unchanged = {(old.key, old.part) for old in stored if _is_unchanged(old, new)}
    added = [passage for key_part, passage in new.items() if key_part not in unchanged]
    _remove_passages(connection, tenant, scope, removed)
    _insert_passages(connection, tenant, scope, added, first=locked.next_number)
    changed = locked._replace(
        next_number=locked.next_number + len(added), passage_count=locked.passage_count + len(added) - len(removed)
    )
    update_scope(connection, tenant, changed)


def delete_passages(connection: Connection, tenant: str, scope: str, keys: Collection[str]) -> None:
    """Deletes the passages of these keys."""
    if keys and has_scope(connection, tenant, scope):
        put_passages(connection, tenant, scope, (), replacing=keys)


def get_passages(connection: Connection, tenant: str, scope: str, key: str) -> list[Passage]:
    """The passages of a key, by part, without their vectors."""
    stored = _read_stored(connection, tenant, scope, [key])
    return [
        Passage(old.key, old.text, old.part, old.title, old.at, old.embedder)
        for old in sorted(stored, key=lambda old: old.part)
    ]


def list_unembedded(
    connection: Connection, tenant: str, scope: str, *, embedder: str, limit: int
) -> list[UnembeddedPassage]:
    """Passages without a vector of this embedder: first those without any, then those of another embedder."""
    stored = passages.c.embedder
    result: list[UnembeddedPassage] = []
    # Each condition is a range of one index, so passages with a vector are never read.
    for lacking in (stored.is_(None), stored < embedder, stored > embedder):
        if len(result) < limit:
            query = (
                select(*(passages.c[name] for name in UnembeddedPassage._fields))
                .where(passages.c.tenant == tenant, passages.c.scope == scope, lacking)
                .order_by(stored, passages.c.number)
                .limit(limit - len(result))
            )
            result.extend(UnembeddedPassage._make(row) for row in connection.execute(query))
    return result


def put_vectors(
    connection: Connection, tenant: str, scope: str, passage_vectors: Sequence[PassageVector], *, embedder: str
) -> None:
    """Stores the vectors of passages, except of those whose text was changed or deleted since it was read."""
    if not passage_vectors:
        return
    lock_scope(connection, tenant, scope)
    by_passage = {(each.key, each.part, each.digest): each.vector for each in passage_vectors}
    stored = _read_stored(connection, tenant, scope, {each.key for each in passage_vectors})
    matched = [old for old in stored if (old.key, old.part, old.digest) in by_passage]
    vectors.remove_vectors(connection, tenant, scope, [(old.number, old.embedder) for old in matched])
    numbered = [(old.number, by_passage[old.key, old.part, old.digest]) for old in matched]
    vectors.add_vectors(connection, tenant, scope, numbered, embedder=embedder)
    for chunk in split_chunks(number for number, _ in numbered):
        rows = (passages.c.tenant == tenant, passages.c.scope == scope, passages.c.number.in_(chunk))
        connection.execute(update(passages).where(*rows).values(embedder=embedder))


def _index_by_key(items: Iterable[Passage]) -> dict[tuple[str, int], Passage]:
    by_key: dict[tuple[str, int], Passage] = {}
    for passage in items:
        if (passage.embedder is None) != (passage.vector is None):
            raise InvalidEntry(f"The passage {passage.key!r} must have both an embedder and a vector, or neither.")
        key_part = passage.key, passage.part
        if key_part in by_key:
            raise InvalidEntry(f"Part {passage.part} of {passage.key!r} is given twice; number the parts of a key.")
        by_key[key_part] = passage._replace(text=sanitize_text(passage.text), title=sanitize_text(passage.title))
    return by_key


def _is_unchanged(old: _StoredPassage, new: dict[tuple[str, int], Passage]) -> bool:
    passage = new.get((old.key, old.part))
    return passage is not None and old.is_same_as(passage)


def _read_stored(connection: Connection, tenant: str, scope: str, keys: Collection[str]) -> list[_StoredPassage]:
    params = {"tenant": tenant, "scope": scope}
    return [
        _StoredPassage._make(row)
        for chunk in split_chunks(keys)
        for row in connection.execute(_STORED_PASSAGES.where(passages.c.key.in_(chunk)), params)
    ]


def _insert_passages(connection: Connection, tenant: str, scope: str, new: Sequence[Passage], *, first: int) -> None:
    if not new:
        return
    numbered = list(enumerate(new, start=first))
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
        for number, passage in numbered
    ]
    insert_rows(connection, passages, rows)
    inverted_index.append_index_rows(
        connection,
        tenant,
        scope,
        build_postings(_count_terms_by_number(connection, numbered)),
    )
    by_embedder: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for number, passage in numbered:
        if passage.embedder is not None and passage.vector is not None:
            by_embedder[passage.embedder].append((number, passage.vector))
    for embedder, numbered_vectors in by_embedder.items():
        vectors.add_vectors(connection, tenant, scope, numbered_vectors, embedder=embedder)


def _count_terms_by_number(
    connection: Connection, numbered: Sequence[tuple[int, Passage]]
) -> Iterator[tuple[int, dict[str, int]]]:
    """Counts the terms of each passage, and lets other tasks run after `MAX_UNINTERRUPTED_CHARS`."""
    uninterrupted = 0
    for number, passage in numbered:
        yield number, _count_weighted_terms(passage.title, passage.text)
        uninterrupted += len(passage.text)
        if uninterrupted > MAX_UNINTERRUPTED_CHARS:
            uninterrupted = 0
            yield_to_event_loop(connection)


def _count_weighted_terms(title: str, text: str) -> dict[str, int]:
    from quire.search.tokenizer import count_terms

    counts = count_terms(text)
    for term, count in count_terms(title).items():
        counts[term] += _TITLE_WEIGHT * count
    return counts


def _remove_passages(connection: Connection, tenant: str, scope: str, removed: Sequence[_StoredPassage]) -> None:
    numbers_by_row: defaultdict[IndexRowKey, set[int]] = defaultdict(set)
    for old in removed:
        for term in _count_weighted_terms(old.title, old.text):
            numbers_by_row[old.number // NUMBERS_PER_BLOCK, term].add(old.number)
    inverted_index.remove_from_index_rows(connection, tenant, scope, numbers_by_row, remove_numbers=remove_postings)
    vectors.remove_vectors(connection, tenant, scope, [(old.number, old.embedder) for old in removed])
    for chunk in split_chunks([old.number for old in removed]):
        rows = (passages.c.tenant == tenant, passages.c.scope == scope, passages.c.number.in_(chunk))
        connection.execute(delete(passages).where(*rows))
