"""Excerpts of a long message: the passages with the query's terms, in order, inside the text."""

from hypothesis import given
from hypothesis import strategies as st

from quire.search.passages import find_excerpts

FILLER = "The weather was grey and the train was late again. " * 40


def test_the_passages_with_the_questions_terms_are_the_excerpts():
    text = f"{FILLER}The vault code is 4711. {FILLER}The vault door is green. {FILLER}"
    excerpts = [text[start:end] for start, end in find_excerpts(text, "What is the vault code?")]
    assert any("The vault code is 4711." in excerpt for excerpt in excerpts)
    assert any("The vault door is green." in excerpt for excerpt in excerpts)
    assert sum(map(len, excerpts)) < len(text) / 4


def test_without_any_term_it_begins_at_the_beginning():
    assert find_excerpts(FILLER, "Elephants?")[0][0] == 0


def test_adjacent_passages_are_merged():
    text = "alpha beta gamma. " * 40
    [(start, end)] = find_excerpts(text, "alpha")
    assert (start, end) == (0, end)


@given(st.text(max_size=2_000), st.text(max_size=60))
def test_excerpts_are_in_order_inside_the_text(text: str, question: str):
    at = 0
    for start, end in find_excerpts(text, question):
        assert at <= start < end <= len(text)
        at = end
