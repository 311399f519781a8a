"""How far the words of a message are found in short texts: a number from 0 to 1 for each, without any model.

A rare word weighs more than a common one, in the manner of BM25; names count for more than what stands below them.
Deterministic: the same texts give the same numbers, whatever their order.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import log
from typing import NamedTuple

IN_NAME, IN_DESCRIPTION, IN_TEXT = 1.0, 0.9, 0.5
"""What a word is worth by where it is found."""
UNHEARD = 0.25
"""What a word weighs that none of the texts has: it says that the message is about something else as well."""
DECIDING = 8
"""So many of a message's weightiest words are enough to be covered, or nothing would ever match a long one."""
EARLIER = 0.25
"""What the words of the turn before weigh, beside the message's own; half of that one turn earlier, and so on."""
READ = 4_000
"""Characters of a message that are looked at."""

_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_CJK = "\u2e80-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]+|\d+|[^\W\d_{_CJK}]+")
_IDEOGRAPHS = re.compile(rf"[{_CJK}]")
_ENDINGS = (
    "izations", "ization", "ations", "ation", "ating", "ators", "ator", "ated", "ates", "ate", "ments", "ment", "ings",
    "ing", "ions", "ion", "ness", "able", "ible", "ers", "er", "ed", "es", "ly", "s", "e",
)  # fmt: skip
_SAYING_NOTHING = (
    "a about all also am an and any are as at be been but by can could did do does doing for from get give go good got"
    " had has have he hello her here hi him his how i if in into is it its just let lets like ll make may me might more"
    " morning most much must my need new no not now of off ok on one only or our out over own please re s she should"
    " show so some such t tell than thank thanks that the their them then there these they this those through to too up"
    " us use ve very want was we were what when where which while who whom why will with would yes you your"
)
_EMPTY = frozenset(_SAYING_NOTHING.split())


class Described(NamedTuple):
    """A text to be found: what it is called, what it is about, and how it begins."""

    name: str
    description: str
    text: str = ""


def terms(text: str) -> list[str]:
    """The words that say something, without their endings; `readFile` and `read_file` are two words each."""
    found: list[str] = []
    for word in _WORD.findall(_CAPITAL.sub(" ", text)):
        lower = word.lower()
        if _IDEOGRAPHS.match(word):
            found += [left + right for left, right in pairwise(word)] or [word]
        elif lower not in _EMPTY and (len(lower) > 1 or lower.isdigit()):
            found.append(_stem(lower))
    return found


@lru_cache(maxsize=20_000)
def _stem(word: str) -> str:
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    for ending in _ENDINGS:
        least = 4 if len(ending) > 2 or ending in ("er", "ly") else 3
        if word.endswith(ending) and len(word) - len(ending) >= least:
            word = word.removesuffix(ending)
            break
    doubled = len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiouls"
    return word[:-1] if doubled else word


def overlap(message: str, texts: Sequence[Described], *, recent: Sequence[str] = ()) -> list[float]:
    """For each text, how much of what the message asks for it has. `recent` are earlier turns, the latest first."""
    places = [_places(text) for text in texts]
    heard = Counter(term for place in places for term in place)
    asked = _asked(message, recent)
    weights = {term: weight * _rarity(heard[term], len(texts)) for term, weight in asked.items()}
    whole = _whole(weights[term] if heard[term] else UNHEARD * weights[term] for term in weights)
    if not whole:
        return [0.0] * len(texts)
    return [
        min(1.0, sum(weight * place.get(term, 0.0) for term, weight in weights.items()) / whole) for place in places
    ]


@lru_cache(maxsize=10_000)
def _places(text: Described) -> dict[str, float]:
    """Each word of a text with what it is worth there."""
    worth = dict.fromkeys(terms(text.text), IN_TEXT)
    worth |= dict.fromkeys(terms(text.description), IN_DESCRIPTION)
    return worth | dict.fromkeys(terms(text.name), IN_NAME)


def _asked(message: str, recent: Sequence[str]) -> dict[str, float]:
    asked = dict.fromkeys(terms(message[:READ]), 1.0)
    for age, turn in enumerate(recent):
        for term in terms(turn[:READ]):
            asked.setdefault(term, EARLIER / 2**age)
    return asked


def _rarity(texts_with: int, texts: int) -> float:
    return log(1 + (texts - texts_with + 0.5) / (texts_with + 0.5))


def _whole(weights: Iterable[float]) -> float:
    return sum(sorted(weights, reverse=True)[:DECIDING])
