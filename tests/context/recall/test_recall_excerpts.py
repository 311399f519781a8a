"""Which pieces of a long message are shown: those with the question's terms, in their order, inside the text."""

from hypothesis import given
from hypothesis import strategies as st

from quire.context.recall.excerpts import pieces

FILLER = "The weather was grey and the train was late again. " * 40


def test_the_passages_with_the_questions_terms_are_shown():
    text = f"{FILLER}The vault code is 4711. {FILLER}The vault door is green. {FILLER}"
    shown = [text[start:end] for start, end in pieces(text, "What is the vault code?")]
    assert any("The vault code is 4711." in piece for piece in shown)
    assert any("The vault door is green." in piece for piece in shown)
    assert sum(map(len, shown)) < len(text) / 4


def test_without_any_term_it_begins_at_the_beginning():
    assert pieces(FILLER, "Elephants?")[0][0] == 0


def test_neighbouring_pieces_are_one():
    text = "alpha beta gamma. " * 40
    [(start, end)] = pieces(text, "alpha")
    assert (start, end) == (0, end)


@given(st.text(max_size=2_000), st.text(max_size=60))
def test_pieces_stand_in_order_inside_the_text(text: str, question: str):
    at = 0
    for start, end in pieces(text, question):
        assert at <= start < end <= len(text)
        at = end
