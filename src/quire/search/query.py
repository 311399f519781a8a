"""Parses a query, the same for a search and for recall: its words and topic, speakers, dates, and its kind."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from quire.search.dates import TimeRange, cut_to_edges, find_time_ranges, is_date_word
from quire.search.languages import detect_query_languages
from quire.search.message_features import FIRST_PERSON_WORDS
from quire.search.tokenizer import (
    UNSPACED_CHAR,
    deduplicate,
    split_words,
    strip_elision,
    tokenize,
    tokenize_query_word,
    tokenize_word,
)

AskedKind = Literal["said", "own", "output"]
"""What a query asks for: what a person or an agent said, what the user said, or what a tool printed."""
MAX_QUERY_WORDS = 32
"""Distinct words of a query that a search looks up. Later ones are ignored."""
MAX_EDGE_WORDS = 120
"""Words at the beginning and at the end of a longer message that are parsed: the question is in one of the two."""
MAX_FUZZY_SPEAKERS = 64
"""With more speakers than this, misspelled names do not match: fuzzy matching compares every word with every name."""
LIGHT_WORD_WEIGHT = 0.3
"""Weight of a word that says what is requested ("suggest", "how many") or when, rather than what it is about."""
_MIN_NAME_SIMILARITY = 0.75

_META_WORD_LIST = (
    "across advise asked aspects based bring brought chat clear complete comprehensive conversations describe detailed"
    " different discussions earlier entire ever everything evolved explain give help items kind list mention name order"
    " overview past previous progressed provide recap recommend say sequence sessions show suggest summarize summary"
    " talk tell thing thorough throughout timeline type various walk way"
)
_META_TERMS = frozenset(tokenize(_META_WORD_LIST))
_REQUEST_WORD_LIST = (
    "advice earliest feel find first good idea interesting lately latest many much need number plan recent soon think"
    " time tip total wonder"
)
_REQUEST_TERMS = _META_TERMS | frozenset(tokenize(_REQUEST_WORD_LIST))

_ASKS_WHEN = re.compile(
    r"\bwhen\b|\bdates?\b|\bdeadline\b|\bhow long\b|\bhow many (?:days|weeks|months|years)\b"
    r"|\b(?:what|which) (?:day|month|year|time)\b"
    r"|\bwann\b|\ban welche[mn] (?:tag|tagen|abend|datum)\b|\bquand\b|\bquels? jours?\b|\bcuándo\b|\bqué días?\b"
    r"|\bкогда\b|\bпо каким дням\b|什么时候|哪天|几月|几号|星期几|いつ|何月|何日|何曜日|何時"
)
# The first "what is the" of a line counts, in an atomic group: trying every one of them would take quadratic time.
_ASKS_NUMBER = re.compile(
    r"\bhow (?:many|much|long|often)\b|\bpercentage\b|\baverage\b"
    r"|^(?>.*?\bwhat (?:is|was|are) (?:the|my) )"
    r".*(?:rate|time|number|percent|score|size|price|cost|budget|goal|target|limit)"
    r"|\bwie (?:viele?|lang|lange|oft|hoch|alt)\b|\bcombien\b|\bcuánt[oa]s?\b|\bсколько\b|多少|多长|多久|几个|几岁"
    r"|いくら|いくつ|何人|何歳|何個|何分",
    re.MULTILINE,
)
_REQUEST = re.compile(
    r"(?:please\s+)?(?:can|could|would|how (?:should|can|do|would)|what|show|i'm|i need|i want|which|explain|tell|give"
    r"|help|recommend|suggest|write|make)\b"
)
_LOOKS_BACK = re.compile(r"\bdid\b|\bhave i\b|\bi've\b")
_SURVEY = re.compile(r"\bsummar|\boverview\b|\brecap\b|\border\b|\btimeline\b|\bprogress(?:ed)?\b|\bevolved?\b")
_ASKS_SUMMARY = re.compile(r"\bsummar|\boverview\b|\brecap\b")
_ABOUT_REPLY = re.compile(
    r"\b(?:did|have|had|were) you\b"
    r"|\byou (?:advised|described|explained|gave|guided|helped|mentioned|outlined|proposed|provided|recommended|said"
    r"|suggested|told|wrote)\b"
)
_ASKS_OWN = re.compile(
    r"\bi (?:ask(?:ed)?|decided?|mention(?:ed)?|proposed?|request(?:ed)?|said|say|suggest(?:ed)?|tell|told"
    r"|want(?:ed)?|write|wrote)\b"
    r"|\bmy (?:idea|instruction|question|request|suggestion)s?\b"
)
_ASKS_OUTPUT = re.compile(
    r"\b(?:abort|complain|conflict|crash|deni|err(?:or|check)|exception|fail|lint|miss(?:es|ing)\b|output|panic|print|refus"
    r"|reject|time(?:d )?out|traceback|warn|(?:cannot|can't|(?:could|do|does)(?:n't| not))\b)"
)
_FIRST_PERSON = re.compile(r"\b(?:i|me|my|mine)\b")


class QueryWord(NamedTuple):
    terms: tuple[str, ...]
    """Alternative terms that it may have in an index."""
    weight: float


@dataclass(frozen=True)
class Query:
    text: str
    """As written, without the middle of a long one."""
    words: tuple[QueryWord, ...]
    """For a search: distinct words without stop words and names of speakers. A run of a script without spaces is not a
    word: each of its bigrams counts as one."""
    subject: str
    """The words of full weight, for an embedder."""
    terms: tuple[str, ...]
    """For recall: distinct terms of its topic."""
    topic: str
    """The words behind the terms, for an embedder."""
    speakers: frozenset[str]
    """Speakers that it names; empty for all."""
    time_ranges: tuple[TimeRange, ...]
    """The days that it names."""
    asks_when: bool
    asks_number: bool
    is_request: bool
    """It requests something new rather than a look back: standing instructions and preferences apply."""
    asks_summary: bool
    about_reply: bool
    """It refers to what the assistant said."""
    asks_for: AskedKind
    about_self: bool
    """It is about the speaker ("I", "my"), and not about a reply."""


def parse_query(text: str, *, at: int, speakers: Sequence[str] = (), name: str | None = None) -> Query:
    """Parses a question of the speaker `name` at the time `at`; `speakers` are all names in the index."""
    text = cut_to_edges(text)
    words = split_words(text)
    words = words if len(words) <= 2 * MAX_EDGE_WORDS else [*words[:MAX_EDGE_WORDS], *words[-MAX_EDGE_WORDS:]]
    low = text.lower().replace("’", "'")
    names = {word: matches for word in dict.fromkeys(words) if (matches := _match_speakers(word, speakers))}
    unspaced = [speaker for speaker in speakers if UNSPACED_CHAR.match(speaker) and speaker in text]
    languages = detect_query_languages(text)
    terms = {word: tokenize_query_word(word, languages) for word in dict.fromkeys(words) if word not in names}
    time_ranges = find_time_ranges(text, at=at)
    stems = {word: tokenize_word(word, languages[0]) for word in terms}
    content_words = [word for word in terms if terms[word]]
    topic_words = [word for word in terms if not _META_TERMS.issuperset(stems[word])] or content_words
    subject_words = [
        word
        for word in terms
        if not _REQUEST_TERMS.issuperset(stems[word]) and not (time_ranges and is_date_word(word.lower()))
    ] or content_words
    weights: dict[tuple[str, ...], float] = {}
    for word in (*subject_words, *content_words):
        for alternatives in [terms[word]] if len(stems[word]) == 1 else [(term,) for term in terms[word]]:
            weights.setdefault(alternatives, 1.0 if word in subject_words else LIGHT_WORD_WEIGHT)
    named_speakers = {speaker for matches in names.values() for speaker in matches}.union(unspaced)
    if name is not None and name in speakers and _FIRST_PERSON.search(low):
        named_speakers.add(name)
    about_reply = bool(_ABOUT_REPLY.search(low))
    return Query(
        text=text,
        words=tuple(QueryWord(alternatives, weight) for alternatives, weight in weights.items()),
        subject=" ".join(word.lower() for word in subject_words),
        terms=tuple(deduplicate(term for word in topic_words for term in terms[word])),
        topic=" ".join(word.lower() for word in topic_words),
        speakers=frozenset(named_speakers) if len(named_speakers) < len(speakers) else frozenset(),
        time_ranges=time_ranges,
        asks_when=bool(_ASKS_WHEN.search(low)),
        asks_number=bool(_ASKS_NUMBER.search(low)),
        is_request=bool(_REQUEST.match(low.lstrip())) and not _LOOKS_BACK.search(low) and not _SURVEY.search(low),
        asks_summary=bool(_ASKS_SUMMARY.search(low)),
        about_reply=about_reply,
        asks_for="own" if _ASKS_OWN.search(low) else "output" if _ASKS_OUTPUT.search(low) else "said",
        about_self=not about_reply and not FIRST_PERSON_WORDS.isdisjoint(re.findall(r"\w+", low)),
    )


def _match_speakers(word: str, speakers: Sequence[str]) -> tuple[str, ...]:
    """Speakers whose name the word may be. Only a capitalized word is a name."""
    bare = strip_elision(word.removesuffix("'s").removesuffix("’s"))
    if not bare[:1].isupper():
        return ()
    fuzzy = len(speakers) <= MAX_FUZZY_SPEAKERS
    return tuple(
        speaker for speaker in speakers if any(_is_same_name(bare, part, fuzzy=fuzzy) for part in speaker.split())
    )


def _is_same_name(word: str, name: str, *, fuzzy: bool) -> bool:
    one, other = word.casefold(), name.casefold()
    if one == other:
        return True
    short, long = sorted((one, other), key=len)
    if len(short) >= 3 and long.startswith(short):
        return True
    if not word.isascii() and tokenize_word(word) == tokenize_word(name) != ():
        # Names are inflected in Russian: the stems are the same.
        return True
    return fuzzy and len(short) > 4 and SequenceMatcher(None, one, other).ratio() >= _MIN_NAME_SIMILARITY
