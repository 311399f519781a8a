"""Tokenizer: one stem for all forms of a word, and no term for stop words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.context.recall.tokenizer import MAX_WORD_CHARS, deduplicate, split_words, tokenize, tokenize_word


@pytest.mark.parametrize(
    "alike",
    [
        "paint painting painted paints Painted",
        "activity activities",
        "go went gone goes going",
        "buy bought buying buys",
        "child children Children's",
        "plan planning planned plans",
        "sell selling sold",
        "organize organization organizing",
        "educate education educated",
        "hope hoping hoped",
        "box boxes",
        "class classes",
        "café cafe CAFÉ",
        "1,000 1000",
        "18th 18",
        "mom mother moms",
    ],
)
def test_the_forms_of_a_word_are_one_term(alike: str):
    assert len({tokenize_word(word) for word in alike.split()}) == 1
    assert tokenize_word(alike.split()[0]) != ()


@pytest.mark.parametrize("different", ["career car", "sing sin", "bus but busy", "1.5 15", "string strung"])
def test_words_that_only_look_alike_are_different_terms(different: str):
    assert len({tokenize_word(word) for word in different.split()}) == len(different.split())


def test_words_that_say_nothing_are_no_terms():
    assert tokenize("I don't think that we've been there, and you’re not so sure either, are you? O, s!") == tokenize(
        "think sure either"
    )


def test_terms_stand_in_the_order_of_the_text_each_as_often_as_it_occurs():
    assert tokenize("Tea, then cake, then more tea") == ["tea", "cak", "tea"]
    assert deduplicate(tokenize("Tea, then cake, then more tea")) == ["tea", "cak"]


def test_names_in_code_are_cut_where_an_underscore_parts_them():
    assert tokenize("user_id = 7") == ["user", "id", "7"]


def test_where_no_spaces_part_the_words_each_two_characters_are_a_term():
    assert tokenize("東京タワー") == ["東京", "京タ", "タワ", "ワー"]
    assert tokenize("水") == ["水"]
    assert tokenize("GPT東京") == ["gpt", "東京"]


@given(st.text())
def test_any_text_has_terms_that_are_short_and_the_same_each_time(text: str):
    terms = tokenize(text)
    assert terms == tokenize(text)
    assert all(0 < len(term) <= 4 * MAX_WORD_CHARS for term in terms)
    assert all(term == term.lower() for term in terms if term.isascii())


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_case_makes_no_difference(text: str):
    assert tokenize(text.upper()) == tokenize(text.lower())


@given(st.lists(st.sampled_from(["paint", "went", "1,000", "東京", "café"])))
def test_spaces_part_words(words: list[str]):
    assert split_words(" ".join(words)) == words
