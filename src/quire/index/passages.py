"""Searchable passages, written together with their rows in the inverted index, and the hybrid search in them.

A writer first locks the scope's row in `quire_search_scopes`, so passages and index agree at every commit. A search
ranks them by words and by vectors, as a list of messages is (`quire.search.ranker`). A query is any text: it is parsed
like a question, so it has no syntax.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, bindparam, delete, or_, select, update

from quire.db.dialects import insert_rows, sanitize_text
from quire.db.raw_sql import yield_to_event_loop
from quire.db.schema import passages, search_scopes, terms
from quire.db.store_part import StorePart, read, read_bulk, write, write_bulk
from quire.errors import InvalidEntry
from quire.index import inverted_index, vectors
from quire.index.inverted_index import has_scope, lock_scope, split_chunks, update_scope
from quire.index.types import Passage, PassageVector, SearchHit, UnembeddedPassage, memory_scope, messages_scope
from quire.log.tenant_masker import mask_text
from quire.search.postings import (
    NUMBERS_PER_BLOCK,
    BlockPostings,
    IndexRowKey,
    build_postings,
    inverse_document_frequency,
    read_word,
    remove_postings,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from quire.search.query import QueryWord
    from quire.search.vectors import FloatArray

_TITLE_WEIGHT = 2
"""A word in the title counts as this many words of the text."""
MAX_UNINTERRUPTED_CHARS = 20_000
"""Characters whose terms are counted before other tasks run."""
MIN_CANDIDATES = 60
"""Passages by words, and as many by similarity, that a search for a few hits ranks."""
PassageKey = tuple[str, int]
"""Scope and passage number."""


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
        """Whether nothing needs to be written. A passage without a vector does not remove a stored one."""
        stored = Passage(self.key, self.text, self.part, self.title, self.at)
        return stored.digest == self.digest == passage.digest and passage.embedder in (None, self.embedder)


_STORED_PASSAGES = select(*(passages.c[name] for name in _StoredPassage._fields)).where(
    passages.c.tenant == bindparam("tenant"), passages.c.scope == bindparam("scope")
)
_PASSAGE_COUNT = select(search_scopes.c.passage_count).where(
    search_scopes.c.tenant == bindparam("tenant"), search_scopes.c.scope == bindparam("scope")
)
# One scope per statement: with a list of scopes PostgreSQL could not prune partitions.
_POSTINGS = select(terms.c.term, terms.c.block, terms.c.postings).where(
    terms.c.tenant == bindparam("tenant"),
    terms.c.scope == bindparam("scope"),
    terms.c.term.in_(bindparam("query_terms", expanding=True)),
)
_HITS = select(
    passages.c.number,
    passages.c.key,
    passages.c.part,
    passages.c.title,
    passages.c.text,
    passages.c.at,
    passages.c.digest,
).where(
    passages.c.tenant == bindparam("tenant"),
    passages.c.scope == bindparam("scope"),
    passages.c.number.in_(bindparam("numbers", expanding=True)),
)


def put_passages(
    connection: Connection, tenant: str, scope: str, items: Collection[Passage], *, replacing: Collection[str] = ()
) -> None:
    """Stores these passages, replacing all former passages of their keys and of the keys in `replacing`."""
    # Only operations that check for purged text may write these scopes, so that no purged text comes back.
    for prefix, method in ((messages_scope(""), "message_index.put_segments"), (memory_scope(""), "memories.add")):
        if scope.startswith(prefix):
            raise InvalidEntry(f"The passages of {scope!r} are written by `{method}`, which checks for purges; use it.")
    write_passages(connection, tenant, scope, items, replacing=replacing)


def write_passages(
    connection: Connection, tenant: str, scope: str, items: Collection[Passage], *, replacing: Collection[str] = ()
) -> None:
    """Like `put_passages`, for every scope."""
    new = _index_by_key(connection, items)
    keys = {key for key, _ in new} | set(replacing)
    locked = lock_scope(connection, tenant, scope)
    stored = _read_stored(connection, tenant, scope, keys)
    removed = [old for old in stored if not _is_unchanged(old, new)]
    unchanged = {(old.key, old.part) for old in stored if _is_unchanged(old, new)}
    added = [passage for key_part, passage in new.items() if key_part not in unchanged]
    numbers_by_row: defaultdict[IndexRowKey, set[int]] = defaultdict(set)
    for old in removed:
        for term in _count_weighted_terms(old.title, old.text):
            numbers_by_row[old.number // NUMBERS_PER_BLOCK, term].add(old.number)
    inverted_index.remove_from_index_rows(connection, tenant, scope, numbers_by_row, remove_numbers=remove_postings)
    vectors.remove_vectors(connection, tenant, scope, [(old.number, old.embedder) for old in removed])
    for chunk in split_chunks([old.number for old in removed]):
        rows = (passages.c.tenant == tenant, passages.c.scope == scope, passages.c.number.in_(chunk))
        connection.execute(delete(passages).where(*rows))
    _insert_passages(connection, tenant, scope, added, first=locked.next_number)
    changed = locked._replace(
        next_number=locked.next_number + len(added), passage_count=locked.passage_count + len(added) - len(removed)
    )
    update_scope(connection, tenant, changed)


def delete_passages(connection: Connection, tenant: str, scope: str, keys: Collection[str]) -> None:
    """Deletes the passages of these keys."""
    if keys and has_scope(connection, tenant, scope):
        write_passages(connection, tenant, scope, (), replacing=keys)


def get_passages(connection: Connection, tenant: str, scope: str, key: str) -> list[Passage]:
    """The passages of a key, by part, without their vectors."""
    stored = _read_stored(connection, tenant, scope, [key])
    return [
        Passage(old.key, old.text, old.part, old.title, old.at, old.embedder)
        for old in sorted(stored, key=lambda old: old.part)
    ]


def list_unembedded(
    connection: Connection, tenant: str, scope: str, *, embedder: str, limit: int = 500
) -> list[UnembeddedPassage]:
    """Passages without a vector of this embedder: first without any, then with one of another embedder."""
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


def _index_by_key(connection: Connection, items: Iterable[Passage]) -> dict[tuple[str, int], Passage]:
    by_key: dict[tuple[str, int], Passage] = {}
    for passage in items:
        if (passage.embedder is None) != (passage.vector is None):
            raise InvalidEntry(f"The passage {passage.key!r} must have both an embedder and a vector, or neither.")
        key_part = passage.key, passage.part
        if key_part in by_key:
            raise InvalidEntry(f"Part {passage.part} of {passage.key!r} is given twice; number the parts of a key.")
        text, title = (mask_text(connection, each) for each in (passage.text, passage.title))
        by_key[key_part] = passage._replace(text=sanitize_text(text), title=sanitize_text(title))
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
) -> Iterator[tuple[int, list[dict[str, int]]]]:
    """Counts the terms of each passage, and lets other tasks run after `MAX_UNINTERRUPTED_CHARS`."""
    uninterrupted = 0
    for number, passage in numbered:
        yield number, [_count_weighted_terms(passage.title, passage.text)]
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


def list_unembedded_scopes(connection: Connection, tenant: str, *, embedder: str) -> list[str]:
    """Scopes of the tenant's memories with a passage that lacks this embedder's vector."""
    prefix = memory_scope("")
    # The smallest string after all that have the prefix.
    prefix_end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    memory_scopes = select(search_scopes.c.scope).where(
        search_scopes.c.tenant == tenant, search_scopes.c.scope >= prefix, search_scopes.c.scope < prefix_end
    )
    candidates = connection.execute(memory_scopes).scalars().all()
    stored = passages.c.embedder
    lacking = or_(stored.is_(None), stored < embedder, stored > embedder)
    result: list[str] = []
    for scope in candidates:
        query = select(passages.c.number).where(passages.c.tenant == tenant, passages.c.scope == scope, lacking)
        if connection.execute(query.limit(1)).first() is not None:
            result.append(scope)
    return result


def hybrid_search(
    connection: Connection,
    tenant: str,
    query: str,
    *,
    scopes: Sequence[str],
    limit: int = 20,
    vector: ArrayLike | None = None,
    embedder: str | None = None,
) -> list[SearchHit]:
    """The passages of these scopes that match the query, best first. Any text is a valid query.

    With a vector and the name of its embedder, also passages with similar vectors.
    """
    from quire.search.query import MAX_QUERY_WORDS, parse_query

    words = parse_query(query, at=0).words[:MAX_QUERY_WORDS]
    scores: dict[PassageKey, float] = {}
    for scope in dict.fromkeys(scopes):
        own = _score_scope(connection, tenant, scope, words, vector, embedder, depth=max(3 * limit, MIN_CANDIDATES))
        scores |= {(scope, number): score for number, score in own}
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:limit]
    hits: dict[PassageKey, SearchHit] = {}
    for scope in dict.fromkeys(scopes):
        for chunk in split_chunks(number for (owner, number), _ in best if owner == scope):
            for number, *row in connection.execute(_HITS, {"tenant": tenant, "scope": scope, "numbers": chunk}):
                key, part, title, text, at, digest = row
                # A passage that was changed is no hit: requests contain its text.
                if Passage(key, text, part, title, at).digest == digest:
                    hits[scope, number] = SearchHit(scope, key, part, title, text, round(scores[scope, number], 6), at)
    return [hits[key] for key, _ in best if key in hits]


def _score_scope(
    connection: Connection,
    tenant: str,
    scope: str,
    words: Sequence[QueryWord],
    vector: ArrayLike | None,
    embedder: str | None,
    *,
    depth: int,
) -> list[tuple[int, float]]:
    """Numbers and scores of the best passages by words, and of as many by similarity."""
    import numpy as np

    from quire.search.ranker import find_highest, score_for_list

    params = {"tenant": tenant, "scope": scope}
    count = connection.execute(_PASSAGE_COUNT, params).scalar() or 0
    postings: defaultdict[str, list[BlockPostings]] = defaultdict(list)
    query_terms = list({term for word in words for term in word.terms})
    for term, block, data in connection.execute(_POSTINGS, {**params, "query_terms": query_terms}):
        postings[term].append((block, data))
    found, added, total = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.float32)], 0.0
    for word in words:
        matching, by_term = read_word(word.terms, postings)
        idf = word.weight * inverse_document_frequency(matching, total=count)
        total += idf
        found += [each.numbers for each in by_term]
        added += [each.weights * np.float32(idf) for each in by_term]
    numbers, places = np.unique(np.concatenate(found), return_inverse=True)
    shares = np.minimum(np.bincount(places, np.concatenate(added), minlength=len(numbers)) / (total or 1), 1)
    best = find_highest(shares, depth)
    share_by_number: dict[int, float] = dict(zip(numbers[best].tolist(), shares[best].tolist(), strict=True))
    similar: dict[int, float] = {}
    if vector is not None and embedder is not None:
        similar = vectors.find_similar(
            connection, tenant, scope, vector, embedder=embedder, limit=depth, also=share_by_number
        )
    candidates = list(share_by_number | similar)
    signals: dict[str, FloatArray] = {}
    for name, is_used, values in (("match_share", words, share_by_number), ("similarity", similar, similar)):
        if is_used:
            signals[name] = np.array([values.get(number, 0) for number in candidates], dtype=np.float32)
    scores: list[float] = score_for_list(signals).tolist() if candidates else []
    return [(number, score) for number, score in zip(candidates, scores, strict=True) if score > 0]


class Passages(StorePart):
    """Passages, their vectors, and the search in them."""

    search = read(hybrid_search)
    put = write_bulk(put_passages)
    delete = write_bulk(delete_passages)
    get = read(get_passages)
    list_unembedded = read(list_unembedded)
    list_unembedded_scopes = read_bulk(list_unembedded_scopes)
    put_vectors = write(put_vectors)
