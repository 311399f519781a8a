"""Query parser: terms, named speakers and the kind of question."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recall_fixtures import START_MICROS

from quire.search.query import LIGHT_WORD_WEIGHT, Query, parse_query
from quire.search.tokenizer import tokenize

SPEAKERS = ("Caroline", "Muhhamed Khan")


def parse(text: str, *, name: str | None = None) -> Query:
    return parse_query(text, at=START_MICROS, speakers=SPEAKERS, name=name)


def test_its_terms_are_what_it_is_about_each_once():
    assert parse("What painting did she paint, and when?").terms == ("paint",)


def test_words_about_talking_are_not_what_it_is_about():
    question = parse("Can you summarize in order what we discussed about hiking throughout our conversations?")
    assert question.terms == tuple(tokenize("hiking"))
    assert question.topic == "hiking"
    assert question.asks_summary


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("Can you suggest some tips for hiking?", "hiking"),
        ("How many hikes did I do in the past two months?", "hikes"),
        ("Which hike was two?", "hike two"),
        ("What is the total time?", "total time"),
    ],
)
def test_words_about_the_request_and_its_dates_weigh_less(text: str, subject: str):
    question = parse(text)
    assert question.subject == subject
    weights = {term: word.weight for word in question.words for term in word.terms}
    light = set(tokenize(text)) - set(tokenize(subject))
    assert weights == dict.fromkeys(tokenize(subject), 1.0) | dict.fromkeys(light, LIGHT_WORD_WEIGHT)


def test_a_question_about_talking_alone_keeps_its_words():
    assert parse("Summarize our conversation").topic == "summarize conversation"
    assert parse("Summarize the hike").topic == "hike"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("When did Caroline paint?", {"Caroline"}),
        ("What are Caroline's hobbies?", {"Caroline"}),
        ("What is Carol’s plan?", {"Caroline"}),
        ("Where does Muhammad work?", {"Muhhamed Khan"}),
        ("Where does khan work?", set()),
        ("Who is Karl?", set()),
        ("What do Caroline and Khan share?", set()),
    ],
)
def test_a_name_selects_its_speaker_unless_all_are_named(text: str, expected: set[str]):
    assert parse(text).speakers == expected


def test_a_speakers_name_is_no_term():
    assert parse("When did Caroline paint?").terms == ("paint",)


def test_the_first_person_selects_the_speaker_of_the_question():
    assert parse("What did I paint?", name="Caroline").speakers == {"Caroline"}
    assert parse("What did she paint?", name="Caroline").speakers == set()
    assert parse("What did I paint?", name="Nobody").speakers == set()


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("When did I start?", {"asks_when"}),
        ("How many days are left?", {"asks_when", "asks_number"}),
        ("What is the average response time?", {"asks_number", "is_request"}),
        ("Could you show me how to log in?", {"is_request"}),
        ("Can you give me an overview of it?", {"asks_summary"}),
        ("How did you recommend to structure it?", {"about_reply"}),
        ("Have I ever written tests?", set()),
        ("What did I say about tea?", set()),
        ("Tea is fine.", set()),
    ],
)
def test_the_manner_of_asking_is_seen(text: str, kinds: set[str]):
    question = parse(text)
    seen = {
        kind
        for kind in ("asks_when", "asks_number", "is_request", "asks_summary", "about_reply")
        if getattr(question, kind)
    }
    assert seen == kinds


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("why is the sluice closed", "said"),
        ("where did I ask for a wider sluice", "own"),
        ("my request for a wider sluice", "own"),
        ("which error did the sluice give", "output"),
        ("the gate doesn't open", "output"),
    ],
)
def test_what_a_query_asks_for(text: str, kind: str):
    assert parse(text).asks_for == kind


def test_of_a_very_long_message_beginning_and_end_are_read():
    question = parse(f"alpha {'filler ' * 5_000} omega")
    assert question.topic == "alpha filler omega"
    assert len(parse(" ".join(f"w{number}" for number in range(5_000))).topic.split()) == 240


@given(st.text())
def test_any_text_is_a_question(text: str):
    question = parse(text, name="Caroline")
    assert question == parse(text, name="Caroline")
    assert len(set(question.terms)) == len(question.terms)
