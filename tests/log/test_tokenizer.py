"""The tokenizer: stemming, stop words, bigrams, and text that has no words."""

from hashlib import sha256

import pytest
from hypothesis import given

from quire.log.dialects import sanitize_text
from quire.log.search.tokenizer import MAX_WORD_CHARS, STOP_WORDS, count_terms
from quire.testing.strategies import texts

SAME_STEM = [
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
DIFFERENT_STEM = [("bring", "br"), ("sing", "s"), ("bus", "bu"), ("this", "thi"), ("1999", "199")]


@pytest.mark.parametrize(("one", "others"), SAME_STEM)
def test_forms_of_a_word_are_one(one: str, others: str):
    assert set(count_terms(one)) & set(count_terms(others))
    for other in others.split():
        assert set(count_terms(one)) <= set(count_terms(other)), other


@pytest.mark.parametrize(("one", "other"), DIFFERENT_STEM)
def test_a_word_is_not_cut_to_a_stump(one: str, other: str):
    assert not set(count_terms(one)) & set(count_terms(other))


def test_stop_words_and_punctuation_are_not_indexed():
    assert count_terms("The a of and I s t, it is!") == {}
    assert count_terms(" ".join(STOP_WORDS)) == {}
    assert count_terms("\x00 … — '\" () \u200b _") == {}


def test_numbers_count_even_of_one_digit():
    assert count_terms("7 of 12") == {"7": 1, "12": 1}


def test_words_are_counted():
    assert count_terms("Otter, otters and an OTTER; a heron") == {"otter": 3, "heron": 1}


def test_where_words_are_not_spaced_two_characters_make_one():
    assert count_terms("河川の水") == {"河川": 1, "川の": 1, "の水": 1}
    assert count_terms("水") == {"水": 1}


@given(texts())
def test_any_text_has_words_that_a_database_can_store(text: str):
    for word, count in count_terms(sanitize_text(text)).items():
        assert 0 < len(word) <= MAX_WORD_CHARS
        assert "\x00" not in word
        assert ":" not in word
        assert word.encode()
        assert count > 0


@given(texts())
def test_a_question_has_the_words_of_its_text(text: str):
    assert set(count_terms(text)) == set(count_terms(f"{text} the")) == set(count_terms(f"of {text}"))


def test_only_characters_that_cannot_be_stored_are_replaced():
    assert sanitize_text("a\x00b") == "a\ufffdb"
    assert sanitize_text("\ud800x \ud83e\udd8a") == "\ufffdx 🦊"
    assert sanitize_text("héllo\r\n") == "héllo\r\n"


def test_the_words_that_are_stored_are_those_that_are_looked_for():
    """The index stores the output of the tokenizer. When this digest changes, a migration must empty the index."""
    sample = "Otters' plans: baking in cities, 42 boxes quickly carried; naïve Straße 河川の水 classes news sing boring"
    counts = " ".join(f"{word}={count}" for word, count in sorted(count_terms(sample).items()))
    assert sha256(counts.encode()).hexdigest()[:16] == "5224d98cdf79ad2e", counts
