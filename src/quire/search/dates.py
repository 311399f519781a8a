"""Dates that a text names, as time ranges against the time of the text.

Absolute dates ("7 May 2023", "May 7th", "in June", "2023-05-07"), holidays, and relative ones ("yesterday", "two weeks
ago", "last Friday", "last weekend", "in the past month"). A day, month or holiday without a year is the latest one
before that time. Dates in other languages are translated into English first: "7 de abril" becomes "7 april", "vor drei
Wochen" becomes "3 week ago".
"""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

from quire.search.languages import Language, detect_language
from quire.search.message_features import DATE_TOKEN, TIME_WORDS

DAY_MICROS = 24 * 60 * 60 * 1_000_000
"""Microseconds of a day."""
MAX_EDGE_CHARS = 4_000
"""Characters at the beginning and at the end of a longer message that are parsed, whatever its words are."""

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBER_WORDS = {
    "a": 1, "an": 1, "one": 1, "two": 2, "a couple of": 2, "a few": 3, "three": 3, "four": 4, "five": 5, "six": 6,
    "seven": 7, "eight": 8, "nine": 9, "ten": 10,
}  # fmt: skip
_SMALL_NUMBERS = frozenset([*" ".join(_NUMBER_WORDS).split(), *map(str, range(1, 32))])
_NUMBER = rf"\d{{1,3}}|{'|'.join(sorted(_NUMBER_WORDS, key=len, reverse=True))}"
_UNIT_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
_HOLIDAYS = {
    "new year": (1, 1), "valentine": (2, 14), "independence day": (7, 4), "fourth of july": (7, 4),
    "halloween": (10, 31), "christmas": (12, 25),
}  # fmt: skip
_ISO_DATE = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)\b")
_MONTH_DATE = re.compile(
    rf"(?:\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? )?\b({'|'.join(_MONTHS)})\b(?: (\d{{1,2}})(?:st|nd|rd|th)?\b(?!:))?"
    r"(?:,? (\d{4})\b)?"
)
_UNITS_AGO = re.compile(rf"\b({_NUMBER}) (day|week|month|year)s? ago\b")
_LAST_UNIT = re.compile(r"\blast (week|month|year)\b")
_PAST_UNITS = re.compile(
    rf"\b(?:(?:last|past) (few|couple of|{_NUMBER}) (day|week|month|year)s|past (day|week|month|year))\b"
)
_LAST_WEEKDAY = re.compile(rf"\b(?:last|past) ({'|'.join(_WEEKDAYS)}|weekend)\b")
_HOLIDAY = re.compile(rf"\b({'|'.join(_HOLIDAYS)}|easter|thanksgiving)")
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
            "letztes wochenende": "last weekend", "letzten wochenende": "last weekend", "weihnachten": "christmas",
            "neujahr": "new year", "ostern": "easter",
        },
        "french": {
            "hier": "yesterday", "semaine dernière": "last week", "mois dernier": "last month",
            "année dernière": "last year", "l'an dernier": "last year", "week-end dernier": "last weekend",
            "noël": "christmas", "nouvel an": "new year", "pâques": "easter",
        },
        "spanish": {
            "ayer": "yesterday", "fin de semana pasado": "last weekend", "semana pasada": "last week",
            "mes pasado": "last month", "año pasado": "last year", "navidad": "christmas", "año nuevo": "new year",
            "pascua": "easter",
        },
        "russian": {
            "вчера": "yesterday", "прошлой неделе": "last week", "прошлом месяце": "last month",
            "прошлом году": "last year", "прошлые выходные": "last weekend", "прошлых выходных": "last weekend",
            "рождество": "christmas", "новый год": "new year", "пасху": "easter",
        },
        "chinese": {
            "昨天": "yesterday", "上周末": "last weekend", "上个周末": "last weekend", "上个月": "last month",
            "去年": "last year", "圣诞节": "christmas", "元旦": "new year", "情人节": "valentine",
        },
        "japanese": {
            "昨日": "yesterday", "先週末": "last weekend", "先月": "last month", "去年": "last year",
            "クリスマス": "christmas", "元旦": "new year", "バレンタイン": "valentine",
        },
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
_FOREIGN_NUMBERS: Mapping[Language, str] = MappingProxyType(
    {
        "german": "einem|einer,zwei,drei,vier,fünf,sechs,sieben,acht,neun,zehn",
        "french": "une?,deux,trois,quatre,cinq,six,sept,huit,neuf,dix",
        "spanish": "una?,dos,tres,cuatro,cinco,seis,siete,ocho,nueve,diez",
        "russian": "одну|один,две|два,три,четыре,пять,шесть,семь,восемь,девять,десять",
        "chinese": "一,两|二,三,四,五,六,七,八,九,十",
        "japanese": "一,二,三,四,五,六,七,八,九,十",
    }
)
_FOREIGN_UNITS: Mapping[Language, str] = MappingProxyType(
    {
        "german": "tag(?:en)?,wochen?,monat(?:en)?,jahr(?:en)?",
        "french": "jours?,semaines?,mois,ans?|années?",
        "spanish": "días?,semanas?,mes(?:es)?,años?",
        "russian": "день|дня|дней,неделю|недели|недель,месяц(?:а|ев)?,год(?:а)?|лет",
        "chinese": "天,周|个?星期|个?礼拜,个月,年",
        "japanese": "日,週間,[かヶカ]月,年",
    }
)
_FOREIGN_WEEKDAYS: Mapping[Language, str] = MappingProxyType(
    {
        "german": "montag,dienstag,mittwoch,donnerstag,freitag,samstag|sonnabend,sonntag",
        "french": "lundi,mardi,mercredi,jeudi,vendredi,samedi,dimanche",
        "spanish": "lunes,martes,miércoles,jueves,viernes,sábado,domingo",
        "russian": "понедельник,вторник,среду,четверг,пятницу,субботу,воскресенье",
        "chinese": "一,二,三,四,五,六,[日天]",
        "japanese": "月,火,水,木,金,土,日",
    }
)
_AGO_FORMS: Mapping[Language, str] = MappingProxyType(
    {
        "german": r"\bvor {number} {unit}\b",
        "french": r"\bil y a {number} {unit}\b",
        "spanish": r"\bhace {number} {unit}\b",
        "russian": r"\b(?:{number} )?{unit} назад\b",
        "chinese": "{number}{unit}以?前",
        "japanese": "{number}{unit}前",
    }
)
_WEEKDAY_FORMS: Mapping[Language, str] = MappingProxyType(
    {
        "german": r"\bletzten {weekday}\b",
        "french": r"\b{weekday} dernier\b",
        "spanish": r"\b{weekday} pasado\b",
        "russian": r"\bпрошл(?:ый|ую|ое) {weekday}\b",
        "chinese": "上个?(?:周|星期|礼拜){weekday}",
        "japanese": "先週の?{weekday}曜",
    }
)
_LAST_WEEK = {"chinese": re.compile("上个?(?:周|星期)"), "japanese": re.compile("先週")}


