"""The inverted index: postings of four bytes, ranked as BM25 ranks."""

import math
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from quire.search.postings import (
    NUMBERS_PER_BLOCK,
    IndexRowKey,
    build_postings,
    inverse_document_frequency,
    read_word,
    remove_postings,
)

NUMBERS = st.integers(0, 3 * NUMBERS_PER_BLOCK)
COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1)
PASSAGES = st.dictionaries(NUMBERS, COUNTS, min_size=1, max_size=30)


def build_whole(passages: dict[int, dict[str, int]]) -> dict[IndexRowKey, bytes]:
    return build_postings((number, [counts]) for number, counts in passages.items())


def rank(passages: dict[int, dict[str, int]], query: str) -> dict[int, float]:
    """The scores of the passages with a word of the query, as a search adds them up."""
    postings: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for (block, word), data in build_whole(passages).items():
        postings[word].append((block, data))
    scores: defaultdict[int, float] = defaultdict(float)
    for word in query:
        matching, found = read_word([word], postings)
        idf = inverse_document_frequency(matching, total=len(passages))
        for each in found:
            for number, weight in zip(each.numbers.tolist(), each.weights.tolist(), strict=True):
                scores[number] += idf * weight
    return scores


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
def test_the_scores_are_those_of_bm25(passages: dict[int, dict[str, int]], query: str):
    expected = compute_bm25(passages, query)
    found = rank(passages, query)
    assert set(found) == set(expected)
    for number, score in found.items():
        assert math.isclose(score, expected[number], abs_tol=0.02 * len(query))


@given(PASSAGES, st.sets(NUMBERS))
def test_removing_postings_equals_never_adding_them(passages: dict[int, dict[str, int]], removed: set[int]):
    remaining = {number: counts for number, counts in passages.items() if number not in removed}
    expected = build_whole(remaining)
    for (block, word), postings in build_whole(passages).items():
        in_block = {number for number in removed if number // NUMBERS_PER_BLOCK == block}
        assert remove_postings(postings, in_block) == expected.get((block, word), b"")
