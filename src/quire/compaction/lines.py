"""Lines: messages cut into what can be told in one line each, and weighed by what people miss after a compaction.

Identifiers, numbers, paths, addresses and names weigh most, then decisions, requests, and the words of the user's
instructions. Words are weighed by their form alone, each once; all of it is linear in the length of the text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from quire.compaction.citations import without_citations
from quire.model import FilePart, ImagePart, Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.view.shapes.media import note

GAP = "…"
LONGEST_LINE = 240
READ_CHARACTERS = 60_000
"""Of a longer message only its head and its tail, so many characters in all, are read."""

ROLES = {"user": 1.5, "assistant": 1.0, "system": 1.0, "tool": 0.4}
PLAIN = 0.15
"""What a line weighs that tells nothing in particular."""
_WANTED, _REQUEST, _NAME = 4.0, 1.2, 0.6

SENTENCES = re.compile(r"(?<=\w\w[.!?])\s+|(?<=[\])\"'`%][.!?])\s+|(?<=\s[a-z0-9][.!?])\s+|(?<=[。！？])|(?<=\w);\s+")
_CJK = "\u2e80-\u9fff\uac00-\ud7af\uff00-\uffef"
_WORDS = re.compile(rf"[^\s{_CJK}]+|[{_CJK}]+")
_CLAUSES = re.compile(r"(?<=[,:])\s+|\s+[–—-]{1,2}\s+")
_LEANS = re.compile(
    r"(?:which|who|whose|it|its|they|their|this|that|these|those|he|she|and|or|but|so|then|because)\b", re.IGNORECASE
)
_LEAD = re.compile(
    r"(?:[-*+>•#|]+\s+|(?:\d{1,3}|[a-z])[.)]\s+"
    r"|(?:by the way|also|and|ok|okay|well|so|fyi|note|remember|for the record|for reference|as I said|just so you know"
    r"|I (?:was told|heard|think|believe|guess|know|see|found out|noticed))\b[,:]?\s+(?:that\s+)?)+",
    re.IGNORECASE,
)
_TRIM = ".,;:!?…\"'()[]{}<>*“”‘’"
_SETTLED = frozenset([
    "decided", "decide", "decision", "decisions", "agreed", "settled", "approved", "rejected", "chose", "chosen",
    "renamed", "replaced", "deadline", "we'll", "we’ll", "instead", "ruled", "prefer", "prefers", "must", "never",
])  # fmt: skip
_BINDING = frozenset([
    "always", "don't", "don’t", "cannot", "can't", "can’t", "required", "requires", "only", "should", "need",
])  # fmt: skip
_ASKING = frozenset([
    "please", "want", "need", "expect", "could", "can", "make", "add", "fix", "write", "change", "keep",
])  # fmt: skip
_STOP = frozenset([
    "about", "all", "and", "any", "are", "for", "from", "its", "keep", "not", "please", "that", "the", "this", "with",
])  # fmt: skip


class Word(NamedTuple):
    value: str
    weight: float
    """3 for what nobody can guess, 0 for an ordinary word."""
    decides: float
    asks: bool


@dataclass(slots=True)
class Line:
    text: str
    cites: str
    order: tuple[int, int]
    source: int
    """Stands for its message, so that one message does not fill a summary."""
    factor: float
    base: float
    values: dict[str, float]
    """What it tells, and what each of that weighs."""
    form: str
    """The line with a gap for each value; empty if it cannot be written so."""
    filled: tuple[str, ...]
    length: int = 0

    @property
    def whole(self) -> str:
        return f"- {self.text} {self.cites}" if self.cites else f"- {self.text}"

    @property
    def plain(self) -> bool:
        return self.base <= PLAIN and not self.values


def one_line(text: str) -> str:
    return " ".join(text.split())


class Cutter:
    """Cuts and weighs with the words of one set of instructions."""

    def __init__(self, instructions: str | None) -> None:
        words = {word.strip(_TRIM).lower() for word in (instructions or "").split()}
        self._wanted = frozenset(word for word in words - _STOP if len(word) > 2)

    def lines(self, seq: int, message: Message) -> Iterator[Line]:
        cites = f"[#{seq}]"
        place = 0
        for role, text in _texts(message):
            for clause in clauses(text):
                place += 1
                yield self.line(without_citations(clause), cites, (seq, place), seq, role=role)

    def line(self, text: str, cites: str, order: tuple[int, int], source: int, *, role: str) -> Line:
        """The text weighed: what it tells, whether it settles or asks for something, and its form."""
        values: dict[str, float] = {}
        filled: list[str] = []
        form: list[str] = []
        decides, asks, place, begins = 0.0, text.endswith("?"), 0, True
        for match in _WORDS.finditer(text):
            word = _word(match[0])
            weight = word.weight or (_NAME if not begins and match[0][:1].isupper() and len(word.value) > 2 else 0)
            begins = match[0][-1] in ".!?:"
            decides = word.decides if word.decides > decides else decides
            asks = asks or word.asks
            if weight:
                values[word.value.lower()] = weight
                at = match.start() + match[0].index(word.value)
                form += [text[place:at], GAP]
                filled.append(word.value)
                place = at + len(word.value)
        form.append(text[place:])
        base = PLAIN + decides + (_REQUEST if asks and role == "user" else 0) + self._wanted_weight(text)
        return Line(
            text, cites, order, source, ROLES.get(role, 1.0), base, values, _usable_form(form, filled), tuple(filled)
        )

    def _wanted_weight(self, text: str) -> float:
        if not self._wanted:
            return 0
        return _WANTED * len(self._wanted & {_word(word).value.lower() for word in _WORDS.findall(text)})


def _usable_form(form: list[str], filled: list[str]) -> str:
    """The form, if the line can be told from it and its values, and if it says more than they do."""
    joined = "".join(form)
    told_apart = joined.count(GAP) == len(filled) and ": " not in form[-1] and "[" not in joined
    return joined if filled and told_apart and len(joined) > 4 * len(filled) else ""


@lru_cache(maxsize=50_000)
def _word(word: str) -> Word:
    bare = word.strip(_TRIM)
    lower = bare.lower()
    decides = 2.0 if lower in _SETTLED else 1.0 if lower in _BINDING else 0.0
    return Word(bare, _weight(bare) if bare else 0.0, decides, lower in _ASKING or word.endswith("?"))


def _weight(bare: str) -> float:
    """By its form: letters with digits, numbers, paths and addresses, names as code has them, capitals."""
    digits = sum(map(str.isdigit, bare))
    letters = sum(map(str.isalpha, bare))
    if digits and letters:
        return 3.0 if digits + letters > 3 else 1.5
    if digits:
        return 2.5 if len(bare) > 3 else 0.4
    inner = bare.strip("`")
    if letters < 2:
        return 0.0
    if inner != bare or any(sign in inner for sign in ("/", "\\", "@", "_", "::", "()", "=", ".")):
        return 2.5
    if inner.isupper() and inner.isascii():
        return 1.0
    return 2.0 if inner.isalpha() and any(map(str.isupper, inner[1:])) else 0.0


def clauses(text: str) -> Iterator[str]:
    """What a text says, in pieces that can stand alone."""
    for line in text.splitlines():
        for sentence in SENTENCES.split(one_line(line)):
            yield from _clauses(sentence)


def _clauses(sentence: str) -> Iterator[str]:
    """The sentence from its first telling clause to its last, cut where that is too long for one line."""
    lead = _LEAD.match(sentence)
    sentence = sentence[lead.end() :] if lead else sentence
    sentence = _telling(sentence).rstrip(".")
    while len(sentence) > LONGEST_LINE:
        cut = max(sentence.rfind(sign, 1, LONGEST_LINE) for sign in (", ", " "))
        cut = cut if cut > 0 else LONGEST_LINE
        yield sentence[:cut]
        sentence = sentence[cut:].lstrip(", ")
    if len(sentence) > 1:
        yield sentence


def _telling(sentence: str) -> str:
    cuts = [0, *(match.end() for match in _CLAUSES.finditer(sentence)), len(sentence)]
    if len(cuts) == 2:
        return sentence
    clauses = [sentence[start:end] for start, end in pairwise(cuts)]
    telling = [place for place, clause in enumerate(clauses) if _tells(clause)]
    if not telling:
        return sentence
    first, last = telling[0], telling[-1]
    if first and _LEANS.match(clauses[first]):
        first -= 1
    return sentence[cuts[first] : cuts[last + 1]].rstrip(" ,:–—-")


def _tells(clause: str) -> bool:
    words = map(_word, _WORDS.findall(clause))
    return any(word.weight or word.decides or word.asks for word in words)


def _texts(message: Message) -> Iterator[tuple[str, str]]:
    """Each text of a message, with the role that it counts for."""
    for part in message.parts:
        match part:
            case TextPart(text=text):
                yield message.role, _read(text)
            case ToolCallPart(name=name, arguments=arguments):
                yield "tool", f"called {name} with {one_line(arguments[:LONGEST_LINE])}"
            case ToolResultPart():
                yield "tool", _read(part.text)
            case ImagePart() | FilePart():
                yield "tool", note(part)
            case ThinkingPart():
                pass


def _read(text: str) -> str:
    if len(text) <= READ_CHARACTERS:
        return text
    return f"{text[: READ_CHARACTERS * 2 // 3]}\n{text[-READ_CHARACTERS // 3 :]}"
