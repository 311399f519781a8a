"""Question: what is asked for, of whom, and in what manner."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recall_made import START

from quire.context.recall import Question, read_question
from quire.context.recall.terms import terms

PEOPLE = ("Caroline", "Muhhamed Khan")


def read(text: str, *, name: str | None = None) -> Question:
    return read_question(text, at=START, speakers=PEOPLE, name=name)


def test_its_terms_are_what_it_is_about_each_once():
    assert read("What painting did she paint, and when?").terms == ("paint",)


def test_words_about_talking_are_not_what_it_is_about():
    question = read("Can you summarize in order what we discussed about hiking throughout our conversations?")
    assert question.terms == ("hik",)
    assert question.topic == "hiking"
    assert question.summary


def test_a_question_about_talking_alone_keeps_its_words():
    assert read("Summarize our conversation").terms == tuple(terms("Summarize conversation"))


@pytest.mark.parametrize(
    ("text", "meant"),
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
def test_a_name_tells_who_is_meant_unless_all_are(text: str, meant: set[str]):
    assert read(text).speakers == meant


def test_a_speakers_name_is_no_term():
    assert read("When did Caroline paint?").terms == ("paint",)


def test_who_asks_about_himself_is_meant():
    assert read("What did I paint?", name="Caroline").speakers == {"Caroline"}
    assert read("What did she paint?", name="Caroline").speakers == set()
    assert read("What did I paint?", name="Nobody").speakers == set()


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("When did I start?", {"when"}),
        ("How many days are left?", {"when", "number"}),
        ("What is the average response time?", {"number", "asks"}),
        ("Could you show me how to log in?", {"asks"}),
        ("Can you give me an overview of it?", {"summary"}),
        ("How did you recommend to structure it?", {"of_reply"}),
        ("Have I ever written tests?", set()),
        ("What did I say about tea?", set()),
        ("Tea is fine.", set()),
    ],
)
def test_the_manner_of_asking_is_seen(text: str, kinds: set[str]):
    question = read(text)
    seen = {kind for kind in ("when", "number", "asks", "summary", "of_reply") if getattr(question, kind)}
    assert seen == kinds


def test_of_a_very_long_message_beginning_and_end_are_read():
    question = read(f"alpha {'filler ' * 5_000} omega")
    assert set(question.terms) == {"alpha", *terms("filler"), "omega"}
    assert len(read(" ".join(f"w{number}" for number in range(5_000))).terms) == 240


@given(st.text())
def test_any_text_is_a_question(text: str):
    question = read(text, name="Caroline")
    assert question == read(text, name="Caroline")
    assert len(set(question.terms)) == len(question.terms)
