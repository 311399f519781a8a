"""Terms: the words of a text that say something, each in one form for all its forms.

A stored term and an asked one are the same word exactly if they are equal. Segments hold terms: whoever changes what a
word becomes raises `segments.FORMAT`, so that they are built anew.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

LONGEST = 40
"""Characters of a word that count; what is longer is a key or a picture in letters, and its head tells it apart."""

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_LETTER = rf"[^\W_{_UNSPACED}]"
_WORD = re.compile(rf"\d+(?:[.,]\d+)+|[{_UNSPACED}]+|{_LETTER}+(?:['’]{_LETTER}+)*")
_WITHOUT_SPACES = re.compile(rf"[{_UNSPACED}]")
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")
_VOWEL = re.compile("[aeiouy]")

_SAYING_NOTHING = (
    "a about again all also am an and any are as at be been being both but by can could did do does doing don done down"
    " each for from get got had has have having he hello her here hers hey hi him his how i if in into is it its just"
    " let like many may me might mine more most much must my myself no nor not of off oh ok okay on once only onto or"
    " other our ours out over own re really same shall she should so some such than thank thanks that the their theirs"
    " them then there these they this those to too under up us ve very was we well were what when where which who whom"
    " whose why will with without would yeah yes you your yours"
)
_SILENT = frozenset(_SAYING_NOTHING.split())
_SHORTENED = ("n't", "'m", "'ve", "'ll", "'re", "'d")

_IRREGULAR = (
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
_FORMS = {form: first for first, *forms in map(str.split, _IRREGULAR.split(",")) for form in forms}

_ENDINGS = (
    ("ization", "iz"), ("ational", "at"), ("ation", "at"), ("ition", "it"), ("ement", ""), ("ment", ""), ("ness", ""),
    ("fully", ""), ("ously", ""), ("able", ""), ("ance", ""), ("ence", ""), ("ful", ""), ("ion", ""), ("ist", ""),
    ("ity", ""), ("ive", ""), ("al", ""), ("er", ""), ("ly", ""), ("or", ""),
)  # fmt: skip
_LEFT_BY_SHORT, _LEFT_BY_LONG = 5, 4
"""Letters that must be left before an ending of up to three, and before a longer one."""


def terms(text: str) -> list[str]:
    """The terms of a text in their order, each as often as it occurs."""
    return [term for word in words(text) for term in terms_of(word)]


def words(text: str) -> list[str]:
    """The words of a text as they are written; a run of a script without spaces is one."""
    return _WORD.findall(text)


@lru_cache(maxsize=65_536)
def terms_of(word: str) -> tuple[str, ...]:
    """What a word is compared by; nothing for one that says nothing, several where nothing shows where words end."""
    if _WITHOUT_SPACES.match(word):
        return tuple(_pairs(unicodedata.normalize("NFKC", word)))
    plain = _plain(word)
    if plain in _SILENT or (len(plain) < 2 and plain.isalpha()):
        return ()
    return (_stem(plain[:LONGEST]),)


def distinct(found: Iterable[str]) -> list[str]:
    """Each term once, in the order in which they first came."""
    return list(dict.fromkeys(found))


def _pairs(run: str) -> Iterator[str]:
    for start in range(max(1, len(run) - 1)):
        yield run[start : start + 2]


def _plain(word: str) -> str:
    """Lower case without accents; a number without its commas; what is shortened with an apostrophe in full."""
    word = word.replace("’", "'").casefold()
    if not word.isascii():
        parted = unicodedata.normalize("NFKD", word).casefold()
        word = unicodedata.normalize("NFC", "".join(char for char in parted if not unicodedata.combining(char)))
    if word[:1].isdigit():
        ordinal = _ORDINAL.fullmatch(word)
        return ordinal[1] if ordinal else word.replace(",", "")
    for ending in _SHORTENED:
        if word.endswith(ending):
            return "not"
    return word.removesuffix("'s").replace("'", "")


def _stem(word: str) -> str:
    """What the forms of an English word have in common, roughly; words of other languages lose little by it."""
    word = _FORMS.get(word, word)
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    word = _singular(word)
    word = _FORMS.get(word, word)
    word = _without_ending(_untensed(word))
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    return word[:-1] + "i" if len(word) > 3 and word.endswith("y") else word


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes", "zes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _untensed(word: str) -> str:
    if word.endswith("ied") and len(word) > 4:
        return word[:-3] + "y"
    for ending in ("ing", "ed"):
        left = word.removesuffix(ending)
        if left != word and len(left) >= 3 and _VOWEL.search(left):
            # "planning" and "plan", but "selling" and "sell".
            doubled = len(left) > 3 and left[-1] == left[-2] and left[-1] not in "lsz"
            return left[:-1] if doubled else left
    return word


def _without_ending(word: str) -> str:
    for ending, instead in _ENDINGS:
        if word.endswith(ending):
            left = word.removesuffix(ending)
            needed = _LEFT_BY_SHORT if len(ending) <= 3 else _LEFT_BY_LONG
            return left + instead if len(left) >= needed else word
    return word
