"""Passages: splitting loses nothing, and every passage is short."""

from hypothesis import given
from hypothesis import strategies as st

from quire.search.passages import MAX_RANKED_PASSAGES, MAX_WHOLE_PASSAGES, group_passages, split_passages


def test_a_short_message_is_one_passage():
    assert split_passages("I went hiking. It rained!") == ["I went hiking. It rained!"]


def test_an_empty_message_is_one_empty_passage():
    assert split_passages("") == [""]


def test_a_long_message_is_cut_between_its_sentences():
    sentence = "We talked about the garden and about what grows in it."
    passages = split_passages(" ".join([sentence] * 30))
    assert len(passages) > 3
    assert all(passage.replace(sentence, "").strip() == "" for passage in passages)


def test_what_has_no_sentences_is_cut_as_well():
    passages = split_passages("x" * 10_000)
    assert "".join(passages) == "x" * 10_000
    assert max(map(len, passages)) <= 720


def test_all_of_a_very_long_message_is_read():
    text = f"begin {'word ' * 200_000} end"
    assert "".join(split_passages(text)) == text


@given(st.integers(1, 200_000))
def test_a_search_ranks_every_passage_and_at_most_255_groups_of_neighbors(count: int):
    groups = group_passages(count)
    ranked = [number for first, end in groups for number in range(first, end)]
    assert ranked == list(range(count if count > MAX_WHOLE_PASSAGES else 0))
    assert len(groups) <= MAX_RANKED_PASSAGES


@given(st.lists(st.sampled_from(["word", "End.", "Why?\n", "\n\n", "a, b", "。", "x" * 900])).map(" ".join) | st.text())
def test_every_character_but_spaces_is_in_a_passage_in_order(text: str):
    assert "".join("".join(split_passages(text)).split()) == "".join(text.split())
