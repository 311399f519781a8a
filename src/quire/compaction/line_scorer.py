"""Splits messages into single lines and scores them by what people miss after a compaction.

Identifiers, numbers, paths, addresses and names weigh most, then decisions, requests, and keywords of the user's
instructions. Words are scored by their form alone, each once. The time is linear in the length of the text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from quire.compaction.citations import escape_citations
from quire.model import FilePart, ImagePart, Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.wire.media import describe_media

ELLIPSIS = "…"
MAX_LINE_CHARS = 240
MAX_MESSAGE_CHARS = 60_000
"""Longer messages are truncated in the middle to this length."""
MAX_CACHED_WORD_CHARS = 100
"""Characters of a word whose score is cached."""

ROLE_WEIGHTS = {"user": 1.5, "assistant": 1.0, "system": 1.0, "tool": 0.4}
PLAIN_LINE_SCORE = 0.15
"""Score of a line without values, decisions, requests or keywords."""
_KEYWORD_WEIGHT, _REQUEST_WEIGHT, _NAME_WEIGHT = 4.0, 1.2, 0.6

SENTENCE_BOUNDARY = re.compile(
    r"(?<=\w\w[.!?])\s+|(?<=[\])\"'`%][.!?])\s+|(?<=\s[a-z0-9][.!?])\s+|(?<=[。！？])|(?<=\w);\s+"
)
_CJK = "\u2e80-\u9fff\uac00-\ud7af\uff00-\uffef"
_WORD = re.compile(rf"[^\s{_CJK}]+|[{_CJK}]+")
# The look-behind lets a run of blanks match from its beginning only; otherwise a long run would take quadratic time.
_CLAUSE_BOUNDARY = re.compile(r"(?<=[,:])\s+|(?<!\s)\s++[–—-]{1,2}\s+")
_DEPENDENT_CLAUSE = re.compile(
    r"(?:which|who|whose|it|its|they|their|this|that|these|those|he|she|and|or|but|so|then|because)\b", re.IGNORECASE
)
_FILLER_PREFIX = re.compile(
    r"(?:[-*+>•#|]+\s+|(?:\d{1,3}|[a-z])[.)]\s+"
    r"|(?:by the way|also|and|ok|okay|well|so|fyi|note|remember|for the record|for reference|as I said|just so you know"
    r"|I (?:was told|heard|think|believe|guess|know|see|found out|noticed))\b[,:]?\s+(?:that\s+)?)+",
    re.IGNORECASE,
)
_PUNCTUATION = ".,;:!?…\"'()[]{}<>*“”‘’"
DECISION_WORDS = frozenset([
    "decided", "decide", "decision", "decisions", "agreed", "settled", "approved", "rejected", "chose", "chosen",
    "renamed", "replaced", "deadline", "we'll", "we’ll", "instead", "ruled", "prefer", "prefers", "must", "never",
])  # fmt: skip
_OBLIGATION_WORDS = frozenset([
    "always", "don't", "don’t", "cannot", "can't", "can’t", "required", "requires", "only", "should", "need",
])  # fmt: skip
_REQUEST_WORDS = frozenset([
    "please", "want", "need", "expect", "could", "can", "make", "add", "fix", "write", "change", "keep",
])  # fmt: skip
_STOP_WORDS = frozenset([
    "about", "all", "and", "any", "are", "for", "from", "its", "keep", "not", "please", "that", "the", "this", "with",
])  # fmt: skip


class ScoredWord(NamedTuple):
    value: str
    weight: float
    """From 3 for an identifier that cannot be guessed to 0 for an ordinary word."""
    decision_weight: float
    is_request: bool


@dataclass(slots=True)
class ScoredLine:
    text: str
    citation: str
    order: tuple[int, int]
    source: int
    """Identifies its message, so that one message does not fill a summary."""
    role_weight: float
    base_score: float
    values: dict[str, float]
    """Values in the line, and their weights."""
    template: str
    """The line with an ellipsis for each value. Empty if it cannot be restored from them."""
    template_values: tuple[str, ...]
    decision_weight: float = 0.0
    """2 for a line with a word of a decision, 1 for an obligation, else 0."""
    estimated_tokens: int = 0

    @property
    def bullet(self) -> str:
        return f"- {self.text} {self.citation}" if self.citation else f"- {self.text}"

    @property
    def is_plain(self) -> bool:
        return self.base_score <= PLAIN_LINE_SCORE and not self.values


def collapse_whitespace(text: str) -> str:
    """Replaces each run of whitespace by one space. A long text in pieces, because one call that splits millions of
    words would hold the interpreter, and with it the event loop."""
    if len(text) <= MAX_MESSAGE_CHARS:
        return " ".join(text.split())
    collapsed: list[str] = []
    for start in range(0, len(text), MAX_MESSAGE_CHARS):
        piece = text[start : start + MAX_MESSAGE_CHARS]
        words = " ".join(piece.split())
        if words and collapsed and (piece[0].isspace() or text[start - 1].isspace()):
            collapsed.append(" ")
        collapsed.append(words)
    return "".join(collapsed).lstrip()


class LineScorer:
    """Splits and scores messages, with the keywords of one set of instructions."""

    def __init__(self, instructions: str | None) -> None:
        words = {word.strip(_PUNCTUATION).lower() for word in (instructions or "").split()}
        self._keywords = frozenset(word for word in words - _STOP_WORDS if len(word) > 2)

    def score_message(self, seq: int, message: Message) -> Iterator[ScoredLine]:
        citation = f"[#{seq}]"
        index = 0
        for part in message.parts:
            # A role weighs its text. Calls, results and media weigh like tools.
            role = "tool"
            match part:
                case TextPart(text=text):
                    role, text = message.role, truncate_middle(text)
                case ToolCallPart(name=name, arguments=arguments):
                    text = f"called {name} with {collapse_whitespace(arguments[:MAX_LINE_CHARS])}"
                case ToolResultPart():
                    text = truncate_middle(part.text)
                case ImagePart() | FilePart():
                    text = describe_media(part)
                case ThinkingPart():
                    continue
            for clause in split_clauses(text):
                index += 1
                yield self.score_line(escape_citations(clause), citation, (seq, index), seq, role=role)

    def score_line(self, text: str, citation: str, order: tuple[int, int], source: int, *, role: str) -> ScoredLine:
        """Scores a line: its values, whether it contains a decision or a request, and its template."""
        values: dict[str, float] = {}
        line_values: list[str] = []
        fragments: list[str] = []
        decision_weight, is_request, end, starts_sentence = 0.0, text.endswith("?"), 0, True
        for match in _WORD.finditer(text):
            word = _score_word(match[0])
            weight = word.weight or (
                _NAME_WEIGHT if not starts_sentence and match[0][:1].isupper() and len(word.value) > 2 else 0
            )
            starts_sentence = match[0][-1] in ".!?:"
            if word.decision_weight > decision_weight:
                decision_weight = word.decision_weight
            is_request = is_request or word.is_request
            if weight:
                values[word.value.lower()] = weight
                start = match.start() + match[0].index(word.value)
                fragments += [text[end:start], ELLIPSIS]
                line_values.append(word.value)
                end = start + len(word.value)
        fragments.append(text[end:])
        keywords = frozenset[str]()
        if self._keywords:
            keywords = self._keywords & {_score_word(word).value.lower() for word in _WORD.findall(text)}
        base = (
            PLAIN_LINE_SCORE
            + decision_weight
            + (_REQUEST_WEIGHT if is_request and role == "user" else 0)
            + _KEYWORD_WEIGHT * len(keywords)
        )
        # The template, if the line can be restored from it and if it is longer than its values.
        template = "".join(fragments)
        is_reversible = (
            template.count(ELLIPSIS) == len(line_values) and ": " not in fragments[-1] and "[" not in template
        )
        if not line_values or not is_reversible or len(template) <= 4 * len(line_values):
            template = ""
        return ScoredLine(
            text,
            citation,
            order,
            source,
            ROLE_WEIGHTS.get(role, 1.0),
            base,
            values,
            template,
            tuple(line_values),
            decision_weight,
        )


def _score_word(word: str) -> ScoredWord:
    return _score_short_word(word) if len(word) <= MAX_CACHED_WORD_CHARS else _compute_score(word)


def _compute_score(word: str) -> ScoredWord:
    bare = word.strip(_PUNCTUATION)
    lower = bare.lower()
    decision_weight = 2.0 if lower in DECISION_WORDS else 1.0 if lower in _OBLIGATION_WORDS else 0.0
    return ScoredWord(
        bare, _value_weight(bare) if bare else 0.0, decision_weight, lower in _REQUEST_WORDS or word.endswith("?")
    )


def _value_weight(bare: str) -> float:
    """Weight by form: letters with digits, numbers, paths and addresses, identifiers of code, capitals."""
    digits = sum(map(str.isdigit, bare))
    letters = sum(map(str.isalpha, bare))
    if digits and letters:
        return 3.0 if digits + letters > 3 else 1.5
    if digits:
        return 2.5 if len(bare) > 3 else 0.4
    inner = bare.strip("`")
    if letters < 2 or inner == "OK":
        return 0.0
    if inner != bare or any(sign in inner for sign in ("/", "\\", "@", "_", "::", "()", "=", ".")):
        return 2.5
    if inner.isupper() and inner.isascii():
        return 1.0
    return 2.0 if inner.isalpha() and any(map(str.isupper, inner[1:])) else 0.0


_score_short_word = lru_cache(maxsize=50_000)(_compute_score)


def split_clauses(text: str) -> Iterator[str]:
    """Splits a text into clauses that can be read alone."""
    for line in text.splitlines():
        for sentence in SENTENCE_BOUNDARY.split(collapse_whitespace(line)):
            lead = _FILLER_PREFIX.match(sentence)
            rest = _trim_uninformative(sentence[lead.end() :] if lead else sentence).rstrip(".")
            while len(rest) > MAX_LINE_CHARS:
                cut = max(rest.rfind(sign, 1, MAX_LINE_CHARS) for sign in (", ", " "))
                cut = cut if cut > 0 else MAX_LINE_CHARS
                yield rest[:cut]
                rest = rest[cut:].lstrip(", ")
            if len(rest) > 1:
                yield rest


def _trim_uninformative(sentence: str) -> str:
    """The sentence from its first informative clause to its last."""
    cuts = [0, *(match.end() for match in _CLAUSE_BOUNDARY.finditer(sentence)), len(sentence)]
    if len(cuts) == 2:
        return sentence
    clauses = [sentence[start:end] for start, end in pairwise(cuts)]
    informative: list[int] = []
    for index, clause in enumerate(clauses):
        found: list[str] = _WORD.findall(clause)
        words = map(_score_word, found)
        has_name = any(word[0].isupper() and len(word) > 2 for word in found[1:])
        if has_name or any(word.weight or word.decision_weight or word.is_request for word in words):
            informative.append(index)
    if not informative:
        return sentence
    first, last = informative[0], informative[-1]
    if first and _DEPENDENT_CLAUSE.match(clauses[first]):
        first -= 1
    return sentence[cuts[first] : cuts[last + 1]].rstrip(" ,:–—-")


def truncate_middle(text: str) -> str:
    if len(text) <= MAX_MESSAGE_CHARS:
        return text
    return f"{text[: MAX_MESSAGE_CHARS * 2 // 3]}\n{text[-MAX_MESSAGE_CHARS // 3 :]}"
