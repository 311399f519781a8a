"""Text as the search index knows it: the stems of its words, and how often each occurs.

Both databases are given the same words, so that a search finds the same on either. The rows of the index hold what
this file makes: whoever changes it empties `quire_passages`, `quire_terms` and `quire_scopes` in a migration.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from string import ascii_lowercase

LONGEST = 48
"""A word is cut after so many characters; what is longer is seldom a word."""

_RUNS = re.compile(r"[^\W_]+")
# Written without spaces: Han, Kana, Hangul, Thai, Lao, Khmer, Myanmar.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_VOWEL = re.compile("[aeiouy]")

_STOP = (
    "a about after all also am an and any are as at be because been before being but by can could did do does doing "
    "done don for from further had has have having he her here hers him his how if in into is it its just ll me more "
    "most my no nor not of off on once only or other our out over own re same she should so some such than that the "
    "their them then there these they this those through to too under until up us ve very was we were what when where "
    "which while who whom why will with would you your"
)
STOP_WORDS = frozenset(_STOP.split())


def storable(text: str) -> str:
    """The text without what PostgreSQL or UTF-8 cannot keep: NUL, and halves of characters."""
    if "\x00" not in text and text.isascii():
        return text
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()


def words(text: str) -> Counter[str]:
    """The stems of the words that say something, with their number."""
    if text.isascii():
        return Counter(filter(None, map(_spaced, _RUNS.findall(text.lower()))))
    return Counter(stem for run in _RUNS.findall(_plain(text)) for stem in _stems(run) if stem)


def _stems(run: str) -> Iterable[str]:
    return _pairs(run) if _UNSPACED.search(run) else (_spaced(run),)


@lru_cache(maxsize=65_536)
def _spaced(word: str) -> str:
    """A word's stem, or nothing for one that says nothing."""
    return "" if word in STOP_WORDS or (len(word) == 1 and word in ascii_lowercase) else stem(word)


def _plain(text: str) -> str:
    """Lower case, without accents, one form for what looks alike."""
    parted = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(char for char in parted if not unicodedata.combining(char))
    return unicodedata.normalize("NFC", bare)


def _pairs(run: str) -> Iterator[str]:
    """Where nothing shows where words end, each two neighbouring characters stand for one."""
    for start in range(max(1, len(run) - 1)):
        yield run[start : start + 2]


def stem(word: str) -> str:
    """What the forms of an English word have in common, roughly; other words lose little by it."""
    word = word[:LONGEST]
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    word = _without_plural(word)
    word = _without_ending(word)
    return word[:-1] + "i" if word.endswith("y") and len(word) > 2 else word.removesuffix("e")


def _without_plural(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _without_ending(word: str) -> str:
    for ending in ("ingly", "edly", "ing", "ed", "ly"):
        if not word.endswith(ending):
            continue
        left = word[: -len(ending)]
        if len(left) < 3 or not _VOWEL.search(left):
            return word
        # "planning" and "plan", but "selling" and "sell".
        return left[:-1] if ending != "ly" and left[-1] == left[-2] and left[-1] not in "lsz" else left
    return word
