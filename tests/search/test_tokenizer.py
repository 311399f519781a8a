"""The tokenizer: one stem for all forms of a word in the language of a text, and no term for stop words."""

from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infra.strategies import texts
from quire.db.dialects import sanitize_text
from quire.search import tokenizer
from quire.search.languages import LATIN_LANGUAGES, STOP_WORDS, Language
from quire.search.tokenizer import (
    MAX_CACHED_WORDS,
    MAX_WORD_CHARS,
    count_terms,
    deduplicate,
    split_words,
    tokenize,
    tokenize_query,
    tokenize_word,
)


@pytest.mark.parametrize(
    "alike",
    [
        "paint painting painted paints Painted",
        "activity activities",
        "go went gone goes going",
        "buy bought buying buys",
        "child children Children's",
        "plan planning planned plans",
        "sell selling sold sells",
        "organize organization organizing",
        "educate education educated",
        "hope hoping hoped",
        "carry carries carried carrying",
        "box boxes",
        "class classes",
        "quick quickly",
        "café cafe CAFÉ cafe\u0301",
        "strasse straße",
        "1,000 1000",
        "４２ 42",
        "18th 18",
        "mom mother moms",
    ],
)
def test_the_forms_of_an_english_word_are_one_term(alike: str):
    assert len({tokenize_word(word) for word in alike.split()}) == 1
    assert tokenize_word(alike.split()[0]) != ()


@pytest.mark.parametrize(
    ("language", "alike"),
    [
        ("german", "Haus Häuser Hauses"),
        ("german", "kaufen kaufe Kaufs"),
        ("german", "Straße strasse Straßen"),
        ("french", "cheval chevaux"),
        ("french", "école l'école écoles"),
        ("french", "acheter acheté achetais"),
        ("spanish", "canción canciones"),
        ("spanish", "viajar viajando viajaron"),
        ("russian", "кошка кошки кошку кошкой"),
        ("russian", "ёлка елка"),
    ],
)
def test_the_forms_of_a_word_in_another_language_are_one_term(language: Language, alike: str):
    assert len({tokenize_word(word, language) for word in alike.split()}) == 1
    assert tokenize_word(alike.split()[0], language) != ()


@pytest.mark.parametrize("different", ["career car", "sing sin", "bus but busy", "1.5 15", "string strung", "1999 199"])
def test_words_that_only_look_alike_are_different_terms(different: str):
    assert len({tokenize_word(word) for word in different.split()}) == len(different.split())


def test_stop_words_are_no_terms_in_their_language():
    assert tokenize("I don't think that we've been there, and you’re not so sure either, are you? O, s!") == tokenize(
        "think sure either"
    )
    assert tokenize("Die Katze ist nicht im Haus, und wir sind es auch nicht.") == ["katz", "haus"]
    assert tokenize("The hat and the war") == ["hat", "war"]
    for language in LATIN_LANGUAGES:
        assert [word for word in STOP_WORDS[language] if tokenize_word(word, language)] == []
    assert tokenize("\x00 … — '\" () \u200b _") == []


def test_terms_are_in_the_order_of_the_text_each_as_often_as_it_occurs():
    assert tokenize("Tea, then cake, then more tea") == ["tea", "cake", "tea"]
    assert deduplicate(tokenize("Tea, then cake, then more tea")) == ["tea", "cake"]
    assert count_terms("Otter, otters and an OTTER; 7 of 12 herons") == {"otter": 3, "7": 1, "12": 1, "heron": 1}


def test_names_in_code_are_cut_at_underscores():
    assert tokenize("user_id = 7") == ["user", "id", "7"]


def test_without_spaces_each_two_characters_of_one_script_are_a_term():
    assert tokenize("東京タワー") == ["東京", "タワ", "ワー"]
    assert tokenize("水") == ["水"]
    assert tokenize("GPT東京") == ["gpt", "東京"]
    assert tokenize("서울 타워") == ["서울", "타워"]


