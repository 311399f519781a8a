"""The tokenizer of every index and query: splits text into words, drops stop words, and stems by language.

A text is indexed by the stems of its detected language. A query matches texts of any language: its words have the stems
of all of them. The indexes store terms: after any change here, raise the format version of the index.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from threading import local
from types import MappingProxyType
from typing import Any, cast

import Stemmer

from quire.search.languages import (
    LANGUAGES,
    LATIN_LANGUAGES,
    STOP_WORDS,
    UNSPACED_STOP_PHRASES,
    Language,
    detect_language,
    detect_query_languages,
)

MAX_WORD_CHARS = 40
"""Characters of a word that are indexed. Longer ones are keys or encoded data, which their head identifies."""
MAX_CACHED_WORDS = 65_536
"""Words of each language whose terms are cached."""
_MAX_CACHED_TERMS = 4

_UNSPACED_SCRIPTS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_LETTER = rf"(?:[^\W_{_UNSPACED_SCRIPTS}]|[\u0300-\u036f])"
_WORD = re.compile(rf"\d+(?:[.,]\d+)+|[{_UNSPACED_SCRIPTS}]+|{_LETTER}+(?:['’]{_LETTER}+)*")
_ASCII_WORD = re.compile(r"\d+(?:[.,]\d+)+|[A-Za-z0-9]+(?:'[A-Za-z0-9]+)*")
UNSPACED_CHAR = re.compile(rf"[{_UNSPACED_SCRIPTS}]")
_SAME_SCRIPT_RUN = re.compile(
    r"[\u3005\u3400-\u9fff]+|[\u3040-\u309f]+|[\u30a0-\u30ff]+|[\uac00-\ud7af]+|[\u0e00-\u1fff]+"
)
_HAN_CHAR = re.compile(r"[\u3005\u3400-\u9fff]")
_CYRILLIC_CHAR = re.compile(r"[\u0400-\u04ff]")
_STOP_PHRASES = {language: re.compile("|".join(phrases)) for language, phrases in UNSPACED_STOP_PHRASES.items()}
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")
_CONTRACTIONS = ("n't", "'m", "'ve", "'ll", "'re", "'d")
_ELISION = re.compile(r"\A(?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu)['’](?=..)", re.IGNORECASE)

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


def tokenize(text: str) -> list[str]:
    """Terms of a text to index, in order, with repetitions, by the rules of its language."""
    return list(iter_terms(text, detect_language(text)))


def count_terms(text: str) -> Counter[str]:
    return Counter(iter_terms(text, detect_language(text)))


def iter_terms(text: str, language: Language) -> Iterator[str]:
    return chain.from_iterable(map(_TERMS[language].__getitem__, text.split()))


def find_matching_pieces(pieces: Iterable[str], terms: frozenset[str], language: Language) -> set[str]:
    """Pieces of a text between white space, punctuation included, that have one of the terms."""
    return _PIECES[language].find(set(pieces), terms)


def find_distinct_terms(text: str, language: Language) -> set[str]:
    return set(iter_terms(text, language))


def tokenize_query(text: str) -> list[str]:
    """Distinct terms of a query, by the rules of every language that its words may be indexed in."""
    languages = detect_query_languages(text)
    return deduplicate(term for word in split_words(text) for term in tokenize_query_word(word, languages))


def tokenize_query_word(word: str, languages: Sequence[Language]) -> tuple[str, ...]:
    """Terms that a word of a query may have in an index. None if it is a stop word of the query's first language."""
    first = _TERMS[languages[0]][word]
    if not first:
        return ()
    if UNSPACED_CHAR.match(word):
        # Without kana, Chinese and Japanese look the same.
        languages = ("japanese",) if languages[0] == "japanese" else ("chinese", "japanese")
    elif word[:1].isupper():
        # Names occur in texts of any language.
        languages = LATIN_LANGUAGES
    return tuple(deduplicate(chain(first, *(_TERMS[other][word] for other in languages))))


def split_words(text: str) -> list[str]:
    """Words of a text as written. A run of a script without spaces (Chinese, Thai) is one word."""
    return (_ASCII_WORD if text.isascii() else _WORD).findall(text)


def find_words(text: str) -> Iterator[re.Match[str]]:
    """The words of `split_words`, with their places."""
    return (_ASCII_WORD if text.isascii() else _WORD).finditer(text)


def tokenize_word(word: str, language: Language = "english") -> tuple[str, ...]:
    return _TERMS[language][word]


def strip_elision(word: str) -> str:
    """The word without an article or pronoun that is joined to it by an apostrophe: "d'Anna" becomes "Anna"."""
    return _ELISION.sub("", word, count=1)


def deduplicate(terms: Iterable[str]) -> list[str]:
    """Distinct terms, in order of first occurrence."""
    return list(dict.fromkeys(terms))


