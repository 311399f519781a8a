"""Question: what a new message asks for, read for recall.

The words about talking itself ("summarize", "in which order did I mention") tell what kind of answer is wanted, not
what it is about: they set the kind and are no terms. A speaker's name says who is meant, and is no term either.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from quire.context.recall.dates import Span, spans
from quire.context.recall.terms import distinct, terms, terms_of, words

READ_WORDS = 120
"""Of a longer message so many words at its beginning and at its end are read: there the question stands."""
SPEAKERS = 64
"""With more speakers than that, names must be written as they are stored."""
_ALIKE = 0.75

_ABOUT_TALK = (
    "across advise asked aspects based bring brought chat clear complete comprehensive conversations describe detailed"
    " different discussions earlier entire ever everything evolved explain give help items kind list mention name order"
    " overview past previous progressed provide recap recommend say sequence sessions show suggest summarize summary"
    " talk tell thing thorough throughout timeline type various walk way"
)
_TALK = frozenset(terms(_ABOUT_TALK))

_WHEN = re.compile(
    r"\bwhen\b|\bdates?\b|\bdeadline\b|\bhow long\b|\bhow many (?:days|weeks|months|years)\b"
    r"|\b(?:what|which) (?:day|month|year|time)\b"
)
_NUMBER = re.compile(
    r"\bhow (?:many|much|long|often)\b|\bpercentage\b|\baverage\b"
    r"|\bwhat (?:is|was|are) (?:the|my) .*(?:rate|time|number|percent|score|size|price|cost|budget|goal|target|limit)"
)
_ASKS = re.compile(
    r"(?:please\s+)?(?:can|could|would|how (?:should|can|do|would)|what|show|i'm|i need|i want|which|explain|tell|give"
    r"|help|recommend|suggest|write|make)\b"
)
_LOOKS_BACK = re.compile(r"\bdid\b|\bhave i\b|\bi've\b")
_SURVEY = re.compile(r"\bsummar|\boverview\b|\brecap\b|\border\b|\btimeline\b|\bprogress(?:ed)?\b|\bevolved?\b")
_SUMMARY = re.compile(r"\bsummar|\boverview\b|\brecap\b")
_OF_REPLY = re.compile(
    r"\b(?:did|have|had|were) you\b"
    r"|\byou (?:advised|described|explained|gave|guided|helped|mentioned|outlined|proposed|provided|recommended|said"
    r"|suggested|told|wrote)\b"
)
_FIRST_PERSON = re.compile(r"\b(?:i|me|my|mine)\b")


@dataclass(frozen=True)
class Question:
    terms: tuple[str, ...]
    """What it is about, each once."""
    topic: str
    """The words behind the terms, for an embedder."""
    speakers: frozenset[str]
    """Those who are meant, if not all are."""
    spans: tuple[Span, ...]
    """The days that it names."""
    when: bool
    number: bool
    asks: bool
    """It wants something done or told, rather than to look back: standing wishes bear on that."""
    summary: bool
    of_reply: bool
    """It asks for what the assistant said."""


def read_question(text: str, *, at: int, speakers: Sequence[str] = (), name: str | None = None) -> Question:
    """`at` is when it is asked, `speakers` who speaks in the archive, `name` who asks."""
    said = words(text)
    said = said if len(said) <= 2 * READ_WORDS else [*said[:READ_WORDS], *said[-READ_WORDS:]]
    low = text.lower().replace("’", "'")
    named = {word: meant for word in dict.fromkeys(said) if (meant := _meant(word, speakers))}
    telling = [word for word in said if word not in named and not _TALK.issuperset(terms_of(word))]
    telling = telling or [word for word in said if word not in named and terms_of(word)]
    meant = {speaker for some in named.values() for speaker in some}
    if name is not None and name in speakers and _FIRST_PERSON.search(low):
        meant.add(name)
    return Question(
        terms=tuple(distinct(term for word in telling for term in terms_of(word))),
        topic=" ".join(word.lower() for word in dict.fromkeys(telling)),
        speakers=frozenset(meant) if len(meant) < len(speakers) else frozenset(),
        spans=spans(text, at=at),
        when=bool(_WHEN.search(low)),
        number=bool(_NUMBER.search(low)),
        asks=bool(_ASKS.match(low.lstrip())) and not _LOOKS_BACK.search(low) and not _SURVEY.search(low),
        summary=bool(_SUMMARY.search(low)),
        of_reply=bool(_OF_REPLY.search(low)),
    )


def _meant(word: str, speakers: Sequence[str]) -> tuple[str, ...]:
    """The speakers whom a word may name; only a capital makes it a name."""
    bare = word.removesuffix("'s").removesuffix("’s")
    if not bare[:1].isupper():
        return ()
    misspelt = len(speakers) <= SPEAKERS
    return tuple(
        speaker for speaker in speakers if any(_same(bare, part, misspelt=misspelt) for part in speaker.split())
    )


def _same(word: str, name: str, *, misspelt: bool) -> bool:
    one, other = word.casefold(), name.casefold()
    if one == other:
        return True
    short, long = sorted((one, other), key=len)
    if len(short) >= 3 and long.startswith(short):
        return True
    return misspelt and len(short) > 4 and SequenceMatcher(None, one, other).ratio() >= _ALIKE
