"""Parallel dialogues in seven languages, with questions and the turns that answer them, among generated turns.

A file of `tests/search/data/dialogues` has a chat of two people and one of a user with an assistant. The same facts are
told on the same days in every language. Lines: `= NAME A|B` begins a dialogue with its speakers, `@ DATE` a day,
`A LABEL TEXT` is a turn that answers a question, `? KIND LABEL,LABEL TEXT` a question. `% TEXT` is a template of other
turns, whose slots the lists at the end fill, and `+` lists the sentences that may follow it.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent.parent / "search" / "data" / "dialogues"
LANGUAGE_CODES = ("en", "de", "fr", "es", "ru", "zh", "ja")
SEED = 16
_SLOT = re.compile(r"\{(\w+)\}")


class LabelledTurn(NamedTuple):
    day: date
    speaker: int
    label: str
    text: str


class DialogueQuestion(NamedTuple):
    kind: str
    """fact, time, people, hop for one that needs two turns, or para for one in other words."""
    labels: tuple[str, ...]
    text: str


class DialogueTurn(NamedTuple):
    at: datetime
    speaker: int
    text: str
    label: str | None = None


@dataclass
class Dialogue:
    name: str
    speakers: tuple[str, str]
    labelled: list[LabelledTurn] = field(default_factory=list)
    questions: list[DialogueQuestion] = field(default_factory=list)
    templates: list[str] = field(default_factory=list)
    closings: list[str] = field(default_factory=list)
    fillers: dict[str, list[str]] = field(default_factory=dict)

    @property
    def asked_at(self) -> datetime:
        return datetime.combine(self.labelled[-1].day + timedelta(days=2), datetime.min.time(), UTC)

    def generate_turns(self, *, fillers_per_day: int) -> Iterator[DialogueTurn]:
        """The labelled turns at random places among others, day by day; the same places in every language."""
        chance = random.Random(SEED)
        day = self.labelled[0].day
        while day <= self.labelled[-1].day:
            facts = [turn for turn in self.labelled if turn.day == day]
            places = sorted(chance.sample(range(fillers_per_day + len(facts)), len(facts)))
            start = datetime.combine(day, datetime.min.time(), UTC) + timedelta(hours=18)
            for place in range(fillers_per_day + len(facts)):
                at, speaker, text = start + timedelta(minutes=place), chance.randrange(2), self._fill_template(chance)
                if place in places:
                    fact = facts[places.index(place)]
                    yield DialogueTurn(at, fact.speaker, fact.text, fact.label)
                else:
                    yield DialogueTurn(at, speaker, text)
            day += timedelta(days=1)

    def _fill_template(self, chance: random.Random) -> str:
        # Each slot takes a position first, so that the choices do not depend on the order of slots in a language.
        positions = {slot: chance.randrange(1_000) for slot in sorted(self.fillers)}
        text = self.templates[chance.randrange(1_000) % len(self.templates)]
        closing = self.closings[chance.randrange(1_000) % len(self.closings)]
        text = _SLOT.sub(lambda slot: self.fillers[slot[1]][positions[slot[1]] % len(self.fillers[slot[1]])], text)
        return f"{text[:1].upper()}{text[1:]} {closing}"


def load_dialogues(language: str) -> list[Dialogue]:
    dialogues: list[Dialogue] = []
    day = date.min
    for line in (FOLDER / f"{language}.txt").read_text(encoding="utf-8").splitlines():
        mark, _, rest = line.partition(" ")
        if mark == "=":
            name, speakers = rest.split(" ", 1)
            first, second = speakers.split("|")
            dialogues.append(Dialogue(name, (first, second)))
        elif mark == "@":
            day = date.fromisoformat(rest)
        elif mark in ("A", "B"):
            label, text = rest.split(" ", 1)
            dialogues[-1].labelled.append(LabelledTurn(day, "AB".index(mark), label, text))
        elif mark == "?":
            kind, labels, text = rest.split(" ", 2)
            dialogues[-1].questions.append(DialogueQuestion(kind, tuple(labels.split(",")), text))
        elif mark == "%":
            dialogues[-1].templates.append(rest)
        elif mark == "+":
            dialogues[-1].closings = rest.split("|")
        else:
            dialogues[-1].fillers[mark] = rest.split("|")
    return dialogues
