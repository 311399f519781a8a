"""Tokenizer of the recall index: splits text into words, drops stop words, and stems English words.

A stored term matches a query term exactly if they are equal. Segments store terms: after any change of the tokenizer or
the stemmer, raise `segments.SEGMENT_FORMAT_VERSION`, so that segments are rebuilt.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

MAX_WORD_CHARS = 40
"""Characters of a word that are indexed; longer ones are keys or encoded data, which their head identifies."""

_UNSPACED_SCRIPTS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_LETTER = rf"[^\W_{_UNSPACED_SCRIPTS}]"
_WORD = re.compile(rf"\d+(?:[.,]\d+)+|[{_UNSPACED_SCRIPTS}]+|{_LETTER}+(?:['’]{_LETTER}+)*")
_UNSPACED_CHAR = re.compile(rf"[{_UNSPACED_SCRIPTS}]")
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")
_VOWEL = re.compile("[aeiouy]")

_STOP_WORD_LIST = (
    "a about again all also am an and any are as at be been being both but by can could did do does doing don done down"
    " each for from get got had has have having he hello her here hers hey hi him his how i if in into is it its just"
    " let like many may me might mine more most much must my myself no nor not of off oh ok okay on once only onto or"
    " other our ours out over own re really same shall she should so some such than thank thanks that the their theirs"
    " them then there these they this those to too under up us ve very was we well were what when where which who whom"
    " whose why will with without would yeah yes you your yours"
)
_STOP_WORDS = frozenset(_STOP_WORD_LIST.split())
_CONTRACTIONS = ("n't", "'m", "'ve", "'ll", "'re", "'d")

_IRREGULAR_LIST = (
    "become became, begin began begun, break broke broken, bring brought, build built, buy bought, catch caught,"
    "child children, choose chose chosen, come came, dad father, draw drew drawn, drink drank drunk,"
    "drive drove driven, eat ate eaten, fall fell fallen, feed fed, feel felt, fight fought, find found,"
    "fly flew flown, foot feet, forget forgot forgotten, give gave given, go went gone goes going, grow grew grown,"
    "hang hung, hear heard, hide hid hidden, hold held, keep kept, know knew known, lead led, leave left, lend lent,"
    "life lives, lose lost, make made, man men, mean meant, meet met, mom mother mum, mouse mice, pay paid,"
    "person people, ride rode ridden, ring rang rung, rise rose risen, run ran, say said, see saw seen,"
    "sell sold, send sent, shake shook shaken, sing sang sung, sit sat, sleep slept, speak spoke spoken,"
    "spend spent, stand stood, steal stole stolen, stick stuck, strike struck, sweep swept, swim swam swum,"
    "take took taken, teach taught, tell told, think thought, throw threw thrown, tooth teeth, understand understood,"
    "wake woke woken, wear wore worn, wife wives, win won, woman women, write wrote written"
)
_IRREGULAR_FORMS = {form: first for first, *forms in map(str.split, _IRREGULAR_LIST.split(",")) for form in forms}

_SUFFIXES = (
    ("ization", "iz"), ("ational", "at"), ("ation", "at"), ("ition", "it"), ("ement", ""), ("ment", ""), ("ness", ""),
    ("fully", ""), ("ously", ""), ("able", ""), ("ance", ""), ("ence", ""), ("ful", ""), ("ion", ""), ("ist", ""),
    ("ity", ""), ("ive", ""), ("al", ""), ("er", ""), ("ly", ""), ("or", ""),
)  # fmt: skip
_MIN_STEM_BEFORE_SHORT, _MIN_STEM_BEFORE_LONG = 5, 4
"""Letters that must remain before a suffix of up to three letters, and before a longer one."""


def tokenize(text: str) -> list[str]:
    """Terms of a text in order, with repetitions."""
    return [term for word in split_words(text) for term in tokenize_word(word)]


def split_words(text: str) -> list[str]:
    """Words of a text as written; a run of a script without spaces (Chinese, Thai) is one word."""
    return _WORD.findall(text)


def tokenize_word(word: str) -> tuple[str, ...]:
    """Terms of a word: none for a stop word, bigrams for a script without spaces, otherwise one stem."""
    # A long word is not cached: a few of them, with all their bigrams, would fill the memory.
    return _tokenize_short_word(word) if len(word) <= MAX_WORD_CHARS else _find_terms(word)


@lru_cache(maxsize=65_536)
def _tokenize_short_word(word: str) -> tuple[str, ...]:
    return _find_terms(word)


def _find_terms(word: str) -> tuple[str, ...]:
    if _UNSPACED_CHAR.match(word):
        return tuple(_split_bigrams(unicodedata.normalize("NFKC", word)))
    normalized = _normalize(word)
    if normalized in _STOP_WORDS or (len(normalized) < 2 and normalized.isalpha()):
        return ()
    return (_stem(normalized[:MAX_WORD_CHARS]),)


def deduplicate(terms: Iterable[str]) -> list[str]:
    """Distinct terms, in order of first occurrence."""
    return list(dict.fromkeys(terms))


def _split_bigrams(run: str) -> Iterator[str]:
    for start in range(max(1, len(run) - 1)):
        yield run[start : start + 2]


def _normalize(word: str) -> str:
    """Casefolds and strips accents, commas of numbers, ordinal suffixes and possessives; contractions become "not"."""
    word = word.replace("’", "'").casefold()
    if not word.isascii():
        decomposed = unicodedata.normalize("NFKD", word).casefold()
        word = unicodedata.normalize("NFC", "".join(char for char in decomposed if not unicodedata.combining(char)))
    if word[:1].isdigit():
        ordinal = _ORDINAL.fullmatch(word)
        return ordinal[1] if ordinal else word.replace(",", "")
    if word.endswith(_CONTRACTIONS):
        return "not"
    return word.removesuffix("'s").replace("'", "")


def _stem(word: str) -> str:
    """Approximate English stemmer; it changes words of other languages little."""
    word = _IRREGULAR_FORMS.get(word, word)
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    word = _strip_plural(word)
    word = _IRREGULAR_FORMS.get(word, word)
    word = _strip_suffix(_strip_tense(word))
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    return word[:-1] + "i" if len(word) > 3 and word.endswith("y") else word


def _strip_plural(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes", "zes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _strip_tense(word: str) -> str:
    if word.endswith("ied") and len(word) > 4:
        return word[:-3] + "y"
    for ending in ("ing", "ed"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= 3 and _VOWEL.search(stem):
            # "planning" becomes "plan", but "selling" becomes "sell".
            doubled = len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "lsz"
            return stem[:-1] if doubled else stem
    return word


def _strip_suffix(word: str) -> str:
    for suffix, replacement in _SUFFIXES:
        if word.endswith(suffix):
            stem = word.removesuffix(suffix)
            min_chars = _MIN_STEM_BEFORE_SHORT if len(suffix) <= 3 else _MIN_STEM_BEFORE_LONG
            return stem + replacement if len(stem) >= min_chars else word
    return word
