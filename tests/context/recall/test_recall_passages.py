"""Passages: nothing of a message is lost by cutting it, and no piece is long."""

from hypothesis import given
from hypothesis import strategies as st

from quire.context.recall.passages import READ_CHARACTERS, passages


def test_a_short_message_is_one_passage():
    assert passages("I went hiking. It rained!") == ["I went hiking. It rained!"]


def test_an_empty_message_is_one_empty_passage():
    assert passages("") == [""]


def test_a_long_message_is_cut_between_its_sentences():
    sentence = "We talked about the garden and about what grows in it."
    pieces = passages(" ".join([sentence] * 30))
    assert len(pieces) > 3
    assert all(piece.replace(sentence, "").strip() == "" for piece in pieces)


def test_what_has_no_sentences_is_cut_as_well():
    pieces = passages("x" * 10_000)
    assert "".join(pieces) == "x" * 10_000
    assert max(map(len, pieces)) <= 720


def test_of_a_very_long_message_head_and_tail_are_read():
    text = f"begin {'word ' * READ_CHARACTERS} end"
    pieces = passages(text)
    assert pieces[0].startswith("begin")
    assert pieces[-1].endswith("end")
    assert sum(map(len, pieces)) <= READ_CHARACTERS + 1


@given(st.lists(st.sampled_from(["word", "End.", "Why?\n", "\n\n", "a, b", "。", "x" * 900])).map(" ".join) | st.text())
def test_every_character_but_spaces_is_in_a_passage_in_order(text: str):
    assert "".join("".join(passages(text)).split()) == "".join(text.split())
