"""Builders of chats, and of a conversation that contains facts to find again."""

import random
import re
from collections.abc import Iterator, Sequence

from infra.builders import make_entries
from quire.compaction.summary_prompt import TranscriptChunk, chunk_transcript, to_transcript
from quire.model import Entry, Message
from quire.wire.tokens import TokenCounter, counter_for

TOKEN_COUNTER = counter_for("gpt-4o")


def make_chat(*texts: str, first_seq: int = 1) -> tuple[Entry, ...]:
    """Entries of user and assistant messages, alternating."""
    messages = [Message.assistant(text) if index % 2 else Message.user(text) for index, text in enumerate(texts)]
    return make_entries(messages, first_seq=first_seq)


def chunk_entries(entries: Sequence[Entry], *, max_tokens: int, counter: TokenCounter) -> list[TranscriptChunk]:
    return chunk_transcript(to_transcript(entries), max_tokens=max_tokens, counter=counter)


_WORDS = re.findall(
    r"\w+",
    "we were thinking about how the garden looks in spring and whether the paths could be wider because people like"
    " to walk there the light falls through the trees and makes it pleasant to sit for a while when nobody else is"
    " around and the water runs slowly under the bridge it would be good to have more time for such things but there"
    " is often something else to do first and then the day is over again",
)
_NAMES = ("Petra", "Amir", "Chen", "Olga", "Luis", "Fatima", "Jonas", "Keiko", "Ravi", "Zoe")
_SUBJECTS = (
    "the boiler", "our landlord's account", "the spare key box", "the rental van", "my membership", "the old router",
    "her flight", "the courier's page", "the museum locker", "the ferry booking", "this oven's spare part",
    "the choir's room", "the bike frame", "the archive shelf", "our tax reference", "the hotel confirmation",
    "that library card", "the pump's plate", "the solar inverter", "the vaccine batch", "the theatre seats",
    "the parking permit", "the garden gate", "our insurance policy", "the printer queue", "the backup tape",
    "the cello case", "the clinic file", "the storage unit", "the alarm panel",
)  # fmt: skip
_VERBS = (
    "is registered as", "has the reference", "goes by", "carries the code", "was filed under", "is found with",
    "is labelled",
)  # fmt: skip

FACT_TEMPLATES: dict[str, list[str]] = {
    "one template": ["the access code of door {i} is {v}"],
    "ten templates": [
        "the access code of door {i} is {v}",
        "the server for team {n} listens on {v}",
        "{n}'s badge number is {v}",
        "config key CACHE_{i} = {v}",
        "the invoice {v} is due on 2026-03-{d}",
        "backups of {n} go to /srv/backup/{v}",
        "ticket {v} is assigned to {n}",
        "we decided to call the release of sprint {i} {v}",
        "my locker is number {i}, its combination {v}",
        "please send the parcel for {n} with label {v}",
    ],
    "all distinct": [f"{subject} {verb} {{v}}" for verb in _VERBS for subject in _SUBJECTS],
}
_FACT_PREFIXES = ("", "", "By the way, ", "Note that ", "I was told that ", "Before I forget, ")
_FACT_SUFFIXES = (".", ".", ", as far as I know.", ", in case you need it.")


def make_chat_with_facts(
    templates: str, *, messages: int = 2_000, facts: int = 200, seed: int = 7
) -> tuple[list[Entry], list[str]]:
    """Builds a conversation of about 60 tokens per message, and the values of its facts, each used once."""
    chance = random.Random(seed)
    texts: list[str] = []
    values: list[str] = []
    for index in range(messages):
        sentences = list(_make_small_talk(chance))
        if index % (messages // facts) == 3:
            value = _make_value(chance, taken=values)
            fact = _fill_template(chance, len(values), FACT_TEMPLATES[templates], value)
            values.append(value)
            sentences.insert(1, f"{chance.choice(_FACT_PREFIXES)}{fact}{chance.choice(_FACT_SUFFIXES)}")
        texts.append(" ".join(sentence[0].upper() + sentence[1:] for sentence in sentences))
    return make_chat(*texts), values


def _make_value(chance: random.Random, *, taken: Sequence[str]) -> str:
    """A unique value such as QX-4821."""
    while (value := f"{''.join(chance.choices('ABCDEFGHJKQXZ', k=2))}-{chance.randrange(1000, 9999)}") in taken:
        pass
    return value


def _fill_template(chance: random.Random, number: int, templates: Sequence[str], value: str) -> str:
    template = templates[number % len(templates)]
    return template.format(i=number, v=value, n=chance.choice(_NAMES), d=chance.randrange(10, 29))


def _make_small_talk(chance: random.Random) -> Iterator[str]:
    for index in range(4):
        words = " ".join(chance.choices(_WORDS, k=12))
        has_number = index == 1 and chance.random() < 0.3
        yield f"it took about {chance.randrange(2, 90)} minutes, {words}." if has_number else f"{words}."
