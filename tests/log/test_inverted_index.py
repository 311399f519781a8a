"""The inverted index: postings of four bytes, ranked as BM25 ranks."""

import math

from hypothesis import given
from hypothesis import strategies as st

from quire.search.postings import (
    NUMBERS_PER_BLOCK,
    IndexRowKey,
    PostingRow,
    build_postings,
    rank_by_bm25,
    remove_postings,
)

NUMBERS = st.integers(0, 3 * NUMBERS_PER_BLOCK)
COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1)
PASSAGES = st.dictionaries(NUMBERS, COUNTS, min_size=1, max_size=30)


def build_whole(passages: dict[int, dict[str, int]]) -> dict[IndexRowKey, bytes]:
    return build_postings((number, [counts]) for number, counts in passages.items())


def build_rows(passages: dict[int, dict[str, int]], query: str, *, scope: str = "s") -> list[PostingRow]:
    return [
        PostingRow(scope, word, block, postings)
        for (block, word), postings in build_whole(passages).items()
        if word in query
    ]


def compute_bm25(passages: dict[int, dict[str, int]], query: str) -> dict[int, float]:
    """Textbook BM25 with a fixed length of 60 in place of the average."""
    document_counts = {word: sum(word in counts for counts in passages.values()) for word in query}
    scores = {
        number: sum(
            math.log(1 + (len(passages) - document_counts[word] + 0.5) / (document_counts[word] + 0.5))
            * counts[word]
            / (counts[word] + 1.2 * (0.4 + 0.6 * sum(counts.values()) / 60))
            for word in query
            if word in counts
        )
        for number, counts in passages.items()
    }
    return {number: score for number, score in scores.items() if score}


@given(PASSAGES, st.text("abcdef", min_size=1, max_size=4).map(lambda query: "".join(sorted(set(query)))))
def test_the_order_is_that_of_bm25(passages: dict[int, dict[str, int]], query: str):
    expected = compute_bm25(passages, query)
    found = rank_by_bm25(build_rows(passages, query), passage_count=len(passages), limit=100)
    assert {each.number for each in found} == set(expected)
    for each in found:
        assert math.isclose(each.score, expected[each.number], abs_tol=0.02 * len(query))
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    assert rank_by_bm25(build_rows(passages, query), passage_count=len(passages), limit=3) == found[:3]


@given(PASSAGES, st.sets(NUMBERS))
def test_removing_postings_equals_never_adding_them(passages: dict[int, dict[str, int]], removed: set[int]):
    remaining = {number: counts for number, counts in passages.items() if number not in removed}
    expected = build_whole(remaining)
    for (block, word), postings in build_whole(passages).items():
        in_block = {number for number in removed if number // NUMBERS_PER_BLOCK == block}
        assert remove_postings(postings, in_block) == expected.get((block, word), b"")


def test_numbers_of_several_scopes_do_not_mix():
    found = rank_by_bm25(
        build_rows({1: {"a": 1}}, "a", scope="s") + build_rows({1: {"a": 5}}, "a", scope="t"), passage_count=9, limit=10
    )
    assert [(each.scope, each.number) for each in found] == [("t", 1), ("s", 1)]


def test_equal_scores_are_ordered_by_number():
    found = rank_by_bm25(build_rows({number: {"a": 1} for number in (5_000, 3, 4_000)}, "a"), passage_count=9, limit=2)
    assert [each.number for each in found] == [3, 4_000]


def test_an_empty_query_finds_nothing():
    assert rank_by_bm25([], passage_count=0, limit=10) == []
