"""Postings: three bytes a passage, and the order that they give is BM25's."""

import math

from hypothesis import given
from hypothesis import strategies as st

from quire.log.postings import BLOCK, Row, postings, rank, without

NUMBERS = st.integers(0, 3 * BLOCK)
COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1)
PASSAGES = st.dictionaries(NUMBERS, COUNTS, min_size=1, max_size=30)


def rows(passages: dict[int, dict[str, int]], asked: str, *, scope: str = "s") -> list[Row]:
    return [
        Row(scope, word, block, places) for (block, word), places in postings(passages.items()).items() if word in asked
    ]


def bm25(passages: dict[int, dict[str, int]], asked: str) -> dict[int, float]:
    """The textbook's, with the usual length in place of the average."""
    having = {word: sum(word in counts for counts in passages.values()) for word in asked}
    scores = {
        number: sum(
            math.log(1 + (len(passages) - having[word] + 0.5) / (having[word] + 0.5))
            * counts[word]
            / (counts[word] + 1.2 * (0.4 + 0.6 * sum(counts.values()) / 60))
            for word in asked
            if word in counts
        )
        for number, counts in passages.items()
    }
    return {number: score for number, score in scores.items() if score}


@given(PASSAGES, st.text("abcdef", min_size=1, max_size=4).map(lambda asked: "".join(sorted(set(asked)))))
def test_the_order_is_that_of_bm25(passages: dict[int, dict[str, int]], asked: str):
    expected = bm25(passages, asked)
    found = rank(rows(passages, asked), passages=len(passages), limit=100)
    assert {each.number for each in found} == set(expected)
    for each in found:
        assert math.isclose(each.score, expected[each.number], abs_tol=0.02 * len(asked))
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    assert rank(rows(passages, asked), passages=len(passages), limit=3) == found[:3]


@given(PASSAGES, st.sets(NUMBERS))
def test_what_is_taken_out_is_as_if_it_had_never_been_there(passages: dict[int, dict[str, int]], gone: set[int]):
    left = {number: counts for number, counts in passages.items() if number not in gone}
    expected = postings(left.items())
    for (block, word), places in postings(passages.items()).items():
        of_block = {number for number in gone if number // BLOCK == block}
        assert without(places, of_block) == expected.get((block, word), b"")


def test_places_of_several_scopes_are_kept_apart():
    found = rank(rows({1: {"a": 1}}, "a", scope="s") + rows({1: {"a": 5}}, "a", scope="t"), passages=9, limit=10)
    assert [(each.scope, each.number) for each in found] == [("t", 1), ("s", 1)]


def test_of_equal_ones_the_earlier_comes_first():
    found = rank(rows({number: {"a": 1} for number in (5_000, 3, 4_000)}, "a"), passages=9, limit=2)
    assert [each.number for each in found] == [3, 4_000]


def test_nothing_asked_finds_nothing():
    assert rank([], passages=0, limit=10) == []
