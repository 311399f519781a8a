"""The rows behind a search: in step with the passages after any number of changes, and gone when those are gone."""

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.log import Passage, SqlStore, packed
from quire.log.postings import BLOCK, Ranked, postings
from quire.log.search import TEXT_WEIGHT, VECTOR_WEIGHT, fuse
from quire.log.words import words
from quire.testing.given import for_any

WORDS = ["otter", "heron", "badger", "fox", "river"]
SCOPE = "vault:v"


def rows(admin_url: str, statement: str) -> list[tuple[Any, ...]]:
    if admin_url.startswith("sqlite"):
        with closing(sqlite3.connect(admin_url.removeprefix("sqlite:///"))) as connection:
            return connection.execute(statement).fetchall()
    with psycopg.connect(admin_url) as connection:
        return connection.execute(statement).fetchall()


def passage(key: int, text: str) -> Passage:
    return Passage(str(key), text, embedder="e", vector=packed([1.0, float(key)]))


async def check_in_step(store: SqlStore, admin_url: str) -> None:
    """The index is what one made of the passages alone would be."""
    stored = rows(admin_url, "SELECT number, text FROM quire_passages")
    expected = postings((number, words(text)) for number, text in stored)
    found = {
        (block, term): sorted(bytes(places)[start : start + 3] for start in range(0, len(places), 3))
        for term, block, places in rows(admin_url, "SELECT term, block, places FROM quire_terms")
        if not term.startswith("vector:")
    }
    assert found == {
        place: sorted(data[start : start + 3] for start in range(0, len(data), 3)) for place, data in expected.items()
    }
    [(count,)] = rows(admin_url, "SELECT passages FROM quire_scopes") or [(0,)]
    assert count == len(stored)
    packs = rows(admin_url, "SELECT places FROM quire_terms WHERE term LIKE 'vector:%'")
    given_vectors = rows(admin_url, "SELECT count(*) FROM quire_passages WHERE vector IS NOT NULL")[0][0]
    assert given_vectors + sum(len(pack) // 12 for (pack,) in packs) == len(stored)


@pytest.mark.every_backend
@for_any
@given(
    acts=st.lists(st.tuples(st.integers(0, 4), st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)), max_size=8)
)
async def test_the_index_is_what_the_passages_make_it(store: SqlStore, admin_url: str, acts: list[tuple[int, str]]):
    for key, text in acts:
        if text:
            await store.put_passages(SCOPE, [passage(key, text)])
        else:
            await store.drop_passages(SCOPE, [str(key)])
    await check_in_step(store, admin_url)
    await store.drop_passages(SCOPE, [str(key) for key in range(5)])
    assert rows(admin_url, "SELECT * FROM quire_terms") == []
    assert rows(admin_url, "SELECT * FROM quire_passages") == []


async def test_writers_at_once_keep_it_in_step(store: SqlStore, admin_url: str):
    writers = (
        store.put_passages(SCOPE, [passage(number % 7, f"{WORDS[number % 5]} {number}")]) for number in range(40)
    )
    await asyncio.gather(*writers)
    await check_in_step(store, admin_url)


async def test_a_scope_of_several_blocks_is_one(store: SqlStore):
    await store.put_passages(SCOPE, [Passage(str(number), f"otter {number}") for number in range(BLOCK + 50)])
    for number in (0, BLOCK - 1, BLOCK, BLOCK + 49):
        [hit, *_] = await store.search(f"otter {number}", scopes=[SCOPE])
        assert hit.key == str(number)
    assert len(await store.search("otter", scopes=[SCOPE], limit=2 * BLOCK)) == BLOCK + 50


async def test_naming_a_scope_twice_changes_nothing(store: SqlStore):
    await store.put_passages(SCOPE, [passage(number, word) for number, word in enumerate(WORDS)])
    for asked in ({}, {"vector": [1.0, 0.0], "embedder": "e"}):
        once = await store.search("otter heron", scopes=[SCOPE], **asked)
        assert await store.search("otter heron", scopes=[SCOPE, SCOPE], **asked) == once


def test_what_both_ways_find_comes_before_what_one_finds():
    ranked = [
        (TEXT_WEIGHT, [Ranked("s", 1, 9.0), Ranked("s", 2, 8.0)]),
        (VECTOR_WEIGHT, [Ranked("s", 3, 0.9), Ranked("s", 2, 0.8)]),
    ]
    fused = fuse(ranked)
    assert [number for (_, number), _ in fused] == [2, 1, 3]
    # First in one of them alone, each has that one's share.
    assert fused[1][1] == pytest.approx(TEXT_WEIGHT / (TEXT_WEIGHT + VECTOR_WEIGHT))
    assert fused[2][1] == pytest.approx(VECTOR_WEIGHT / (TEXT_WEIGHT + VECTOR_WEIGHT))
