"""Search finds a fact in a message of any length, wherever it is in the message, and shows it."""

import random
from typing import Any, NamedTuple

import pytest

from infra.sizes import IS_FULL_SIZE
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import index_messages
from quire.engine.search import search_messages
from quire.llm.embeddings import load_local_embedder
from quire.model import Draft, Message
from quire.settings import Settings
from quire.store import SqlStore

FACT_COUNT = 200 if IS_FULL_SIZE else 20
MIN_FOUND_SHARE = 0.98
MIN_CHARS, MAX_CHARS = 100, 200_000
PLACES = ("Arlen", "Brisk", "Corvo", "Dunmere", "Eskdale", "Fenwick", "Garrow", "Holt", "Ister", "Jarrow")
COLORS = ("amber", "azure", "crimson", "ivory", "olive", "scarlet", "teal", "violet")
QUERY_WORDS = ("vault", "code", "gate", *COLORS, *PLACES)
COMMON_WORDS = (
    "road",
    "weather",
    "river",
    "table",
    "window",
    "paper",
    "engine",
    "market",
    "garden",
    "letter",
    "winter",
)
SIMILAR_OPENINGS = (
    "What is the vault code of that gate?",
    "Which gate does the vault code open?",
    "A vault code, a gate.",
)


class Fact(NamedTuple):
    seq: int
    code: str
    question: str
    chars: int


def make_filler(rng: random.Random, chars: int) -> list[str]:
    """Sentences of common words and of rare ones. Every word of the questions occurs in them, but never together."""
    sentences: list[str] = []
    while chars > 0:
        words = [rng.choice(COMMON_WORDS) for _ in range(rng.randint(5, 14))]
        words.append(f"{rng.choice(COMMON_WORDS)}{rng.randrange(3_000)}")
        if rng.random() < 0.1:
            words.append(rng.choice(QUERY_WORDS))
        sentences.append(f"We saw {' '.join(words)}.")
        chars -= len(sentences[-1]) + 1
    return sentences


async def plant_facts(store: SqlStore, rng: random.Random) -> list[Fact]:
    """Half of the messages, of every role, have a fact at a random place; their lengths are spread evenly by order of
    magnitude."""
    await store.create_conversation("c")
    gates = [(color, place) for color in COLORS for place in PLACES]
    facts: list[Fact] = []
    for number in range(2 * FACT_COUNT):
        chars = round(MIN_CHARS * (MAX_CHARS / MIN_CHARS) ** rng.random())
        sentences = make_filler(rng, chars)
        if number % 2 == 0:
            code, (color, place) = f"{rng.randrange(10**6):06d}", gates[len(facts) % len(gates)]
            gate = f"{color} gate of {place} {1_000 + len(facts)}"
            sentences.insert(rng.randint(0, len(sentences)), f"The vault code {code} opens the {gate}.")
            facts.append(Fact(number + 1, code, f"What is the vault code of the {gate}?", chars))
        else:
            # Close in meaning to every question, by the words that say the least.
            sentences.insert(0, rng.choice(SIMILAR_OPENINGS))
        text = " ".join(sentences)
        messages = (Message.user(text), Message.assistant(text), Message.tool(f"call-{number}", text))
        await store.append("c", Draft(body=messages[number // 2 % 3]))
    return facts


@pytest.mark.parametrize("embedder", [None, load_local_embedder()], ids=["words", "words and meaning"])
async def test_facts_are_found_in_messages_of_any_length(store: SqlStore, embedder: Any):
    facts = await plant_facts(store, random.Random(7))
    engine = Engine(store, EngineConfig.create(Settings(), embedder=embedder))
    await index_messages(engine)
    missed: list[int] = []
    for fact in facts:
        hits = (await search_messages(engine, fact.question, limit=5)).messages
        # The excerpt is of the passage that matches, wherever it is in the message.
        if not any(hit.entry.seq == fact.seq and fact.code in hit.excerpt for hit in hits):
            missed.append(fact.chars)
    assert len(missed) <= (1 - MIN_FOUND_SHARE) * len(facts), sorted(missed)
