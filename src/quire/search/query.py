"""Parses a query: for a search its words, for recall the terms of a question, its speakers and dates, and its kind.

Dates become time ranges: absolute ("7 May 2023", "May 7th", "in June", "2023-05-07") or relative to the time of the
question ("yesterday", "two weeks ago", "last month"). A day or month without a year is the latest one before it. Dates
in other languages are translated into English first: "7 de abril" becomes "7 april".
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from difflib import SequenceMatcher
from types import MappingProxyType
from typing import NamedTuple

from quire.search.languages import Language, detect_language, detect_query_languages
from quire.search.tokenizer import (
    UNSPACED_CHAR,
    deduplicate,
    split_words,
    strip_elision,
    tokenize,
    tokenize_query_word,
    tokenize_word,
)

MAX_QUERY_CHARS = 4_000
"""Characters of a query that are searched for, from its start."""
MAX_QUERY_WORDS = 32
"""Distinct words of a query that are looked up; later ones are ignored."""
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
    r"|\b(?:what|which) (?:day|month|year|time)\b"
    r"|\bwann\b|\ban welche[mn] (?:tag|tagen|abend|datum)\b|\bquand\b|\bquels? jours?\b|\bcuándo\b|\bqué días?\b"
    r"|\bкогда\b|\bпо каким дням\b|什么时候|哪天|几月|几号|星期几|いつ|何月|何日|何曜日|何時"
)
# The first "what is the" of a line counts, in an atomic group: trying every one of them would take quadratic time.
_ASKS_NUMBER = re.compile(
    r"\bhow (?:many|much|long|often)\b|\bpercentage\b|\baverage\b"
    r"|^(?>.*?\bwhat (?:is|was|are) (?:the|my) )"
    r".*(?:rate|time|number|percent|score|size|price|cost|budget|goal|target|limit)"
    r"|\bwie (?:viele?|lang|lange|oft|hoch|alt)\b|\bcombien\b|\bcuánt[oa]s?\b|\bсколько\b|多少|多长|多久|几个|几岁"
    r"|いくら|いくつ|何人|何歳|何個|何分",
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
_MONTH_LISTS: Mapping[Language, tuple[str, ...]] = MappingProxyType(
    {
        "german": ("januar februar märz april mai juni juli august september oktober november dezember",),
        "french": ("janvier février mars avril mai juin juillet août septembre octobre novembre décembre",),
        "spanish": ("enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",),
        "russian": (
            "января февраля марта апреля мая июня июля августа сентября октября ноября декабря",
            "январе феврале марте апреле мае июне июле августе сентябре октябре ноябре декабре",
            "январь февраль март апрель май июнь июль август сентябрь октябрь ноябрь декабрь",
        ),
    }
)
_RELATIVE_DATES: Mapping[Language, Mapping[str, str]] = MappingProxyType(
    {
        "german": {
            "gestern": "yesterday", "letzte woche": "last week", "letzter woche": "last week",
            "letzten monat": "last month", "letztes jahr": "last year", "letzten jahr": "last year",
        },
        "french": {
            "hier": "yesterday", "semaine dernière": "last week", "mois dernier": "last month",
            "année dernière": "last year", "l'an dernier": "last year",
        },
        "spanish": {
            "ayer": "yesterday", "semana pasada": "last week", "mes pasado": "last month", "año pasado": "last year",
        },
        "russian": {
            "вчера": "yesterday", "прошлой неделе": "last week", "прошлом месяце": "last month",
            "прошлом году": "last year",
        },
        "chinese": {"昨天": "yesterday", "上周": "last week", "上个月": "last month", "去年": "last year"},
        "japanese": {"昨日": "yesterday", "先週": "last week", "先月": "last month", "去年": "last year"},
    }
)  # fmt: skip
_MONTH_NUMBERS = {
    name: number % 12 for lists in _MONTH_LISTS.values() for number, name in enumerate(" ".join(lists).split())
} | {name: number for number, name in enumerate("一 二 三 四 五 六 七 八 九 十 十一 十二".split())}  # noqa: SIM905
_SPACED_DATES = {
    language: re.compile(
        rf"(?:\b(\d{{1,2}})(?:\.|er|º)? (?:de )?)?\b({'|'.join(' '.join(lists).split())})\b(?:,? (?:de )?(\d{{4}})\b)?"
    )
    for language, lists in _MONTH_LISTS.items()
}
_UNSPACED_DATE = re.compile(r"(?:(\d{4})年)?(\d{1,2}|[一二三四五六七八九十]{1,2})月(?:(\d{1,2})[日号])?")
_RELATIVE_DATE = {
    language: re.compile("|".join(phrases) if language in ("chinese", "japanese") else rf"\b(?:{'|'.join(phrases)})\b")
    for language, phrases in _RELATIVE_DATES.items()
}
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


def find_query_words(query: str) -> list[tuple[str, ...]]:
    """The distinct words of a query without stop words, each with its alternative terms.

    A run of a script without spaces is not a word: each of its bigrams counts as one.
    """
    query = query[:MAX_QUERY_CHARS]
    languages = detect_query_languages(query)
    words: dict[tuple[str, ...], None] = {}
    for word in split_words(query):
        terms = tokenize_query_word(word, languages)
        alternatives = [terms] if len(tokenize_word(word, languages[0])) == 1 else [(term,) for term in terms]
        words |= dict.fromkeys(each for each in alternatives if each)
    return list(words)[:MAX_QUERY_WORDS]


def parse_query(text: str, *, at: int, speakers: Sequence[str] = (), name: str | None = None) -> RecallQuery:
    """Parses a question of the speaker `name` at the time `at`; `speakers` are all names in the index."""
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
    ranges: list[TimeRange] = []
    for year, month, day in _ISO_DATE.findall(low):
        ranges += _day_range(int(year), int(month), int(day))
    for match in _MONTH_DATE.finditer(low):
        month, day = _MONTHS.index(match[2]) + 1, match[1] or match[3]
        is_past = (month, int(day) if day else 1) <= (today.month, today.day)
        year = int(match[4]) if match[4] else today.year if is_past else today.year - 1
        before = max(0, match.start(2) - _MAX_PREPOSITION_CHARS)
        if day:
            ranges += _day_range(year, month, int(day))
        elif match[4] or match[2] not in ("may", "march") or _MONTH_PREPOSITION.search(low, before, match.start(2)):
            first = date(max(1, year), month, 1)
            following = date(first.year + month // 12, month % 12 + 1, 1) if first.year < 9_999 else date.max
            ranges.append(_range_from(first, days=(following - first).days))
    if "yesterday" in low:
        ranges.append(_range_from(today - timedelta(days=1), days=1))
    units = [(_NUMBER_WORDS.get(number) or int(number), unit) for number, unit in _UNITS_AGO.findall(low)]
    for number, unit in (*units, *((1, unit) for unit in _LAST_UNIT.findall(low))):
        # A range as wide as its unit: "two weeks ago" is a week.
        days, width = number * _UNIT_DAYS[unit], _UNIT_DAYS[unit]
        if days < (today - date.min).days - width:
            ranges.append(_range_from(today - timedelta(days=days + width // 2), days=width))
    return tuple(dict.fromkeys(ranges))


def translate_dates(low: str, language: Language) -> str:
    """Replaces the dates of a text in lower case by English ones; a month alone gets the preposition "in"."""
    if language == "english":
        return low
    low = _RELATIVE_DATE[language].sub(lambda match: f" {_RELATIVE_DATES[language][match[0]]} ", low)
    if language in _SPACED_DATES:
        return _SPACED_DATES[language].sub(lambda match: _to_english(match[1], match[2], match[3]), low)
    return _UNSPACED_DATE.sub(lambda match: _to_english(match[3], match[2], match[1]), low)


def _to_english(day: str | None, month: str, year: str | None) -> str:
    number = int(month) - 1 if month.isascii() and month.isdecimal() else _MONTH_NUMBERS.get(month, -1)
    if not 0 <= number < len(_MONTHS):
        return " "
    return f" {day or 'in'} {_MONTHS[number]} {year or ''} "


def _day_range(year: int, month: int, day: int) -> list[TimeRange]:
    """The range of a day; empty if the calendar does not have it."""
    try:
        return [_range_from(date(year, month, day), days=1)]
    except ValueError:
        return []


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
