"""Facts of removed messages that a summary does not have: names, numbers, paths, commands and decisions. Pure.

Each line of the removed messages is scored by `LineScorer`. A value is lost if neither the summary nor a message that
remains has it. A decision is lost if no line there has most of its words. What can be read again is no fact: a long
result of a tool, such as a file. The time is linear in the length of the texts, and the result is bounded.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from pydantic_core import from_json

from quire.compaction.line_scorer import DECISION_WORDS, LineScorer, ScoredLine, split_clauses, truncate_middle
from quire.model import Message, TextPart, ToolCallPart, ToolResultPart
from quire.model.json_values import is_object

MAX_LOST_FACTS = 50
"""Facts that are named."""
MAX_COMPARED_CHARS = 1_000_000
"""Characters of the removed messages that are compared, the newest first."""
MAX_RESULT_CHARS = 1_000
"""A longer result of a tool can be read again."""
MIN_STRENGTH = 0.5
"""Sum of the weights of missing values from which a line is a fact: a name, or a number of more than three digits."""
MIN_DECISION_WEIGHT = 2.0
MIN_KNOWN_SHARE = 0.65
"""Share of a decision's words that one line of the summary must have."""
MIN_WORD_CHARS = 5
MAX_WORD_LINES = 200
"""Lines of the summary in which a word is looked up."""
MAX_PATH_NAMES = 8
"""Names at the end of a path that are compared."""

_WORD = re.compile(r"[^\W_]+")
_PIECE = re.compile(r"[^\s=:,;|()\[\]{}<>\"'`“”‘’]+")
_EDGES = ".,;:!?…*/\\-–"


@dataclass(frozen=True, slots=True)
class LostFact:
    seq: int
    """The message that has the fact."""
    text: str
    """The line with the fact."""
    values: tuple[str, ...]
    """Its missing names, numbers, paths and commands; empty for a decision."""


class LostFacts(NamedTuple):
    facts: tuple[LostFact, ...]
    """At most `MAX_LOST_FACTS`, the strongest first."""
    total: int
    """Number of all lost facts."""


class _FactCandidate(NamedTuple):
    strength: float
    line: ScoredLine
    values: tuple[str, ...]


def find_lost_facts(
    removed: Iterable[tuple[int, Message]], remaining: Iterable[str], *, summaries: Iterable[tuple[int, str]] = ()
) -> LostFacts:
    """Compares the removed messages, by sequence number, with the summary and what else the client still has.

    `summaries` are earlier summaries among what was removed. Each of their lines counts as a decision.
    """
    known = _KnownWords(remaining)
    scorer, room = LineScorer(None), MAX_COMPARED_CHARS
    texts = [(seq, False, role, text) for seq, message in removed for role, text in _list_texts(message)]
    texts += [(seq, True, "assistant", truncate_middle(text)) for seq, text in summaries]
    candidates: list[_FactCandidate] = []
    for seq, is_summary, role, text in sorted(texts, key=lambda each: -each[0]):
        room -= len(text)
        if room < 0:
            break
        for place, clause in enumerate(split_clauses(text)):
            line = scorer.score_line(clause, "", (seq, place), seq, role=role)
            values = tuple(value for value in line.values if not known.has_value(value))
            strength = sum(line.values[value] for value in values)
            decides = is_summary or line.decision_weight >= MIN_DECISION_WEIGHT
            if strength >= MIN_STRENGTH or (decides and not known.has_decision(clause)):
                candidates.append(_FactCandidate((strength + line.decision_weight) * line.role_weight, line, values))
    # A value is named once, with its strongest line; of equal ones the oldest, where it was said first.
    named: set[str] = set()
    lost: list[_FactCandidate] = []
    for candidate in sorted(candidates, key=lambda each: (-each.strength, each.line.order)):
        new = set(candidate.values or (candidate.line.text.lower(),)) - named
        if new:
            named |= new
            lost.append(candidate)
    strongest = lost[:MAX_LOST_FACTS]
    return LostFacts(tuple(LostFact(each.line.source, each.line.text, each.values) for each in strongest), len(lost))


def _list_texts(message: Message) -> Iterator[tuple[str, str]]:
    """The texts of a message that can have facts, each with the role that it weighs like."""
    if message.role == "system":
        return
    for part in message.parts:
        match part:
            case TextPart(text=text):
                yield message.role, truncate_middle(text)
            case ToolCallPart(arguments=arguments) if len(arguments) <= MAX_RESULT_CHARS:
                with suppress(ValueError):
                    yield "tool", "\n".join(_list_strings(from_json(arguments)))
            case ToolResultPart(text=text) if len(text) <= MAX_RESULT_CHARS:
                yield "tool", text
            case _:
                continue


def _list_strings(value: object) -> list[str]:
    """The texts of a call's arguments, such as its command, without the nested ones."""
    return [each for each in value.values() if isinstance(each, str)] if is_object(value) else []


class _KnownWords:
    """The words and values of the texts that the client still has."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._pieces: set[str] = set()
        self._path_ends: set[str] = set()
        self._lines: dict[str, list[int]] = {}
        """Numbers of the lines that have a word."""
        for number, line in enumerate(line for text in texts for line in text.lower().splitlines()):
            for word in _list_words(line):
                self._lines.setdefault(word, []).append(number)
            for piece in _PIECE.findall(line):
                self._pieces.add(piece.strip(_EDGES))
                self._path_ends.update(_list_path_ends(piece))

    def has_value(self, value: str) -> bool:
        """Whether a text has all pieces of the value, a path also in a longer or shorter form.

        The name of a file is no form of another path that ends with it.
        """
        pieces = _PIECE.findall(value.lower())
        return bool(pieces) and all(
            piece.strip(_EDGES) in self._path_ends or not self._pieces.isdisjoint(_list_path_ends(piece))
            for piece in pieces
        )

    def has_decision(self, clause: str) -> bool:
        """Whether one line of the texts has most of the longer words. A bare consent decides nothing."""
        words = _list_words(clause)
        if words <= DECISION_WORDS:
            return True
        counts = Counter(number for word in words for number in self._lines.get(word, [])[:MAX_WORD_LINES])
        return max(counts.values(), default=0) >= MIN_KNOWN_SHARE * len(words)


def _list_words(text: str) -> set[str]:
    return {word for word in _WORD.findall(text.lower()) if len(word) >= MIN_WORD_CHARS}


def _list_path_ends(piece: str) -> list[str]:
    """A piece without marks at its edges, and without the first folders of a path."""
    names = piece.strip(_EDGES).replace("\\", "/").split("/")[-MAX_PATH_NAMES:]
    return ["/".join(names[first:]) for first in range(len(names))]
