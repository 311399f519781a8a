"""Dates in a query, as time ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recall_fixtures import noon_micros

from quire.search.dates import DAY_MICROS, TimeRange, find_time_ranges

ASKED_AT = noon_micros("2023-10-15")


def make_time_range(first: str, days: int = 1) -> TimeRange:
    start = noon_micros(first) - DAY_MICROS // 2
    return TimeRange(start, start + days * DAY_MICROS)


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ("What happened on 7 May 2023?", [make_time_range("2023-05-07")]),
        ("on May 7th, 2023", [make_time_range("2023-05-07")]),
        ("on the 7th of May", [make_time_range("2023-05-07")]),
        ("on 2023-05-07", [make_time_range("2023-05-07")]),
        ("before December 24", [make_time_range("2022-12-24")]),
        ("What did I do in June?", [make_time_range("2023-06-01", 30)]),
        ("in February 2020", [make_time_range("2020-02-01", 29)]),
        ("in December 2022", [make_time_range("2022-12-01", 31)]),
        ("in november", [make_time_range("2022-11-01", 30)]),
        ("What did she say yesterday?", [make_time_range("2023-10-14")]),
        ("the trip two weeks ago", [make_time_range("2023-09-28", 7)]),
        ("10 days ago", [make_time_range("2023-10-05")]),
        ("last month", [make_time_range("2023-08-31", 30)]),
        ("a couple of weeks ago", [make_time_range("2023-09-28", 7)]),
        ("in the past two weeks", [make_time_range("2023-10-01", 15)]),
        ("last Friday", [make_time_range("2023-10-13")]),
        ("last weekend", [make_time_range("2023-10-07", 2)]),
        ("on Valentine's day", [make_time_range("2023-02-13", 3)]),
        ("at Thanksgiving", [make_time_range("2022-11-23", 3)]),
        ("at Easter", [make_time_range("2023-04-08", 3)]),
        ("May I ask in May?", [make_time_range("2023-05-01", 31)]),
        ("from 3 May to 5 June", [make_time_range("2023-05-03"), make_time_range("2023-06-05")]),
        ("I may march on", []),
        ("on 31 February 2023", []),
        ("", []),
    ],
)
def test_a_question_names_these_days(question: str, named: list[TimeRange]):
    assert list(find_time_ranges(question, at=ASKED_AT)) == named


@given(st.text() | st.from_regex(r"(\d{1,4}|two) (may|march \d{1,4}|days ago|\d{4}-\d\d-\d\d)( 0000| 9999)?"))
def test_any_text_names_days_or_none(text: str):
    assert all(span.start < span.end for span in find_time_ranges(text, at=ASKED_AT))
