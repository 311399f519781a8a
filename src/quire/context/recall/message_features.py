"""Query-independent message features, as small integers for the columns of a segment.

The share of first-person words, the counts of time words and digits, and whether the message gives a standing
instruction or a preference. English only: in other languages the features are zero and the other signals rank.
"""

import re
from typing import NamedTuple

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
_FIRST_PERSON_WORDS = frozenset(["i", "me", "my", "mine", "we", "our"])
_TIME_WORD_LIST = (
    "yesterday today tonight tomorrow ago last next recently since morning week weeks weekend weekends day days month"
    " months year years summer winter fall spring monday tuesday wednesday thursday friday saturday sunday january"
    " february march april may june july august september october november december"
)
_TIME_WORDS = frozenset(_TIME_WORD_LIST.split())
_DATE_TOKEN = re.compile(r"(?:19|20)\d\d|\d{1,2}(?:st|nd|rd|th)")
_STANDING_INSTRUCTION = re.compile(r"\s*(?:please\s+)?(?:always|never|from now on)\b", re.IGNORECASE)
_PREFERENCE_WORDS = frozenset(["prefer", "rather"])


class MessageFeatures(NamedTuple):
    first_person: int
    """Share of words such as "I" and "my", times `FRACTION_SCALE`."""
    time_words: int
    digits: int
    directive: int
    """`DIRECTIVE_STANDING`, `DIRECTIVE_PREFERENCE` or 0."""


def extract_features(text: str) -> MessageFeatures:
    head = text[:MAX_FEATURE_CHARS]
    words, first_words = _split_words(head), _split_words(head[: MAX_FEATURE_CHARS // 2])
    share = sum(word in _FIRST_PERSON_WORDS for word in first_words) / (1 + len(first_words))
    return MessageFeatures(
        first_person=round(FRACTION_SCALE * min(1.0, share)),
        time_words=min(MAX_FEATURE_COUNT, sum(_is_time_word(word) for word in words)),
        digits=min(MAX_FEATURE_COUNT, len(_DIGIT.findall(head))),
        directive=DIRECTIVE_STANDING
        if _STANDING_INSTRUCTION.match(head)
        else DIRECTIVE_PREFERENCE
        if not _PREFERENCE_WORDS.isdisjoint(words)
        else 0,
    )


def _split_words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _is_time_word(word: str) -> bool:
    return word in _TIME_WORDS or (word[0].isdecimal() and _DATE_TOKEN.fullmatch(word) is not None)
