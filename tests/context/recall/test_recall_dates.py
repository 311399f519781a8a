"""Dates: the days that a question names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recall_made import moment

from quire.context.recall.dates import DAY, Span, spans

ASKED = moment("2023-10-15")


def day(first: str, days: int = 1) -> Span:
    start = moment(first) - DAY // 2
    return Span(start, start + days * DAY)


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ("What happened on 7 May 2023?", [day("2023-05-07")]),
        ("on May 7th, 2023", [day("2023-05-07")]),
        ("on the 7th of May", [day("2023-05-07")]),
        ("on 2023-05-07", [day("2023-05-07")]),
        ("before December 24", [day("2022-12-24")]),
        ("What did I do in June?", [day("2023-06-01", 30)]),
        ("in February 2020", [day("2020-02-01", 29)]),
        ("in December 2022", [day("2022-12-01", 31)]),
        ("in november", [day("2022-11-01", 30)]),
        ("What did she say yesterday?", [day("2023-10-14")]),
        ("the trip two weeks ago", [day("2023-09-28", 7)]),
        ("10 days ago", [day("2023-10-05")]),
        ("last month", [day("2023-08-31", 30)]),
        ("May I ask in May?", [day("2023-05-01", 31)]),
        ("from 3 May to 5 June", [day("2023-05-03"), day("2023-06-05")]),
        ("I may march on", []),
        ("on 31 February 2023", []),
        ("", []),
    ],
)
def test_a_question_names_these_days(question: str, named: list[Span]):
    assert list(spans(question, at=ASKED)) == named


@given(st.text() | st.from_regex(r"(\d{1,4}|two) (may|march \d{1,4}|days ago|\d{4}-\d\d-\d\d)( 0000| 9999)?"))
def test_any_text_names_days_or_none(text: str):
    assert all(span.start < span.end for span in spans(text, at=ASKED))
