"""Keyword scores from 0 to 1 of short texts for a message, without any model: tokenizer, stop words, stemmer, IDF.

A rare word weighs more than a common one, as in BM25; a match in a name counts more than one in a description or text.
Deterministic: the same texts get the same scores in any order.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import log
from typing import NamedTuple

NAME_WEIGHT, DESCRIPTION_WEIGHT, TEXT_WEIGHT = 1.0, 0.9, 0.5
"""Weight of a match by field."""
UNKNOWN_TERM_WEIGHT = 0.25
"""Weight of a query term that no text has: it shows that the message is also about something else."""
MAX_SCORED_TERMS = 8
"""Number of heaviest query terms that make a full score; without a cap nothing would match a long message."""
RECENT_TURN_WEIGHT = 0.25
"""Weight of the terms of the previous turn, relative to the message's own; halved for each turn before that."""
MAX_MESSAGE_CHARS = 4_000
"""Characters of a message that are scored."""

_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")
_CJK = "\u2e80-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]+|\d+|[^\W\d_{_CJK}]+")
_CJK_CHAR = re.compile(rf"[{_CJK}]")
_SUFFIXES = (
    "izations", "ization", "ations", "ation", "ating", "ators", "ator", "ated", "ates", "ate", "ments", "ment", "ings",
    "ing", "ions", "ion", "ness", "able", "ible", "ers", "er", "ed", "es", "ly", "s", "e",
)  # fmt: skip
_STOP_WORD_LIST = (
    "a about all also am an and any are as at be been but by can could did do does doing for from get give go good got"
    " had has have he hello her here hi him his how i if in into is it its just let lets like ll make may me might more"
    " morning most much must my need new no not now of off ok on one only or our out over own please re s she should"
    " show so some such t tell than thank thanks that the their them then there these they this those through to too up"
    " us use ve very want was we were what when where which while who whom why will with would yes you your"
)
_STOP_WORDS = frozenset(_STOP_WORD_LIST.split())


class SearchableText(NamedTuple):
    """The searched fields of an item; `text` is the start of its text."""

    name: str
    description: str
    text: str = ""


def extract_keywords(text: str) -> list[str]:
    """Stemmed words without stop words; `readFile` and `read_file` are two words each."""
    keywords: list[str] = []
    for word in _WORD.findall(_CAMEL_CASE_BOUNDARY.sub(" ", text)):
        lower = word.lower()
        if _CJK_CHAR.match(word):
            keywords += [left + right for left, right in pairwise(word)] or [word]
        elif lower not in _STOP_WORDS and (len(lower) > 1 or lower.isdigit()):
            keywords.append(_stem(lower))
    return keywords


@lru_cache(maxsize=20_000)
def _stem(word: str) -> str:
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    for ending in _SUFFIXES:
        min_chars = 4 if len(ending) > 2 or ending in ("er", "ly") else 3
        if word.endswith(ending) and len(word) - len(ending) >= min_chars:
            word = word.removesuffix(ending)
            break
    doubled = len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiouls"
    return word[:-1] if doubled else word


def score_keywords(message: str, texts: Sequence[SearchableText], *, recent: Sequence[str] = ()) -> list[float]:
    """Share of the message's term weight that each text covers. `recent` are earlier turns, the latest first."""
    fields = [_term_weights(text) for text in texts]
    frequencies = Counter(term for field_weights in fields for term in field_weights)
    query = _query_weights(message, recent)
    weights = {term: weight * _idf(frequencies[term], len(texts)) for term, weight in query.items()}
    total = _sum_top_weights(
        weights[term] if frequencies[term] else UNKNOWN_TERM_WEIGHT * weights[term] for term in weights
    )
    if not total:
        return [0.0] * len(texts)
    return [
        min(1.0, sum(weight * field_weights.get(term, 0.0) for term, weight in weights.items()) / total)
        for field_weights in fields
    ]


@lru_cache(maxsize=10_000)
def _term_weights(text: SearchableText) -> dict[str, float]:
    """The best field weight of each term of a text."""
    weights = dict.fromkeys(extract_keywords(text.text), TEXT_WEIGHT)
    weights |= dict.fromkeys(extract_keywords(text.description), DESCRIPTION_WEIGHT)
    return weights | dict.fromkeys(extract_keywords(text.name), NAME_WEIGHT)


def _query_weights(message: str, recent: Sequence[str]) -> dict[str, float]:
    weights = dict.fromkeys(extract_keywords(message[:MAX_MESSAGE_CHARS]), 1.0)
    for age, turn in enumerate(recent):
        for term in extract_keywords(turn[:MAX_MESSAGE_CHARS]):
            weights.setdefault(term, RECENT_TURN_WEIGHT / 2**age)
    return weights


def _idf(matching_texts: int, total_texts: int) -> float:
    return log(1 + (total_texts - matching_texts + 0.5) / (matching_texts + 0.5))


def _sum_top_weights(weights: Iterable[float]) -> float:
    return sum(sorted(weights, reverse=True)[:MAX_SCORED_TERMS])