def test_function_words_of_chinese_and_japanese_are_no_terms():
    assert tokenize("我的猫在哪里？") == ["猫"]
    assert tokenize("猫はどこですか") == ["猫"]
    assert set(tokenize("我昨天买了自行车")) >= {"昨天", "自行", "行车"}


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("Fahrräder", "Wir haben zwei Fahrräder im Keller, und das eine ist kaputt."),
        ("Welche Fahrräder haben wir?", "Fahrräder!"),
        ("noisettes", "Je ne peux plus manger de noisettes, le médecin l'a dit."),
        ("¿Dónde están las canciones?", "canciones"),
        ("велосипеды", "Мой велосипед украли."),
        ("When did Lukas move?", "Lukas ist mit uns nach Hamburg gezogen, und die Wohnung ist schön."),
        ("東京", "昨日は東京に行きました。"),
        ("小猫", "我的小猫在家"),
    ],
)
def test_a_query_matches_a_text_whatever_the_language_of_either_is_taken_for(query: str, text: str):
    assert set(tokenize_query(query)) & set(tokenize(text))


def test_a_query_of_a_known_language_has_few_terms():
    assert tokenize_query("When did you buy the bicycles?") == ["buy", "bicycl"]
    assert len(tokenize_query("Wann habt ihr die Fahrräder gekauft?")) <= 2 * 2
    assert len(tokenize_query("Fahrräder")) <= len(LATIN_LANGUAGES)


@example("\u0300")
@given(st.text())
def test_any_text_has_terms_that_are_short_and_the_same_each_time(text: str):
    terms = tokenize(text)
    assert terms == tokenize(text)
    assert all(0 < len(term) <= 4 * MAX_WORD_CHARS for term in terms)
    assert all(term == term.lower() for term in terms if term.isascii())


@given(texts())
def test_any_text_has_terms_that_a_database_can_store(text: str):
    for term, count in count_terms(sanitize_text(text)).items():
        assert "\x00" not in term
        assert ":" not in term
        assert term.encode()
        assert count > 0


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_case_makes_no_difference(text: str):
    assert tokenize(text.upper()) == tokenize(text.lower())


@given(st.lists(st.text(min_size=1), max_size=5))
def test_the_terms_of_a_text_are_those_of_its_words(pieces: list[str]):
    """The cache holds whole pieces between white space; they must give what their words give."""
    text = " ".join(pieces)
    words = [term for word in split_words(text) for term in tokenizer._find_terms(word, "english")]  # pyright: ignore[reportPrivateUsage]
    assert list(tokenizer.iter_terms(text, "english")) == words


@given(texts())
def test_a_query_has_the_terms_of_its_own_text(text: str):
    assert set(tokenize(text)) <= set(tokenize_query(text))


@given(st.lists(st.sampled_from(["paint", "went", "1,000", "東京", "café"])))
def test_spaces_separate_words(words: list[str]):
    assert split_words(" ".join(words)) == words


def test_the_caches_are_bounded(monkeypatch: pytest.MonkeyPatch):
    cache = tokenizer._TermCache("english")  # pyright: ignore[reportPrivateUsage]
    assert MAX_CACHED_WORDS == 65_536
    monkeypatch.setattr(tokenizer, "MAX_CACHED_WORDS", 100)
    for number in range(250):
        assert cache[f"word{number}"] == (f"word{number}",)
    assert len(cache) <= 100
    for long in ("q" * (MAX_WORD_CHARS + 1), "漢" * 1_000, "ab,cd,ef,gh,jk"):
        assert cache[long] == cache[long]
        assert long not in cache
    assert cache["q" * 100_000] == ("q" * MAX_WORD_CHARS,)
    assert len(cache["漢" * 1_000]) == 999


def test_the_terms_that_are_stored_are_those_that_are_looked_for():
    """The index stores the output of the tokenizer. When this digest changes, raise the format version of the index."""
    sample = (
        "Otters' plans: baking in cities, 42 boxes quickly carried; naïve Straße 河川の水 classes news sing boring"
        " Мой велосипед украли"
    )
    counts = " ".join(f"{term}={count}" for term, count in sorted(count_terms(sample).items()))
    assert sha256(counts.encode()).hexdigest()[:16] == "61eda725c48b918e", counts


def test_an_accent_in_a_query_does_not_hide_texts_of_another_language():
    assert set(tokenize_query("é otter")) & set(tokenize("Ö otter"))
    assert set(tokenize_query("Ö otters")) & set(tokenize("é otters"))