def _name_groups(prefix: str, alternatives: str) -> str:
    """A named group for each of the comma-separated alternatives. The name ends with its place."""
    return "|".join(f"(?P<{prefix}{place}>{each})" for place, each in enumerate(alternatives.split(",")))


_UNITS_AGO_IN = {
    language: re.compile(
        form.format(
            number=rf"(?:(?P<digits>\d{{1,3}})|{_name_groups('n', _FOREIGN_NUMBERS[language])})",
            unit=f"(?:{_name_groups('u', _FOREIGN_UNITS[language])})",
        )
    )
    for language, form in _AGO_FORMS.items()
}
_LAST_WEEKDAY_IN = {
    language: re.compile(form.format(weekday=f"(?:{_name_groups('d', _FOREIGN_WEEKDAYS[language])})"))
    for language, form in _WEEKDAY_FORMS.items()
}
_MONTH_PREPOSITION = re.compile(r"\b(?:in|of|by|since|until|during|before|after|last|this|early|late|mid) $")
_MAX_PREPOSITION_CHARS = 7
"""Length of the longest preposition with its space, which bounds how far the text before a month is searched."""


class TimeRange(NamedTuple):
    """Half-open range, in microseconds since 1970."""

    start: int
    end: int


def cut_to_edges(text: str) -> str:
    """Cuts a long text to its beginning and end, at spaces, so that the cost of all patterns is bounded."""
    if len(text) <= 2 * MAX_EDGE_CHARS:
        return text
    head, tail = text[:MAX_EDGE_CHARS], text[-MAX_EDGE_CHARS:]
    return f"{head.rsplit(maxsplit=1)[0] if head.strip() else ''}\n{tail.split(maxsplit=1)[-1] if tail.strip() else ''}"


