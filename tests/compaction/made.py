"""Entries for compactions, without a database, and a conversation with facts planted in it."""

import random
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256

from quire.model import Compaction, Draft, Entry, Message
from quire.model.entries import kind_of
from quire.view.tokens import counter_for

COUNTER = counter_for("gpt-4o")


def entry(seq: int, body: Message | Compaction) -> Entry:
    digest = sha256(f"{seq} {body.canonical()}".encode()).digest()
    return Entry(
        conversation="c",
        branch=0,
        seq=seq,
        kind=kind_of(body),
        role=body.role if isinstance(body, Message) else None,
        author=Draft(body=body).written_by(),
        at=seq,
        digest=digest,
        path=digest,
        tokens=None,
        counter=None,
        raw=body.canonical(),
        raw_notes=None,
        purged_at=None,
    )


def entries(messages: Sequence[Message], *, first: int = 1) -> list[Entry]:
    return [entry(first + place, message) for place, message in enumerate(messages)]


def chat(*texts: str, first: int = 1) -> list[Entry]:
    """Texts of a user and an assistant, in turn."""
    made = [Message.assistant(text) if place % 2 else Message.user(text) for place, text in enumerate(texts)]
    return entries(made, first=first)


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

FORMS: dict[str, list[str]] = {
    "one form": ["the access code of door {i} is {v}"],
    "ten forms": [
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
    "each its own": [f"{subject} {verb} {{v}}" for verb in _VERBS for subject in _SUBJECTS],
}
_BEFORE = ("", "", "By the way, ", "Note that ", "I was told that ", "Before I forget, ")
_AFTER = (".", ".", ", as far as I know.", ", in case you need it.")


def planted(forms: str, *, messages: int = 2_000, facts: int = 200, seed: int = 7) -> tuple[list[Entry], list[str]]:
    """A conversation of about 60 tokens a message, and the values that are in it, each once."""
    chance = random.Random(seed)
    texts: list[str] = []
    values: list[str] = []
    for place in range(messages):
        said = list(_chatter(chance))
        if place % (messages // facts) == 3:
            value = _value(chance, taken=values)
            fact = _filled(chance, len(values), FORMS[forms], value)
            values.append(value)
            said.insert(1, f"{chance.choice(_BEFORE)}{fact}{chance.choice(_AFTER)}")
        texts.append(" ".join(sentence[0].upper() + sentence[1:] for sentence in said))
    return chat(*texts), values


def _value(chance: random.Random, *, taken: Sequence[str]) -> str:
    """Such as QX-4821."""
    while (value := f"{''.join(chance.choices('ABCDEFGHJKQXZ', k=2))}-{chance.randrange(1000, 9999)}") in taken:
        pass
    return value


def _filled(chance: random.Random, number: int, forms: Sequence[str], value: str) -> str:
    form = forms[number % len(forms)]
    return form.format(i=number, v=value, n=chance.choice(_NAMES), d=chance.randrange(10, 29))


def _chatter(chance: random.Random) -> Iterator[str]:
    for place in range(4):
        words = " ".join(chance.choices(_WORDS, k=12))
        tells = place == 1 and chance.random() < 0.3
        yield f"it took about {chance.randrange(2, 90)} minutes, {words}." if tells else f"{words}."
