"""Dates: the days that a question names, as spans of time.

Written out ("7 May 2023", "May 7th", "in June", "2023-05-07") or counted from the moment of asking ("yesterday", "two
weeks ago", "last month"). A day or month without its year is the last one before the question was asked.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

DAY = 24 * 60 * 60 * 1_000_000
"""In microseconds."""

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_NUMBERS = {
    "a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10,
}  # fmt: skip
_UNITS = {"day": 1, "week": 7, "month": 30, "year": 365}
_ISO = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)\b")
_NAMED = re.compile(
    rf"(?:\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? )?\b({'|'.join(_MONTHS)})\b(?: (\d{{1,2}})(?:st|nd|rd|th)?\b(?!:))?"
    r"(?:,? (\d{4})\b)?"
)
_AGO = re.compile(rf"\b(\d{{1,3}}|{'|'.join(_NUMBERS)}) (day|week|month|year)s? ago\b")
_LAST = re.compile(r"\blast (week|month|year)\b")
_SURE = re.compile(r"\b(?:in|of|by|since|until|during|before|after|last|this|early|late|mid) $")


class Span(NamedTuple):
    """From, up to, in microseconds since 1970."""

    start: int
    end: int


def spans(text: str, *, at: int) -> tuple[Span, ...]:
    """The spans that a text names, as asked at this moment."""
    low = text.lower()
    today = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).date()
    return tuple(dict.fromkeys((*_written(low, today), *_counted(low, today))))


def _written(low: str, today: date) -> Iterator[Span]:
    for year, month, day in _ISO.findall(low):
        yield from _day(int(year), int(month), int(day))
    for named in _NAMED.finditer(low):
        month = _MONTHS.index(named[2]) + 1
        day = named[1] or named[3]
        if day:
            year = int(named[4]) if named[4] else _latest(today, month, int(day))
            yield from _day(year, month, int(day))
        elif named[4] or named[2] not in ("may", "march") or _SURE.search(low, 0, named.start(2)):
            yield _month(int(named[4]) if named[4] else _latest(today, month, 1), month)


def _counted(low: str, today: date) -> Iterator[Span]:
    if "yesterday" in low:
        yield _between(today - timedelta(days=1), days=1)
    for number, unit in _AGO.findall(low):
        back = _NUMBERS.get(number) or int(number)
        yield from _around(today, days=back * _UNITS[unit], wide=_UNITS[unit])
    for unit in _LAST.findall(low):
        yield from _around(today, days=_UNITS[unit], wide=_UNITS[unit])


def _around(today: date, *, days: int, wide: int) -> Iterator[Span]:
    """As wide as the unit in which it was counted: "two weeks ago" is a week."""
    if days < (today - date.min).days - wide:
        yield _between(today - timedelta(days=days + wide // 2), days=wide)


def _latest(today: date, month: int, day: int) -> int:
    return today.year if (month, day) <= (today.month, today.day) else today.year - 1


def _day(year: int, month: int, day: int) -> Iterator[Span]:
    try:
        named = date(year, month, day)
    except ValueError:
        return
    yield _between(named, days=1)


def _month(year: int, month: int) -> Span:
    first = date(max(1, year), month, 1)
    following = date(first.year + month // 12, month % 12 + 1, 1) if first.year < 9_999 else date.max
    return _between(first, days=(following - first).days)


def _between(first: date, *, days: int) -> Span:
    start = (first - date(1970, 1, 1)).days * DAY
    return Span(start, start + days * DAY)
