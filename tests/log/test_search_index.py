"""The search index: its rows match the passages after any changes, and are deleted with them."""

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.builders import property_settings
from quire.index.types import Passage
from quire.index.vectors import pack_vector
from quire.search.postings import NUMBERS_PER_BLOCK, POSTING_BYTES, build_postings
from quire.search.tokenizer import count_terms
from quire.store import SqlStore

pytestmark = pytest.mark.every_database

WORDS = ["otter", "heron", "badger", "fox", "river"]
SCOPE = "vault:v"


def fetch_rows(admin_url: str, statement: str) -> list[tuple[Any, ...]]:
    if admin_url.startswith("sqlite"):
        with closing(sqlite3.connect(admin_url.removeprefix("sqlite:///"))) as connection:
            return connection.execute(statement).fetchall()
    with psycopg.connect(admin_url) as connection:
        return connection.execute(statement).fetchall()


def make_passage(key: int, text: str) -> Passage:
    return Passage(str(key), text, embedder="e", vector=pack_vector([1.0, float(key)]))


async def check_index_matches_passages(store: SqlStore, admin_url: str) -> None:
    """Checks that the index equals one built from the stored passages."""
    stored = fetch_rows(admin_url, "SELECT number, text FROM quire_passages")
    expected = build_postings((number, [count_terms(text)]) for number, text in stored)

    def split(postings: bytes) -> list[bytes]:
        return sorted(postings[start : start + POSTING_BYTES] for start in range(0, len(postings), POSTING_BYTES))

    found = {
        (block, term): split(bytes(postings))
        for term, block, postings in fetch_rows(admin_url, "SELECT term, block, postings FROM quire_terms")
        if not term.startswith("vector:")
    }
    assert found == {key: split(data) for key, data in expected.items()}


@property_settings
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 4), st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)), max_size=8
    )
)
async def test_the_index_is_what_the_passages_make_it(store: SqlStore, admin_url: str, changes: list[tuple[int, str]]):
    for key, text in changes:
        if text:
            await store.passages.put(SCOPE, [make_passage(key, text)])
        else:
            await store.passages.delete(SCOPE, [str(key)])
    await check_index_matches_passages(store, admin_url)
    await store.passages.delete(SCOPE, [str(key) for key in range(5)])
    assert fetch_rows(admin_url, "SELECT * FROM quire_terms") == []
    assert fetch_rows(admin_url, "SELECT * FROM quire_passages") == []


async def test_concurrent_writers_do_not_corrupt_the_index(store: SqlStore, admin_url: str):
    writers = (
        store.passages.put(SCOPE, [make_passage(number % 7, f"{WORDS[number % 5]} {number}")]) for number in range(40)
    )
    await asyncio.gather(*writers)
    await check_index_matches_passages(store, admin_url)


async def test_a_scope_of_several_blocks_is_one(store: SqlStore):
    await store.passages.put(
        SCOPE, [Passage(str(number), f"otter {number}") for number in range(NUMBERS_PER_BLOCK + 50)]
    )
    for number in (0, NUMBERS_PER_BLOCK - 1, NUMBERS_PER_BLOCK, NUMBERS_PER_BLOCK + 49):
        [hit, *_] = await store.passages.search(f"otter {number}", scopes=[SCOPE])
        assert hit.key == str(number)
    assert (
        len(await store.passages.search("otter", scopes=[SCOPE], limit=2 * NUMBERS_PER_BLOCK)) == NUMBERS_PER_BLOCK + 50
    )


async def test_naming_a_scope_twice_changes_nothing(store: SqlStore):
    await store.passages.put(SCOPE, [make_passage(number, word) for number, word in enumerate(WORDS)])
    for options in ({}, {"vector": [1.0, 0.0], "embedder": "e"}):
        once = await store.passages.search("otter heron", scopes=[SCOPE], **options)
        assert await store.passages.search("otter heron", scopes=[SCOPE, SCOPE], **options) == once
