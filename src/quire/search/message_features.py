"""Query-independent message features, as small integers for the columns of a segment.

The share of first-person words, the counts of time words and digits, and whether the message gives a standing
instruction or a preference. In a language without word lists they are zero, and the other signals rank. Words that mean
something else in another language are not in the lists, so that no language has to be known.
"""

import re
from typing import NamedTuple

from quire.search.tokenizer import MAX_CACHED_WORDS, MAX_WORD_CHARS, UNSPACED_CHAR

MAX_FEATURE_CHARS = 1_500
"""Characters at the start of a message from which features are extracted: the start shows its topic."""
MAX_FEATURE_COUNT = 3
"""Cap on the counts of time words and of digits: more of them carry no more information."""
FRACTION_SCALE = 255
"""Stored value of a share of 1."""
DIRECTIVE_PREFERENCE, DIRECTIVE_STANDING = 1, 2
"""Directives: a preference of the speaker, and a standing instruction for all later turns."""

_FIRST_PERSON_WORDS_LIST = (
    "i me my mine we our ich mich mir mein meine meinen meinem meiner wir unser unsere unseren unserem je j moi mes"
    " nous notre nos yo mi mis nosotros nosotras nuestro nuestra nuestros nuestras я меня мне мной мой моя моё мое мои"
    " моей моего моих мы нас нам наш наша наше наши"
)
FIRST_PERSON_WORDS = frozenset(_FIRST_PERSON_WORDS_LIST.split())
_TIME_WORDS_LIST = (
    "yesterday today tonight tomorrow ago last next recently since morning week weeks weekend weekends day days month"
    " months year years summer winter fall spring monday tuesday wednesday thursday friday saturday sunday january"
    " february march april may june july august september october november december gestern heute morgen vorgestern"
    " letzte letzten letztes letzter nächste nächsten nächstes nächster woche wochen wochenende tag tage tagen monat"
    " monate monaten jahr jahre jahren sommer herbst frühling frühjahr montag dienstag mittwoch donnerstag freitag"
    " samstag sonntag januar februar märz mai juni juli oktober dezember hier aujourd'hui demain dernier dernière"
    " prochain prochaine semaine semaines jour jours mois année années été hiver automne printemps lundi mardi"
    " mercredi jeudi vendredi samedi dimanche janvier février avril juin juillet août septembre octobre novembre"
    " décembre ayer hoy mañana anteayer pasado pasada próximo próxima semana semanas día días mes meses año años"
    " verano invierno otoño primavera lunes martes miércoles jueves viernes sábado domingo enero febrero marzo abril"
    " mayo junio julio agosto septiembre octubre noviembre diciembre вчера сегодня завтра позавчера назад прошлой"
    " прошлом прошлый следующей следующем неделе неделю недели недель день дня дней месяц месяца месяцев месяце год"
    " года году лет летом зимой осенью весной понедельник вторник среду четверг пятницу субботу воскресенье выходные"
    " выходных января февраля марта апреля мая июня июля августа сентября октября ноября декабря январе феврале марте"
    " апреле июне июле августе сентябре октябре ноябре декабре"
)
TIME_WORDS = frozenset(_TIME_WORDS_LIST.split())
_UNSPACED_FIRST_PERSON = re.compile("[我咱私僕俺]")
_UNSPACED_TIME = re.compile(
    "昨天|今天|明天|前天|后天|上周|下周|周末|上个月|下个月|去年|今年|明年|星期.|礼拜.|周[一二三四五六日]|[0-9一二三四五六七八九十]{1,3}[月号日点]"
    "|昨日|今日|明日|先週|来週|今週|週末|先月|来月|来年|[月火水木金土日]曜日|昨夜|今朝|きのう|あした"
)
_PREFERENCE_WORDS_LIST = "prefer rather lieber bevorzuge préfère plutôt prefiero предпочитаю лучше"
_PREFERENCE_WORDS = frozenset(_PREFERENCE_WORDS_LIST.split())
_STANDING_INSTRUCTIONS = (
    "always|never|from now on|immer|niemals|ab jetzt|ab sofort|toujours|jamais|désormais|dorénavant|siempre"
    "|nunca|a partir de ahora|всегда|никогда|отныне|с этого момента|впредь"
)
_UNSPACED_STANDING_INSTRUCTIONS = "总是|永远|以后都|以后请|从现在起|いつも|必ず|今後|これから"

