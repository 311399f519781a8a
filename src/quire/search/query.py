"""Parses a question for recall: its terms, the speakers and dates that it names, and its kind.

Dates become time ranges: absolute ("7 May 2023", "May 7th", "in June", "2023-05-07") or relative to the time of the
question ("yesterday", "two weeks ago", "last month"). A day or month without a year is the latest one before it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from difflib import SequenceMatcher
from typing import NamedTuple

from quire.search.foreign_dates import translate_dates
from quire.search.language_words import ASKS_NUMBER, ASKS_WHEN
from quire.search.languages import detect_language, detect_query_languages
from quire.search.tokenizer import (
    UNSPACED_CHAR,
    deduplicate,
    split_words,
    strip_elision,
    tokenize,
    tokenize_query_word,
    tokenize_word,
)

DAY_MICROS = 24 * 60 * 60 * 1_000_000
"""Microseconds of a day."""
MAX_EDGE_WORDS = 120
"""Words at the beginning and at the end of a longer message that are parsed: the question is in one of the two."""
MAX_EDGE_CHARS = 4_000
"""Characters at the beginning and at the end of a longer message that are parsed, whatever its words are."""
MAX_FUZZY_SPEAKERS = 64
"""With more speakers than this, misspelled names do not match: fuzzy matching compares every word with every name."""
_MIN_NAME_SIMILARITY = 0.75

_META_WORD_LIST = (
    "across advise asked aspects based bring brought chat clear complete comprehensive conversations describe detailed"
    " different discussions earlier entire ever everything evolved explain give help items kind list mention name order"
    " overview past previous progressed provide recap recommend say sequence sessions show suggest summarize summary"
    " talk tell thing thorough throughout timeline type various walk way"
)
_META_TERMS = frozenset(tokenize(_META_WORD_LIST))

_ASKS_WHEN = re.compile(
    r"\bwhen\b|\bdates?\b|\bdeadline\b|\bhow long\b|\bhow many (?:days|weeks|months|years)\b"
    rf"|\b(?:what|which) (?:day|month|year|time)\b|{ASKS_WHEN}"
)
# The first "what is the" of a line counts, in an atomic group: trying every one of them would take quadratic time.
_ASKS_NUMBER = re.compile(
    r"\bhow (?:many|much|long|often)\b|\bpercentage\b|\baverage\b"
    r"|^(?>.*?\bwhat (?:is|was|are) (?:the|my) )"
    rf".*(?:rate|time|number|percent|score|size|price|cost|budget|goal|target|limit)|{ASKS_NUMBER}",
    re.MULTILINE,
)
_REQUEST = re.compile(
    r"(?:please\s+)?(?:can|could|would|how (?:should|can|do|would)|what|show|i'm|i need|i want|which|explain|tell|give"
    r"|help|recommend|suggest|write|make)\b"
)
_LOOKS_BACK = re.compile(r"\bdid\b|\bhave i\b|\bi've\b")
_SURVEY = re.compile(r"\bsummar|\boverview\b|\brecap\b|\border\b|\btimeline\b|\bprogress(?:ed)?\b|\bevolved?\b")
_ASKS_SUMMARY = re.compile(r"\bsummar|\boverview\b|\brecap\b")
_ABOUT_REPLY = re.compile(
    r"\b(?:did|have|had|were) you\b"
    r"|\byou (?:advised|described|explained|gave|guided|helped|mentioned|outlined|proposed|provided|recommended|said"
    r"|suggested|told|wrote)\b"
)
_FIRST_PERSON = re.compile(r"\b(?:i|me|my|mine)\b")
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_NUMBER_WORDS = {
    "a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10,
}  # fmt: skip
_UNIT_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
_ISO_DATE = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)\b")
_MONTH_DATE = re.compile(
    rf"(?:\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? )?\b({'|'.join(_MONTHS)})\b(?: (\d{{1,2}})(?:st|nd|rd|th)?\b(?!:))?"
    r"(?:,? (\d{4})\b)?"
)
_UNITS_AGO = re.compile(rf"\b(\d{{1,3}}|{'|'.join(_NUMBER_WORDS)}) (day|week|month|year)s? ago\b")
_LAST_UNIT = re.compile(r"\blast (week|month|year)\b")
_MONTH_PREPOSITION = re.compile(r"\b(?:in|of|by|since|until|during|before|after|last|this|early|late|mid) $")
_MAX_PREPOSITION_CHARS = 7
"""Length of the longest preposition with its space, which bounds how far the text before a month is searched."""


class TimeRange(NamedTuple):
    """Half-open range, in microseconds since 1970."""

    start: int
    end: int


@dataclass(frozen=True)
class RecallQuery:
    terms: tuple[str, ...]
    """Distinct terms of its topic."""
    topic: str
    """The words behind the terms, for an embedder."""
    speakers: frozenset[str]
    """Speakers that it names; empty for all."""
    time_ranges: tuple[TimeRange, ...]
    """The days that it names."""
    asks_when: bool
    asks_number: bool
    is_request: bool
    """It requests something new rather than a look back: standing instructions and preferences apply."""
    asks_summary: bool
    about_reply: bool
    """It refers to what the assistant said."""


def parse_query(text: str, *, at: int, speakers: Sequence[str] = (), name: str | None = None) -> RecallQuery:
    """Parses a question of the speaker `name` at the time `at`; `speakers` are those of the index."""
    text = _cut_to_edges(text)
    words = split_words(text)
    words = words if len(words) <= 2 * MAX_EDGE_WORDS else [*words[:MAX_EDGE_WORDS], *words[-MAX_EDGE_WORDS:]]
    low = text.lower().replace("’", "'")
    names = {word: matches for word in dict.fromkeys(words) if (matches := _match_speakers(word, speakers))}
    unspaced = [speaker for speaker in speakers if UNSPACED_CHAR.match(speaker) and speaker in text]
    languages = detect_query_languages(text)
    terms = {word: tokenize_query_word(word, languages) for word in dict.fromkeys(words) if word not in names}
    topic_words = [word for word in terms if not _META_TERMS.issuperset(tokenize_word(word, languages[0]))]
    topic_words = topic_words or [word for word in terms if terms[word]]
    named_speakers = {speaker for matches in names.values() for speaker in matches}.union(unspaced)
    if name is not None and name in speakers and _FIRST_PERSON.search(low):
        named_speakers.add(name)
    return RecallQuery(
        terms=tuple(deduplicate(term for word in topic_words for term in terms[word])),
        topic=" ".join(word.lower() for word in topic_words),
        speakers=frozenset(named_speakers) if len(named_speakers) < len(speakers) else frozenset(),
        time_ranges=find_time_ranges(text, at=at),
        asks_when=bool(_ASKS_WHEN.search(low)),
        asks_number=bool(_ASKS_NUMBER.search(low)),
        is_request=bool(_REQUEST.match(low.lstrip())) and not _LOOKS_BACK.search(low) and not _SURVEY.search(low),
        asks_summary=bool(_ASKS_SUMMARY.search(low)),
        about_reply=bool(_ABOUT_REPLY.search(low)),
    )


def _cut_to_edges(text: str) -> str:
    """Cuts a long text to its beginning and end, at spaces, so that the cost of all patterns is bounded."""
    if len(text) <= 2 * MAX_EDGE_CHARS:
        return text
    head, tail = text[:MAX_EDGE_CHARS], text[-MAX_EDGE_CHARS:]
    return f"{head.rsplit(maxsplit=1)[0] if head.strip() else ''}\n{tail.split(maxsplit=1)[-1] if tail.strip() else ''}"


def find_time_ranges(text: str, *, at: int) -> tuple[TimeRange, ...]:
    """Distinct time ranges that a text names; relative dates count from `at`."""
    text = _cut_to_edges(text)
    low = translate_dates(text.lower(), detect_language(text))
    today = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).date()
    return tuple(dict.fromkeys((*_parse_dates(low, today), *_parse_relative_dates(low, today))))


def _parse_dates(low: str, today: date) -> Iterator[TimeRange]:
    for year, month, day in _ISO_DATE.findall(low):
        yield from _day_range(int(year), int(month), int(day))
    for match in _MONTH_DATE.finditer(low):
        month = _MONTHS.index(match[2]) + 1
        day = match[1] or match[3]
        if day:
            year = int(match[4]) if match[4] else _latest_year(today, month, int(day))
            yield from _day_range(year, month, int(day))
        elif match[4] or match[2] not in ("may", "march") or _follows_preposition(low, match.start(2)):
            yield _month_range(int(match[4]) if match[4] else _latest_year(today, month, 1), month)


def _follows_preposition(low: str, start: int) -> bool:
    return bool(_MONTH_PREPOSITION.search(low, max(0, start - _MAX_PREPOSITION_CHARS), start))


def _parse_relative_dates(low: str, today: date) -> Iterator[TimeRange]:
    if "yesterday" in low:
        yield _range_from(today - timedelta(days=1), days=1)
    for number, unit in _UNITS_AGO.findall(low):
        back = _NUMBER_WORDS.get(number) or int(number)
        yield from _range_before(today, days=back * _UNIT_DAYS[unit], width_days=_UNIT_DAYS[unit])
    for unit in _LAST_UNIT.findall(low):
        yield from _range_before(today, days=_UNIT_DAYS[unit], width_days=_UNIT_DAYS[unit])


def _range_before(today: date, *, days: int, width_days: int) -> Iterator[TimeRange]:
    """Range as wide as its unit: "two weeks ago" is a week."""
    if days < (today - date.min).days - width_days:
        yield _range_from(today - timedelta(days=days + width_days // 2), days=width_days)


def _latest_year(today: date, month: int, day: int) -> int:
    return today.year if (month, day) <= (today.month, today.day) else today.year - 1


def _day_range(year: int, month: int, day: int) -> Iterator[TimeRange]:
    try:
        first = date(year, month, day)
    except ValueError:
        return
    yield _range_from(first, days=1)


def _month_range(year: int, month: int) -> TimeRange:
    first = date(max(1, year), month, 1)
    following = date(first.year + month // 12, month % 12 + 1, 1) if first.year < 9_999 else date.max
    return _range_from(first, days=(following - first).days)


def _range_from(first: date, *, days: int) -> TimeRange:
    start = (first - date(1970, 1, 1)).days * DAY_MICROS
    return TimeRange(start, start + days * DAY_MICROS)


def _match_speakers(word: str, speakers: Sequence[str]) -> tuple[str, ...]:
    """Speakers whose name the word may be; only a capitalized word is a name."""
    bare = strip_elision(word.removesuffix("'s").removesuffix("’s"))
    if not bare[:1].isupper():
        return ()
    fuzzy = len(speakers) <= MAX_FUZZY_SPEAKERS
    return tuple(
        speaker for speaker in speakers if any(_is_same_name(bare, part, fuzzy=fuzzy) for part in speaker.split())
    )


def _is_same_name(word: str, name: str, *, fuzzy: bool) -> bool:
    one, other = word.casefold(), name.casefold()
    if one == other:
        return True
    short, long = sorted((one, other), key=len)
    if len(short) >= 3 and long.startswith(short):
        return True
    if not word.isascii() and tokenize_word(word) == tokenize_word(name) != ():
        # Names are inflected in Russian: the stems are the same.
        return True
    return fuzzy and len(short) > 4 and SequenceMatcher(None, one, other).ratio() >= _MIN_NAME_SIMILARITY
