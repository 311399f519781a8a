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

_OWN = re.compile(r"\b(?:i|me|my|mine|we|our)\b", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_DIGIT = re.compile(r"\d")
_TIME = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|ago|last|next|recently|since|morning|week(?:end)?s?|days?|months?|years?"
    r"|summer|winter|fall|spring|(?:mon|tues|wednes|thurs|fri|satur|sun)day|january|february|march|april|may|june|july"
    r"|august|september|october|november|december|(?:19|20)\d\d|\d{1,2}(?:st|nd|rd|th))\b",
    re.IGNORECASE,
)
_FROM_NOW_ON = re.compile(r"\s*(?:please\s+)?(?:always|never|from now on)\b", re.IGNORECASE)
_LIKES_BETTER = re.compile(r"\b(?:prefer|rather)\b", re.IGNORECASE)


class Marks(NamedTuple):
    own: int
    """The share of its words that are "I", "my" and the like, in parts of `FULL`."""
    times: int
    digits: int
    wish: int
    """`STANDING`, `PREFERENCE` or 0."""


def marks_of(text: str) -> Marks:
    head = text[:READ]
    spoken = head[: READ // 2]
    share = len(_OWN.findall(spoken)) / (1 + len(_WORD.findall(spoken)))
    return Marks(
        own=round(FULL * min(1.0, share)),
        times=min(MOST, len(_TIME.findall(head))),
        digits=min(MOST, len(_DIGIT.findall(head))),
        wish=STANDING if _FROM_NOW_ON.match(head) else PREFERENCE if _LIKES_BETTER.search(head) else 0,
    )
