"""Marks: what a message shows about itself without any question, as small numbers for a segment's columns.

How much it speaks of its own speaker, how many words of time and how many digits it has, and whether it sets down a
standing wish. English words; in another language the marks are zero and the other signals carry the ranking.
"""

import re
from typing import NamedTuple

READ = 1_500
"""Characters of a message that are looked at: what it is about shows at its beginning."""
MOST = 3
"""More words of time, or more digits, than so many say no more."""
FULL = 255
"""A share of 1, as a segment keeps it."""
PREFERENCE, STANDING = 1, 2
"""Wishes: for what the speaker likes better, and for what is to be done from now on."""

_WORD = re.compile(r"\w+")
_DIGIT = re.compile(r"\d")
_OWN = frozenset(["i", "me", "my", "mine", "we", "our"])
_WORDS_OF_TIME = (
    "yesterday today tonight tomorrow ago last next recently since morning week weeks weekend weekends day days month"
    " months year years summer winter fall spring monday tuesday wednesday thursday friday saturday sunday january"
    " february march april may june july august september october november december"
)
_TIMES = frozenset(_WORDS_OF_TIME.split())
_DATED = re.compile(r"(?:19|20)\d\d|\d{1,2}(?:st|nd|rd|th)")
_FROM_NOW_ON = re.compile(r"\s*(?:please\s+)?(?:always|never|from now on)\b", re.IGNORECASE)
_LIKES_BETTER = frozenset(["prefer", "rather"])


class Marks(NamedTuple):
    own: int
    """The share of its words that are "I", "my" and the like, in parts of `FULL`."""
    times: int
    digits: int
    wish: int
    """`STANDING`, `PREFERENCE` or 0."""


def marks_of(text: str) -> Marks:
    head = text[:READ]
    words, spoken = _words(head), _words(head[: READ // 2])
    share = sum(word in _OWN for word in spoken) / (1 + len(spoken))
    return Marks(
        own=round(FULL * min(1.0, share)),
        times=min(MOST, sum(_is_time(word) for word in words)),
        digits=min(MOST, len(_DIGIT.findall(head))),
        wish=STANDING if _FROM_NOW_ON.match(head) else PREFERENCE if not _LIKES_BETTER.isdisjoint(words) else 0,
    )


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _is_time(word: str) -> bool:
    return word in _TIMES or (word[0].isdecimal() and _DATED.fullmatch(word) is not None)
