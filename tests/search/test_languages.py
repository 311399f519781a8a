"""Detection of a text's language, and the dates of other languages."""

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.dialogues import LANGUAGE_CODES, load_dialogues
from quire.search.dates import find_time_ranges, translate_dates
from quire.search.languages import LANGUAGES, Language, detect_language, detect_query_languages
from quire.search.message_features import DIRECTIVE_STANDING, extract_features
from quire.search.query import parse_query

NAMES: dict[str, str] = dict(
    zip(LANGUAGE_CODES, ("english", "german", "french", "spanish", "russian", "chinese", "japanese"), strict=True)
)
NOW = int(datetime(2025, 11, 16, 12, tzinfo=UTC).timestamp()) * 1_000_000


@pytest.mark.parametrize("code", LANGUAGE_CODES)
def test_the_language_of_a_sentence_is_detected(code: str):
    sentences = [turn.text for dialogue in load_dialogues(code) for turn in dialogue.labelled]
    sentences += [question.text for dialogue in load_dialogues(code) for question in dialogue.questions]
    wrong = [text for text in sentences if detect_language(text) != NAMES[code]]
    assert len(wrong) <= len(sentences) // 20, wrong


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Mochi",
        "12:30 ✅",
        "Im so tired lol",
        "see ya!",
        "I dont think so",
        "pip install numpy",
        "C'est la vie, man, see you at the car",
    ],
)
def test_without_evidence_a_text_is_english(text: str):
    assert detect_language(text) == "english"


def test_names_and_code_in_latin_letters_do_not_hide_a_script():
    assert detect_language("Запусти pytest -q в папке tests, пожалуйста") == "russian"
    assert detect_language("请用 PostgreSQL 存储订单") == "chinese"
    assert detect_language("The word 猫 means cat in Japanese and in Chinese, and кот is the Russian one") == "english"


def test_a_query_without_evidence_may_be_in_any_language_of_its_script():
    assert detect_query_languages("Hunde") == ("english", "german", "french", "spanish")
    assert detect_query_languages("Wo sind die Hunde?") == ("german", "english")
    assert detect_query_languages("Where are the dogs?") == ("english",)


@given(st.text())
def test_any_text_has_a_language(text: str):
    assert detect_language(text) in LANGUAGES


@pytest.mark.parametrize(
    ("text", "first", "days"),
    [
        ("Was haben wir am 7. April 2024 gemacht?", date(2024, 4, 7), 1),
        ("Was haben wir im März gemacht?", date(2025, 3, 1), 31),
        ("Qu'est-ce que nous avons fait le 7 avril ?", date(2025, 4, 7), 1),
        ("Où étais-je en mai 2024 ?", date(2024, 5, 1), 31),
        ("¿Qué pasó el 7 de abril de 2024?", date(2024, 4, 7), 1),
        ("Что было 7 апреля?", date(2025, 4, 7), 1),
        ("Что мы делали в июне 2024 года?", date(2024, 6, 1), 30),
        ("2024年4月7日我们做了什么？", date(2024, 4, 7), 1),
        ("六月我们做了什么？", date(2025, 6, 1), 30),
        ("4月7日に何をしましたか？", date(2025, 4, 7), 1),
        ("Was habe ich gestern gegessen?", date(2025, 11, 15), 1),
        ("Qu'est-ce que j'ai mangé hier ?", date(2025, 11, 15), 1),
        ("Что я ел вчера?", date(2025, 11, 15), 1),
        ("昨天我吃了什么？", date(2025, 11, 15), 1),
        ("Was haben wir vor drei Wochen gekauft?", date(2025, 10, 23), 7),
        ("Qu'est-ce que nous avons fait il y a deux jours ?", date(2025, 11, 14), 1),
        ("¿Qué hicimos el viernes pasado?", date(2025, 11, 14), 1),
        ("Что мы купили три недели назад?", date(2025, 10, 23), 7),
        ("三周前我们买了什么？", date(2025, 10, 23), 7),
        ("先週の金曜日に何をしましたか？", date(2025, 11, 14), 1),
    ],
)
def test_dates_are_understood(text: str, first: date, days: int):
    [found] = find_time_ranges(text, at=NOW)
    start = datetime.combine(first, datetime.min.time(), UTC)
    assert found.start == int(start.timestamp()) * 1_000_000
    assert found.end - found.start == days * 86_400_000_000


def test_words_that_are_no_dates_stay():
    assert translate_dates("ich bin hier im marsch", "german") == "ich bin hier im marsch"
    assert translate_dates("99月", "chinese").strip() == ""
    assert find_time_ranges("Die Wohnung ist hier, und wir sind nicht da.", at=NOW) == ()


@pytest.mark.parametrize("code", LANGUAGE_CODES)
def test_the_kind_of_a_question_is_understood(code: str):
    chat = load_dialogues(code)[0]
    parsed = {
        question.labels: parse_query(question.text, at=NOW, speakers=chat.speakers)
        for question in chat.questions
        if question.kind != "para"
    }
    assert parsed[("job",)].asks_when
    assert parsed[("band",)].asks_when
    assert not parsed[("cat",)].asks_when
    assert parsed[("leak",)].asks_number
    # "Anna" and "Ben" in each language and in each case of the noun.
    assert parsed[("cat",)].speakers == {chat.speakers[0]}
    assert parsed[("album",)].speakers == {chat.speakers[1]}


@pytest.mark.parametrize(
    ("language", "text", "other"),
    [
        ("german", "Gestern habe ich mein Rad geholt.", "Das Rad ist rot."),
        ("french", "Hier j'ai retrouvé mes amis.", "Le vélo est rouge."),
        ("spanish", "Ayer yo fui con mis amigos.", "La bicicleta es roja."),
        ("russian", "Вчера я забрал мой велосипед.", "Велосипед красный."),
        ("chinese", "我昨天拿到了我的自行车。", "自行车是红色的。"),
        ("japanese", "私は昨日、自転車を買った。", "自転車は赤い。"),
    ],
)
def test_messages_have_features_in_every_language(language: Language, text: str, other: str):
    assert extract_features(text).first_person > 0, language
    assert extract_features(text).time_words > 0, language
    assert extract_features(other).first_person == extract_features(other).time_words == 0, language


@pytest.mark.parametrize(
    "text",
    [
        "Please always answer in English.",
        "Bitte immer auf Englisch antworten.",
        "Toujours répondre en anglais.",
        "Siempre en inglés, por favor.",
        "Всегда пиши по-английски.",
        "请总是用英文写。",
        "必ず英語で書いて。",
    ],
)
def test_standing_instructions_are_understood(text: str):
    assert extract_features(text).directive == DIRECTIVE_STANDING
    assert extract_features(f"Neverland, immerhin. {text}").directive != DIRECTIVE_STANDING
