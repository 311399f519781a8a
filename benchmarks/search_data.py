"""Generates conversations for the search benchmark: chat and agent sessions with natural word frequencies.

Words follow Zipf's law, each conversation has a topic whose words recur, and a part of the messages are outputs of
tools: paths, numbers, log lines. A few messages state a fact that a question can ask for. Everything follows from the
conversation's number, so that the same rows can be generated again.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy

from quire.log import ConversationOrigin
from quire.model import Draft, Message, TextPart, TokenCount, ToolResultPart

MESSAGES_PER_CONVERSATION = 100
VOCABULARY_SIZE = 60_000
TOPIC_WORDS = 40
TOPIC_SHARE = 0.25
"""Share of words that come from the topic of their conversation."""
FACT_INTERVAL = 50
"""Every 50th conversation states a fact."""
FIRST_AT = 1_700_000_000_000_000
CONVERSATION_GAP_MICROS = 6_000_000_000
MESSAGE_GAP_MICROS = 20_000_000

CLIENTS = ("claude-code", "codex", "chat", None)
PROJECTS = tuple(f"/home/user/project-{number}" for number in range(20))
PEOPLE = ("Ada", "Bruno", "Chidi", "Dalia", "Emeka", "Freya", "Goran", "Hana", "Ines", "Jonas", "Kaya", "Lior")
FUNCTION_WORDS_TEXT = (
    "the of and to a in that is it for you was with on as have be at this are I from or by we not but what all"
    " were when your can there use each which do how their if will up other about out many then them these"
    " some would make like into time has look two more go see no way could my than first been call who now"
    " find long down did get come may"
)
FUNCTION_WORDS = FUNCTION_WORDS_TEXT.split()
_SYLLABLES_TEXT = (
    "an ar ba be ca co da de di do el en er fa fi ga gen ha in ka la le li lo ma me mi mo na ne no ol or pa pe"
    " po ra re ri ro sa se si so ta te ti to ul un va ve vi wa wi"
)
_SYLLABLES = _SYLLABLES_TEXT.split()


class GeneratedConversation(NamedTuple):
    id: str
    title: str
    origin: ConversationOrigin | None
    drafts: list[Draft]
    texts: list[str]


class Fact(NamedTuple):
    conversation: str
    seq: int
    question: str


@cache
def make_vocabulary() -> tuple[list[str], numpy.ndarray]:
    """Words from the most frequent on, and their cumulative probabilities."""
    chance = numpy.random.default_rng(7)
    words = dict.fromkeys(FUNCTION_WORDS)
    while len(words) < VOCABULARY_SIZE:
        syllables = chance.integers(0, len(_SYLLABLES), size=chance.integers(2, 5))
        words.setdefault("".join(_SYLLABLES[each] for each in syllables))
    weights = 1 / (numpy.arange(VOCABULARY_SIZE) + 2.7)
    return list(words), numpy.cumsum(weights / weights.sum())


class ConversationGenerator:
    """Generates the conversations of one tenant by their numbers."""

    def __init__(self, tenant: str) -> None:
        self._seed = int.from_bytes(tenant.encode(), "little")
        self._words, self._cumulative = make_vocabulary()

    def generate(self, number: int) -> GeneratedConversation:
        chance = numpy.random.default_rng((self._seed, number))
        topic = self._draw_words(chance, TOPIC_WORDS, first=len(FUNCTION_WORDS))
        texts = self._make_texts(chance, topic)
        if (fact := find_fact(number)) is not None:
            texts[fact.seq - 1] = f"Remember that the {fact_subject(number)} is set to {number * 7 % 9_973}."
        at = FIRST_AT + number * CONVERSATION_GAP_MICROS
        name = PEOPLE[number % len(PEOPLE)] if number % 3 == 0 else None
        drafts = [
            Draft(
                body=_make_message(index, text, name),
                tokens=TokenCount(len(text) // 4 + 4, "o200k"),
                created_at=at + index * MESSAGE_GAP_MICROS,
            )
            for index, text in enumerate(texts)
        ]
        client = CLIENTS[number % len(CLIENTS)]
        origin = ConversationOrigin(client=client, project=PROJECTS[number % len(PROJECTS)]) if client else None
        return GeneratedConversation(conversation_id(number), " ".join(topic[:4]).capitalize(), origin, drafts, texts)

    def _make_texts(self, chance: numpy.random.Generator, topic: list[str]) -> list[str]:
        """Questions are short, answers longer, and every fifth message is the output of a tool."""
        means = numpy.array([2.5, 3.6, 2.5, 3.3, 3.6] * (MESSAGES_PER_CONVERSATION // 5))
        lengths = 3 + numpy.minimum(chance.lognormal(means, 0.7), 400).astype(int)
        total = int(lengths.sum())
        words = self._draw_words(chance, total)
        places = numpy.flatnonzero(chance.random(total) < TOPIC_SHARE)
        for place, choice in zip(places.tolist(), chance.integers(0, len(topic), len(places)).tolist(), strict=True):
            words[place] = topic[choice]
        for place in chance.integers(0, total, MESSAGES_PER_CONVERSATION // 4).tolist():
            words[place] = PEOPLE[place % len(PEOPLE)]
        ends = numpy.cumsum(lengths).tolist()
        pieces = [words[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
        return [
            _format_tool_output(piece) if index % 5 == 3 else " ".join(piece).capitalize() + "."
            for index, piece in enumerate(pieces)
        ]

    def _draw_words(self, chance: numpy.random.Generator, count: int, *, first: int = 0) -> list[str]:
        low = self._cumulative[first - 1] if first else 0.0
        drawn = numpy.searchsorted(self._cumulative, low + (1 - low) * chance.random(count))
        return [self._words[each] for each in numpy.minimum(drawn, VOCABULARY_SIZE - 1).tolist()]


def _format_tool_output(words: list[str]) -> str:
    """Lines of a compiler: a path, a line number and a few words."""
    return "\n".join(
        f"src/{line[0]}/{line[-1]}.py:{len(''.join(line)) * 37 % 4_001}: {' '.join(line[1:])}"
        for line in (words[start : start + 6] for start in range(0, len(words), 6))
    )


def _make_message(index: int, text: str, name: str | None) -> Message:
    parts = (TextPart(text=text),)
    if index % 5 == 3:
        return Message(role="tool", parts=(ToolResultPart(call_id=f"call_{index}", content=parts),))
    return Message(role="user", name=name, parts=parts) if index % 5 in (0, 2) else Message.assistant(text)


def conversation_id(number: int) -> str:
    return f"conversation-{number:06d}"


def fact_subject(number: int) -> str:
    words, _ = make_vocabulary()
    return f"{words[2_000 + number % 40_000]} of plant p{number}"


def find_fact(number: int) -> Fact | None:
    if number % FACT_INTERVAL:
        return None
    return Fact(conversation_id(number), 1 + 5 * (number % 19), f"What is the {fact_subject(number)} set to?")


_WORD = re.compile(r"[a-z]{4,}")


def iter_queries(generator: ConversationGenerator, conversations: int, *, seed: int = 11) -> Iterator[str]:
    """Queries as people type them: two to four words of one message, without function words."""
    chance = numpy.random.default_rng(seed)
    while True:
        texts = generator.generate(int(chance.integers(conversations))).texts
        words = [each for each in _WORD.findall(texts[int(chance.integers(len(texts)))]) if each not in FUNCTION_WORDS]
        if len(words) >= 2:
            count = min(len(words), int(chance.integers(2, 5)))
            yield " ".join(words[int(each)] for each in chance.choice(len(words), size=count, replace=False))
