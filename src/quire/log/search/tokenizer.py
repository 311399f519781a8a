"""Tokenizer of the search index: words, stop words and a light English stemmer.

SQLite and PostgreSQL store the same terms, so a search finds the same on both. The index contains the output of this
module: a change needs a migration that empties `quire_passages`, `quire_terms` and `quire_search_scopes`.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from string import ascii_lowercase

MAX_WORD_CHARS = 48
"""A longer word is cut to this length; it is rarely a real word."""

_WORD_PATTERN = re.compile(r"[^\W_]+")
_CUT_WORD_PATTERN = re.compile(rf"([^\W_]{{1,{MAX_WORD_CHARS}}}+)[^\W_]*")
# Scripts without spaces between words: Han, Kana, Hangul, Thai, Lao, Khmer, Myanmar.
_UNSPACED_SCRIPT = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_VOWEL = re.compile("[aeiouy]")

_STOP_WORDS_TEXT = (
    "a about after all also am an and any are as at be because been before being but by can could did do does doing "
    "done don for from further had has have having he her here hers him his how if in into is it its just ll me more "
    "most my no nor not of off on once only or other our out over own re same she should so some such than that the "
    "their them then there these they this those through to too under until up us ve very was we were what when where "
    "which while who whom why will with would you your"
)
STOP_WORDS = frozenset(_STOP_WORDS_TEXT.split())


def count_terms(text: str) -> Counter[str]:
    """Counts the stems of the words in a text, without stop words."""
    if text.isascii():
        return Counter(filter(None, map(_stem_unless_stop_word, _CUT_WORD_PATTERN.findall(text.lower()))))
    return Counter(stem for run in _WORD_PATTERN.findall(_normalize(text)) for stem in _stem_run(run) if stem)


def _stem_run(run: str) -> Iterable[str]:
    return _bigrams(run) if _UNSPACED_SCRIPT.search(run) else (_stem_unless_stop_word(run[:MAX_WORD_CHARS]),)


@lru_cache(maxsize=65_536)
def _stem_unless_stop_word(word: str) -> str:
    """The stem of a word, or '' for a stop word or a single letter. Callers cut the word, which the cache holds."""
    return "" if word in STOP_WORDS or (len(word) == 1 and word in ascii_lowercase) else stem(word)


def _normalize(text: str) -> str:
    """Lower case, without accents, in one Unicode form."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    without_accents = "".join(char for char in decomposed if not unicodedata.combining(char))
    return unicodedata.normalize("NFC", without_accents)


def _bigrams(run: str) -> Iterator[str]:
    """Character bigrams, which replace words in scripts without spaces."""
    for start in range(max(1, len(run) - 1)):
        yield run[start : start + 2]


def stem(word: str) -> str:
    """A light English stemmer; it changes little in words of other languages."""
    word = word[:MAX_WORD_CHARS]
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    word = _strip_plural(word)
    word = _strip_suffix(word)
    return word[:-1] + "i" if word.endswith("y") and len(word) > 2 else word.removesuffix("e")


def _strip_plural(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _strip_suffix(word: str) -> str:
    for ending in ("ingly", "edly", "ing", "ed", "ly"):
        if not word.endswith(ending):
            continue
        base = word[: -len(ending)]
        if len(base) < 3 or not _VOWEL.search(base):
            return word
        # "planning" and "plan", but "selling" and "sell".
        return base[:-1] if ending != "ly" and base[-1] == base[-2] and base[-1] not in "lsz" else base
    return word