def find_time_ranges(text: str, *, at: int) -> tuple[TimeRange, ...]:
    """Distinct time ranges that a text names. Relative dates count from `at`."""
    text = cut_to_edges(text)
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
        ranges += _range_before(today, first=number * _UNIT_DAYS[unit] + _UNIT_DAYS[unit] // 2, days=_UNIT_DAYS[unit])
    for number, unit, single in _PAST_UNITS.findall(low):
        count = {"few": 3, "couple of": 2, "": 1}.get(number) or _NUMBER_WORDS.get(number) or int(number)
        days = count * _UNIT_DAYS[unit or single]
        ranges += _range_before(today, first=days, days=days + 1)
    for weekday in _LAST_WEEKDAY.findall(low):
        number, days = (5, 2) if weekday == "weekend" else (_WEEKDAYS.index(weekday), 1)
        ranges += _range_before(today, first=(today.weekday() - number - days) % 7 + days, days=days)
    for holiday in _HOLIDAY.findall(low):
        days = [_date_holiday(holiday, year) for year in (today.year, max(1, today.year - 1))]
        ranges += [_range_from(day - timedelta(days=1), days=3) for day in days if day <= today][:1]
    return tuple(dict.fromkeys(ranges))


def is_date_word(word: str) -> bool:
    """Whether a word, in lower case, may belong to the dates of a text that names one."""
    return word in TIME_WORDS or word in _SMALL_NUMBERS or DATE_TOKEN.fullmatch(word) is not None


def translate_dates(low: str, language: Language) -> str:
    """Replaces the dates of a text in lower case by English ones. A month alone gets the preposition "in"."""
    if language == "english":
        return low

    def place(match: re.Match[str], prefix: str) -> int:
        """Which of the alternatives matched; -1 for none."""
        return next((int(name[1:]) for name, value in match.groupdict().items() if value and name[0] == prefix), -1)

    def translate_units(match: re.Match[str]) -> str:
        number = match["digits"] or max(0, place(match, "n")) + 1
        return f" {number} {list(_UNIT_DAYS)[place(match, 'u')]} ago "

    low = _UNITS_AGO_IN[language].sub(translate_units, low)
    low = _LAST_WEEKDAY_IN[language].sub(lambda match: f" last {_WEEKDAYS[place(match, 'd')]} ", low)
    low = _RELATIVE_DATE[language].sub(lambda match: f" {_RELATIVE_DATES[language][match[0]]} ", low)
    if language in _SPACED_DATES:
        return _SPACED_DATES[language].sub(lambda match: _to_english(match[1], match[2], match[3]), low)
    low = _LAST_WEEK[language].sub(" last week ", low)
    return _UNSPACED_DATE.sub(lambda match: _to_english(match[3], match[2], match[1]), low)


def _to_english(day: str | None, month: str, year: str | None) -> str:
    number = int(month) - 1 if month.isascii() and month.isdecimal() else _MONTH_NUMBERS.get(month, -1)
    if not 0 <= number < len(_MONTHS):
        return " "
    return f" {day or 'in'} {_MONTHS[number]} {year or ''} "


def _date_holiday(name: str, year: int) -> date:
    if name == "thanksgiving":
        # The fourth Thursday of November.
        return date(year, 11, 22 + (3 - date(year, 11, 22).weekday()) % 7)
    if name == "easter":
        # The anonymous Gregorian algorithm.
        century, rest = divmod(year, 100)
        golden = year % 19
        epact = (19 * golden + century - century // 4 - (century - (century + 8) // 25 + 1) // 3 + 15) % 30
        weekday = (32 + 2 * (century % 4) + 2 * (rest // 4) - epact - rest % 4) % 7
        month, day = divmod(epact + weekday - 7 * ((golden + 11 * epact + 22 * weekday) // 451) + 114, 31)
        return date(year, month, day + 1)
    return date(year, *_HOLIDAYS[name])


def _day_range(year: int, month: int, day: int) -> list[TimeRange]:
    """The range of a day. Empty if the calendar does not have it."""
    try:
        return [_range_from(date(year, month, day), days=1)]
    except ValueError:
        return []


def _range_before(today: date, *, first: int, days: int) -> list[TimeRange]:
    """The range that begins this many days before today. Empty before the calendar begins."""
    return [_range_from(today - timedelta(days=first), days=days)] if first < (today - date.min).days else []


def _range_from(first: date, *, days: int) -> TimeRange:
    start = (first - date(1970, 1, 1)).days * DAY_MICROS
    return TimeRange(start, start + days * DAY_MICROS)
