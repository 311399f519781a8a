"""Excerpts: what is highlighted is what matched, in any script, and the excerpt is where most terms are."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.search.passages import EXCERPT_CHARS, Excerpt, make_excerpt
from quire.search.tokenizer import tokenize, tokenize_query

WORDS = st.sampled_from(
    ["gannets", "Gannet", "nesting", "the", "cliff", "don't", "1,200", "2nd", "café", "cafe\u0301", "漢字", "漢字仮名",
     "か\u3099く", "ไทย", "Straße", "İstanbul", "ﬁsh", "🦜", "\u200d", "x" * 90, "\x00", "mother's", "…", "\u0301"]
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=400), st.lists(WORDS, max_size=120).map(" ".join), st.lists(WORDS).map("".join))


def mark(excerpt: Excerpt) -> str:
    """The excerpt with brackets around its highlights."""
    text, end = "", 0
    for start, stop in excerpt.highlights:
        text += f"{excerpt.text[end:start]}[{excerpt.text[start:stop]}]"
        end = stop
    return text + excerpt.text[end:]


@pytest.mark.parametrize(
    ("text", "query", "marked"),
    [
        ("The gannets nest on a cliff.", "gannet", "The [gannets] nest on a cliff."),
        ("A Gannet,\n\n  nesting", "nested gannet", "A [Gannet], [nesting]"),
        ("Mother's café", "mothers cafe", "[Mother's] [café]"),
        ("on the 2nd, 1,200 birds", "2 birds 1200", "on the [2nd], [1,200] [birds]"),
        ("the of and", "the of and", "the of and"),
        ("日本語の文章", "日本語", "[日本語]の文章"),
        ("Die Häuser sind nicht alt.", "das alte Haus", "Die [Häuser] sind nicht [alt]."),
        ("テ\u3099ータは", "データ", "[テ\u3099ータ]は"),
        ("nothing alike", "gannet", "nothing alike"),
        ("", "gannet", ""),
    ],
)
def test_the_words_that_matched_are_highlighted(text: str, query: str, marked: str):
    assert mark(make_excerpt(text, tokenize_query(query))) == marked


def test_the_excerpt_is_where_the_most_distinct_terms_are():
    filler = "water flows. " * 60
    text = f"{filler}gannet gannet gannet. {filler}A gannet on the cliff. {filler}gannet"
    excerpt = make_excerpt(text, tokenize_query("gannet cliff"))
    assert "A [gannet] on the [cliff]." in mark(excerpt)
    assert excerpt.text.startswith("…")
    assert excerpt.text.endswith("…")
    # Words before and after the matches are whole.
    assert set(excerpt.text.strip("…").replace(".", "").split()) <= {
        "water",
        "flows",
        "A",
        "gannet",
        "on",
        "the",
        "cliff",
    }


def test_more_occurrences_win_among_as_many_terms_and_then_the_first():
    filler = "water flows. " * 60
    assert mark(make_excerpt(f"one gannet {filler} two gannet gannet", ["gannet"])).endswith("two [gannet] [gannet]")
    assert mark(make_excerpt(f"one gannet {filler} two gannet {filler}", ["gannet"])).startswith("one [gannet]")


def test_a_text_without_a_matching_term_gives_its_beginning():
    excerpt = make_excerpt("The first words. " * 100, ["gannet"])
    assert excerpt.text.startswith("The first words.")
    assert excerpt.highlights == ()


def test_a_word_longer_than_the_excerpt_is_highlighted_as_far_as_it_goes():
    word = "a" * (3 * EXCERPT_CHARS)
    excerpt = make_excerpt(f"before {word} after", tokenize(word))
    assert excerpt.highlights
    assert set(excerpt.text[slice(*excerpt.highlights[0])]) == {"a"}


@given(TEXTS, TEXTS)
@example("か\u3099" * 200, "がが")
@example("x" * 1_000, "x" * 1_000)
def test_highlights_are_ordered_within_a_bounded_excerpt_and_share_the_terms_of_the_query(text: str, query: str):
    terms = set(tokenize_query(query))
    excerpt = make_excerpt(text, terms)
    assert len(excerpt.text) <= EXCERPT_CHARS + 2
    assert "\n" not in excerpt.text
    ends = [0, *(position for span in excerpt.highlights for position in span)]
    assert ends == sorted(ends)
    assert ends[-1] <= len(excerpt.text)
    assert all(start < end for start, end in excerpt.highlights)
    assert "".join(excerpt.text.strip("…").split()) in "".join(text.split()) or "…" in text
    for start, end in excerpt.highlights:
        # The excerpt may cut a word that is longer than itself, and then its terms change.
        assert end - start >= EXCERPT_CHARS - 2 or terms & set(tokenize(excerpt.text[start:end]))


@given(TEXTS, TEXTS)
def test_a_text_that_shares_a_term_has_a_highlight(text: str, query: str):
    terms = set(tokenize_query(query))
    assert bool(make_excerpt(text, terms).highlights) == bool(terms & set(tokenize(" ".join(text.split()))))


@pytest.mark.parametrize("place", [0, 1_000, 19_000, 39_000, 40_001])
def test_the_passage_of_a_long_text_that_has_the_most_terms_is_excerpted(place: int):
    words = ["water"] * 40_000
    words.insert(20_000, "cliff")
    words.insert(place, "gannet on a cliff")
    excerpt = make_excerpt(" ".join(words), ["gannet", "cliff"])
    assert "[gannet] on a [cliff]" in mark(excerpt)
    assert excerpt.text.startswith("…") == (place > 0)
    assert excerpt.text.endswith("…") == (place < 40_001)


@pytest.mark.parametrize("piece", ["gannet ", "漢字", "か\u3099", "x", "\u0301", "a'", "1,", " "])
def test_the_time_is_linear_in_the_length(piece: str):
    def measure(chars: int) -> float:
        text = (piece * chars)[:chars]
        taken: list[float] = []
        for _ in range(3):
            start = time.process_time()
            make_excerpt(text, tokenize(text[:200]))
            taken.append(time.process_time() - start)
        return min(taken)

    # Eight times the text takes eight times as long, where quadratic work would take 64 times as long.
    for chars in (2_000, 40_000):
        assert measure(chars) < 32 * max(measure(chars // 8), 0.000_1)