class _TermCache(dict[str, tuple[str, ...]]):
    """Terms of words and of pieces between white space, punctuation included, which are found at the first lookup.

    One lookup of a piece replaces the search for its words, which is most of the time of indexing. Emptied when full.
    """

    def __init__(self, language: Language) -> None:
        self._language: Language = language

    def __missing__(self, piece: str) -> tuple[str, ...]:
        words = split_words(piece)
        if words == [piece]:
            terms = tuple(_find_terms(piece, self._language))
        else:
            terms = tuple(chain.from_iterable(map(self.__getitem__, words)))
        # Neither long words nor clauses without spaces occur often; a few of them would fill the memory.
        if len(piece) <= MAX_WORD_CHARS and len(terms) <= _MAX_CACHED_TERMS:
            if len(self) >= MAX_CACHED_WORDS:
                self.clear()
            self[piece] = terms
        return terms


_TERMS: Mapping[Language, _TermCache] = MappingProxyType({language: _TermCache(language) for language in LANGUAGES})


class _PieceCache:
    """Pieces by the terms that they have, since the hits of searches have most of their pieces in common."""

    def __init__(self, language: Language) -> None:
        self._language: Language = language
        self._known_and_by_term = set[str](), defaultdict[str, set[str]](set)

    def find(self, pieces: set[str], terms: frozenset[str]) -> set[str]:
        (known, by_term), found = self._known_and_by_term, set[str]()
        if len(known) + len(pieces) > MAX_CACHED_WORDS:
            self._known_and_by_term = known, by_term = set[str](), defaultdict[str, set[str]](set)
        for piece in pieces - known:
            own = _TERMS[self._language][piece]
            if len(piece) <= MAX_WORD_CHARS and len(own) <= _MAX_CACHED_TERMS:
                for term in own:
                    by_term[term].add(piece)
                # Last: another thread does not look up what is known.
                known.add(piece)
            elif not terms.isdisjoint(own):
                found.add(piece)
        return found.union(*(pieces & by_term[term] for term in terms if term in by_term))


_PIECES: Mapping[Language, _PieceCache] = MappingProxyType({language: _PieceCache(language) for language in LANGUAGES})


def _find_terms(word: str, language: Language) -> Iterable[str]:
    """Terms of a word: none for a stop word, bigrams for a script without spaces, otherwise one stem."""
    if UNSPACED_CHAR.match(word):
        run = unicodedata.normalize("NFKC", word)
        if language in _STOP_PHRASES:
            run = _STOP_PHRASES[language].sub(" ", run)
        # Bigrams within each script of the run replace words; a single character is a term too.
        return [
            piece[start : start + 2]
            for piece in _SAME_SCRIPT_RUN.findall(run)
            for start in range(max(1, len(piece) - 1))
        ]
    normalized = _normalize(word)
    if _CYRILLIC_CHAR.match(normalized):
        language = "russian"
    elif language not in LATIN_LANGUAGES:
        language = "english"
    is_letter = len(normalized) < 2 and normalized.isalpha()
    # Accents without a letter leave nothing.
    if normalized in STOP_WORDS[language] or is_letter or not _strip_accents(normalized):
        return ()
    word = normalized[:MAX_WORD_CHARS]
    if language != "english":
        return (_strip_accents(_stem_snowball(word, language)),)
    word = _strip_accents(word)
    word = _IRREGULAR_FORMS.get(word, word)
    if len(word) < 4 or not word.isalpha():
        return (word,)
    stem = _stem_snowball(word, "english")
    return (_IRREGULAR_FORMS.get(stem, stem),)


def _normalize(word: str) -> str:
    """Casefolds and strips commas of numbers, ordinal suffixes, elisions and possessives. Contractions become "not"."""
    word = word.casefold()
    if not word.isascii():
        word = unicodedata.normalize("NFKC", word.replace("’", "'")).casefold()
    if word[:1].isdigit():
        ordinal = _ORDINAL.fullmatch(word)
        return ordinal[1] if ordinal else word.replace(",", "")
    if "'" in word:
        if word.endswith(_CONTRACTIONS):
            return "not"
        return strip_elision(word.removesuffix("'s")).replace("'", "")
    return word


def _strip_accents(word: str) -> str:
    if word.isascii():
        return word
    decomposed = unicodedata.normalize("NFD", word)
    return unicodedata.normalize("NFC", "".join(char for char in decomposed if not unicodedata.combining(char)))


class _Stemmers(local):
    """Snowball stemmers of a thread: one must not be used by two threads at once."""

    def __init__(self) -> None:
        self.by_language: dict[Language, Callable[[str], str]] = {}


_stemmers = _Stemmers()


def _stem_snowball(word: str, language: Language) -> str:
    stem_word = _stemmers.by_language.get(language)
    if stem_word is None:
        stem_word = _stemmers.by_language[language] = cast(Any, Stemmer).Stemmer(language, 0).stemWord
    return stem_word(word)
