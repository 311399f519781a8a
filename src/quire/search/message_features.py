"""Query-independent message features, as small integers for the columns of a segment.

The share of first-person words, the counts of time words and digits, and whether the message gives a standing
instruction or a preference. In a language without word lists they are zero, and the other signals rank.
"""

import re
from typing import NamedTuple

from quire.search.language_words import (
    FIRST_PERSON_WORDS,
    PREFERENCE_WORDS,
    STANDING_INSTRUCTIONS,
    TIME_WORDS,
    UNSPACED_FIRST_PERSON,
    UNSPACED_STANDING_INSTRUCTIONS,
    UNSPACED_TIMES,
)
from quire.search.tokenizer import MAX_CACHED_WORDS, MAX_WORD_CHARS, UNSPACED_CHAR

MAX_FEATURE_CHARS = 1_500
"""Characters at the start of a message from which features are extracted: the start shows its topic."""
MAX_FEATURE_COUNT = 3
"""Cap on the counts of time words and of digits: more of them carry no more information."""
FRACTION_SCALE = 255
"""Stored value of a share of 1."""
DIRECTIVE_PREFERENCE, DIRECTIVE_STANDING = 1, 2
"""Directives: a preference of the speaker, and a standing instruction for all later turns."""

_WORD = re.compile(r"\w+")
_DIGIT = re.compile(r"\d")
_ASCII_DIGITS = "0123456789"
_DATE_TOKEN = re.compile(r"(?:19|20)\d\d|\d{1,2}(?:st|nd|rd|th)")
_STANDING_INSTRUCTION = re.compile(
    r"\s*(?:please\s+|bitte\s+|por favor,?\s+|пожалуйста,?\s+|请)?"
    rf"(?:(?:{STANDING_INSTRUCTIONS})\b|{UNSPACED_STANDING_INSTRUCTIONS})"
)
_UNSPACED_TIME = re.compile(UNSPACED_TIMES)
_UNSPACED_FIRST_PERSON = re.compile(UNSPACED_FIRST_PERSON)
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
    return MessageFeatures(
        first_person=round(FRACTION_SCALE * min(1.0, share)),
        own_opening=_opens_in_first_person(head),
        time_words=min(MAX_FEATURE_COUNT, _unpack(counts, _TIME_UNIT)),
        digits=min(MAX_FEATURE_COUNT, digits),
        directive=DIRECTIVE_STANDING
        if _STANDING_INSTRUCTION.match(head)
        else DIRECTIVE_PREFERENCE
        if _unpack(counts, _PREFERENCE_UNIT)
        else 0,
    )


def _opens_in_first_person(head: str) -> int:
    first = _WORD.search(head)
    word = first[0] if first is not None else ""
    return int(word in FIRST_PERSON_WORDS or _UNSPACED_FIRST_PERSON.match(word) is not None)


def _unpack(counts: int, unit: int) -> int:
    return counts // unit % _FIRST_PERSON_UNIT


class _PieceCounts(dict[str, int]):
    """Counts of pieces between white space, which are made at the first lookup; emptied when it is full."""

    def __missing__(self, piece: str) -> int:
        counts = _count_unspaced(piece) if UNSPACED_CHAR.search(piece) else sum(map(_count_word, _WORD.findall(piece)))
        if len(piece) <= MAX_WORD_CHARS:
            if len(self) >= MAX_CACHED_WORDS:
                self.clear()
            self[piece] = counts
        return counts


_PIECE_COUNTS = _PieceCounts()


def _count_word(word: str) -> int:
    return (
        _WORD_UNIT
        + _FIRST_PERSON_UNIT * (word in FIRST_PERSON_WORDS)
        + _TIME_UNIT * (word in TIME_WORDS or (word[0].isdecimal() and _DATE_TOKEN.fullmatch(word) is not None))
        + _PREFERENCE_UNIT * (word in PREFERENCE_WORDS)
    )


def _count_unspaced(piece: str) -> int:
    return (
        _WORD_UNIT * (1 + len(piece) // _UNSPACED_WORD_CHARS)
        + _FIRST_PERSON_UNIT * len(_UNSPACED_FIRST_PERSON.findall(piece))
        + _TIME_UNIT * len(_UNSPACED_TIME.findall(piece))
    )
