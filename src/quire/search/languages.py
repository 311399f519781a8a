"""Detects the language of a text by cheap evidence: its script, its stop words, its accented letters.

Only languages with rules of their own in the tokenizer are distinguished. A text without evidence counts as English.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, get_args

from quire.search.stop_words import STOP_WORDS

Language = Literal["english", "german", "french", "spanish", "russian", "chinese", "japanese"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
LATIN_LANGUAGES: tuple[Language, ...] = ("english", "german", "french", "spanish")
"""Languages in Latin letters, of which a word alone can be any."""
MAX_DETECTION_CHARS = 400
"""Characters at the start of a text that show its language."""
MIN_SCRIPT_SHARE = 0.2
"""Share of a script in a text that decides its language: names and code are in Latin letters anywhere."""

_KANA = re.compile(r"[\u3041-\u3096\u30a1-\u30fa]")
_HAN = re.compile(r"[\u3400-\u9fff]")
_CYRILLIC = re.compile(r"[\u0400-\u04ff]")
_LATIN_WORD = re.compile(r"[a-zà-ɏ]+")
_ACCENTS: Mapping[str, tuple[Language, ...]] = MappingProxyType(
    {
        **dict.fromkeys("äöß", ("german",)),
        **dict.fromkeys("ü", ("german", "spanish")),
        **dict.fromkeys("èêëàâçœîïôûù", ("french",)),
        **dict.fromkeys("é", ("french", "spanish")),
        **dict.fromkeys("ñáíóú¿¡", ("spanish",)),
    }
)
_ENGLISH_HOMOGRAPHS = frozenset(
    [
        "ai",
        "bin",
        "car",
        "comment",
        "con",
        "contra",
        "den",
        "des",
        "die",
        "dont",
        "dos",
        "entre",
        "era",
        "ha",
        "halt",
        "hat",
        "im",
        "les",
        "man",
        "non",
        "par",
        "plus",
        "pour",
        "sans",
        "sea",
        "sin",
        "solo",
        "son",
        "sur",
        "te",
        "ton",
        "tout",
        "van",
        "vale",
        "war",
        "weg",
        "ya",
        "yo",
    ]
)
"""Stop words of other languages that are also words, names or abbreviations in English texts: evidence of nothing."""
_MIN_EVIDENCE_CHARS = 2
"""Shorter words are evidence of nothing: "don't" has a "t" too."""
_ACCENTED = re.compile(f"[{''.join(_ACCENTS)}]")


def _list_exclusive_words() -> dict[str, Language]:
    """Stop words that only one of the languages has, which a word alone identifies."""
    owners: dict[str, list[Language]] = {}
    for language in LATIN_LANGUAGES:
        for word in STOP_WORDS[language]:
            owners.setdefault(word, []).append(language)
    return {
        word: languages[0]
        for word, languages in owners.items()
        if len(languages) == 1
        and len(word) >= _MIN_EVIDENCE_CHARS
        and (word not in _ENGLISH_HOMOGRAPHS or languages[0] == "english")
    }


_EXCLUSIVE_WORDS = _list_exclusive_words()
_EVIDENCE = frozenset(_EXCLUSIVE_WORDS)
_ENGLISH_EVIDENCE = frozenset(word for word, language in _EXCLUSIVE_WORDS.items() if language == "english")


def detect_language(text: str) -> Language:
    """The language with the most evidence at the start of a text; "english" without any, or with a tie."""
    languages = _find_plausible_languages(text)
    return languages[0] if len(languages) == 1 else "english"


def detect_query_languages(text: str) -> tuple[Language, ...]:
    """Languages in which the words of a query may be indexed: its own, and English, whose rules apply to short texts
    without evidence. Without any evidence, or with accents, which languages share, all that use Latin letters."""
    plausible = _find_plausible_languages(text)
    others = () if text.isascii() or plausible[0] not in LATIN_LANGUAGES else LATIN_LANGUAGES
    return tuple(dict.fromkeys((*plausible, "english", *others)))


def _find_plausible_languages(text: str) -> tuple[Language, ...]:
    """The languages with the most evidence at the start of a text."""
    head = text[:MAX_DETECTION_CHARS].lower()
    if head.isascii():
        # Most texts are decided by the words between spaces, without a search for words.
        evidence = _EVIDENCE.intersection(head.split())
        if evidence and evidence <= _ENGLISH_EVIDENCE:
            return ("english",)
        return _find_most_frequent(_LATIN_WORD.findall(head))
    script_language = _detect_by_script(head)
    if script_language is not None:
        return (script_language,)
    return _find_most_frequent(_LATIN_WORD.findall(head), accents=_ACCENTED.findall(head))


def _detect_by_script(head: str) -> Language | None:
    enough = MIN_SCRIPT_SHARE * len(head)
    kana, han = len(_KANA.findall(head)), len(_HAN.findall(head))
    if kana + han > enough:
        return "japanese" if kana else "chinese"
    return "russian" if len(_CYRILLIC.findall(head)) > enough else None


def _find_most_frequent(words: Iterable[str], *, accents: Iterable[str] = ()) -> tuple[Language, ...]:
    counts = dict.fromkeys(LATIN_LANGUAGES, 0)
    for word in _EVIDENCE.intersection(words):
        counts[_EXCLUSIVE_WORDS[word]] += 1
    for accent in set(accents):
        for language in _ACCENTS[accent]:
            counts[language] += 1
    best = max(counts.values())
    return tuple(language for language, count in counts.items() if count == best)
