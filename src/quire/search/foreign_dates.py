"""Translates the dates in a query into English, which the parser of queries reads: "7 de abril" becomes "7 april"."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from quire.search.languages import Language

_ENGLISH_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
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
    if not 0 <= number < len(_ENGLISH_MONTHS):
        return " "
    return f" {day or 'in'} {_ENGLISH_MONTHS[number]} {year or ''} "