_WORD = re.compile(r"\w+")
_DIGIT = re.compile(r"\d")
_ASCII_DIGITS = "0123456789"
DATE_TOKEN = re.compile(r"(?:19|20)\d\d|\d{1,2}(?:st|nd|rd|th)")
_STANDING_INSTRUCTION = re.compile(
    r"\s*(?:please\s+|bitte\s+|por favor,?\s+|пожалуйста,?\s+|请)?"
    rf"(?:(?:{_STANDING_INSTRUCTIONS})\b|{_UNSPACED_STANDING_INSTRUCTIONS})"
)
_UNSPACED_WORD_CHARS = 2
"""Characters of a word, on average, in a script without spaces."""
_WORD_UNIT, _FIRST_PERSON_UNIT, _TIME_UNIT, _PREFERENCE_UNIT = 1, 1 << 16, 1 << 32, 1 << 48
"""Four counts in one integer, each below 1 << 16, so that one sum over a text adds up all of them."""


class MessageFeatures(NamedTuple):
    first_person: int
    """Share of words such as "I" and "my", times `FRACTION_SCALE`."""
    own_opening: int
    """1 if it begins with such a word: a report of one's own."""
    time_words: int
    digits: int
    directive: int
    """`DIRECTIVE_STANDING`, `DIRECTIVE_PREFERENCE` or 0."""


def extract_features(text: str) -> MessageFeatures:
    head = text[:MAX_FEATURE_CHARS].lower()
    middle = MAX_FEATURE_CHARS // 2
    first_counts = sum(map(_PIECE_COUNTS.__getitem__, head[:middle].split()))
    counts = first_counts + sum(map(_PIECE_COUNTS.__getitem__, head[middle:].split()))
    share = _unpack(first_counts, _FIRST_PERSON_UNIT) / (1 + _unpack(first_counts, _WORD_UNIT))
    digits = sum(map(head.count, _ASCII_DIGITS)) if head.isascii() else len(_DIGIT.findall(head))
    first_word = match[0] if (match := _WORD.search(head)) else ""
    opens_in_first_person = first_word in FIRST_PERSON_WORDS or _UNSPACED_FIRST_PERSON.match(first_word) is not None
    return MessageFeatures(
        first_person=round(FRACTION_SCALE * min(1.0, share)),
        own_opening=int(opens_in_first_person),
        time_words=min(MAX_FEATURE_COUNT, _unpack(counts, _TIME_UNIT)),
        digits=min(MAX_FEATURE_COUNT, digits),
        directive=DIRECTIVE_STANDING
        if _STANDING_INSTRUCTION.match(head)
        else DIRECTIVE_PREFERENCE
        if _unpack(counts, _PREFERENCE_UNIT)
        else 0,
    )


def _unpack(counts: int, unit: int) -> int:
    return counts // unit % _FIRST_PERSON_UNIT


class _PieceCounts(dict[str, int]):
    """Counts of pieces between white space, which are made at the first lookup. Emptied when it is full."""

    def __missing__(self, piece: str) -> int:
        if UNSPACED_CHAR.search(piece):
            counts = (
                _WORD_UNIT * (1 + len(piece) // _UNSPACED_WORD_CHARS)
                + _FIRST_PERSON_UNIT * len(_UNSPACED_FIRST_PERSON.findall(piece))
                + _TIME_UNIT * len(_UNSPACED_TIME.findall(piece))
            )
        else:
            counts = 0
            for word in _WORD.findall(piece):
                is_date = word[0].isdecimal() and DATE_TOKEN.fullmatch(word) is not None
                counts += (
                    _WORD_UNIT
                    + _FIRST_PERSON_UNIT * (word in FIRST_PERSON_WORDS)
                    + _TIME_UNIT * (word in TIME_WORDS or is_date)
                    + _PREFERENCE_UNIT * (word in _PREFERENCE_WORDS)
                )
        if len(piece) <= MAX_WORD_CHARS:
            if len(self) >= MAX_CACHED_WORDS:
                self.clear()
            self[piece] = counts
        return counts


_PIECE_COUNTS = _PieceCounts()
