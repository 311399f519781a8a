"""How text becomes words of the index: what is one word in several forms, what says nothing, what is no word."""

from hashlib import sha256

import pytest
from hypothesis import given

from quire.log.words import LONGEST, STOP_WORDS, storable, words
from quire.testing.strategies import texts

ALIKE = [
    ("otter", "Otters"),
    ("plan", "planned planning plans"),
    ("bake", "baking bakes baked"),
    ("city", "cities"),
    ("carry", "carries carried carrying"),
    ("sell", "selling sells"),
    ("box", "boxes"),
    ("class", "classes"),
    ("quick", "quickly"),
    ("résumé", "RESUME Résumés re\u0301sume\u0301"),
    ("strasse", "straße"),
    ("４２", "42"),
    ("snake", "snake_case"),
]
APART = [("bring", "br"), ("sing", "s"), ("bus", "bu"), ("this", "thi"), ("1999", "199")]


@pytest.mark.parametrize(("one", "others"), ALIKE)
def test_forms_of_a_word_are_one(one: str, others: str):
    assert set(words(one)) & set(words(others))
    for other in others.split():
        assert set(words(one)) <= set(words(other)), other


@pytest.mark.parametrize(("one", "other"), APART)
def test_a_word_is_not_cut_to_a_stump(one: str, other: str):
    assert not set(words(one)) & set(words(other))


def test_what_says_nothing_is_left_out():
    assert words("The a of and I s t, it is!") == {}
    assert words(" ".join(STOP_WORDS)) == {}
    assert words("\x00 … — '\" () \u200b _") == {}


def test_numbers_count_even_of_one_digit():
    assert words("7 of 12") == {"7": 1, "12": 1}


def test_words_are_counted():
    assert words("Otter, otters and an OTTER; a heron") == {"otter": 3, "heron": 1}


def test_where_words_are_not_spaced_two_characters_make_one():
    assert words("河川の水") == {"河川": 1, "川の": 1, "の水": 1}
    assert words("水") == {"水": 1}


@given(texts())
def test_any_text_has_words_that_a_database_can_keep(text: str):
    for word, count in words(storable(text)).items():
        assert 0 < len(word) <= LONGEST
        assert "\x00" not in word
        assert ":" not in word
        assert word.encode()
        assert count > 0


@given(texts())
def test_a_question_has_the_words_of_its_text(text: str):
    assert set(words(text)) == set(words(f"{text} the")) == set(words(f"of {text}"))


def test_only_what_cannot_be_kept_is_replaced():
    assert storable("a\x00b") == "a\ufffdb"
    assert storable("\ud800x").endswith("x")
    assert storable("héllo\r\n") == "héllo\r\n"


def test_the_words_that_are_stored_are_those_that_are_looked_for():
    """Rows of the index hold what these functions gave. When this changes, a migration must empty the index."""
    sample = "Otters' plans: baking in cities, 42 boxes quickly carried; naïve Straße 河川の水 classes news sing boring"
    told = " ".join(f"{word}={count}" for word, count in sorted(words(sample).items()))
    assert sha256(told.encode()).hexdigest()[:16] == "5224d98cdf79ad2e", told
