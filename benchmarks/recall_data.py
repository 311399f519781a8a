"""Chats with questions whose answering turns are known, and the measure: the share of them that a request holds.

LoCoMo (snap-research/LoCoMo), REALTALK (danny911kr/REALTALK) and BEAM (mohammadtavakoli78/BEAM), one file NAME.jsonl.gz
each with a conversation a line: `id`, `turns` of `{speaker, text, session, date}`, `questions` of `{q, cat, gold}` with
the places of the turns that answer. The data is not part of the project.
"""

import gzip
import json
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from quire.context.recall import Spoken
from quire.view.tokens import counter_for

BUDGETS = (1_000, 2_000, 4_000, 8_000)
DATES = ("%I:%M %p on %d %B, %Y", "%d.%m.%Y, %H:%M:%S", "%B-%d-%Y")
DAY = 24 * 3_600 * 1_000_000
COUNT = counter_for("gpt-4").count


class Asked(NamedTuple):
    text: str
    category: str
    gold: frozenset[int]
    """The numbers of the turns that answer it."""


@dataclass(frozen=True)
class Chat:
    id: str
    spoken: list[Spoken]
    asked: list[Asked]

    @property
    def after(self) -> int:
        """When the questions are asked: a day after the last turn."""
        return self.spoken[-1].at + DAY


def chats(name: str, folder: Path) -> Iterator[Chat]:
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            given = json.loads(line)
            asked = [
                Asked(each["q"], each["cat"], frozenset(turn + 1 for turn in each["gold"]))
                for each in given["questions"]
            ]
            yield Chat(given["id"], list(_spoken(given["turns"])), asked)


def _spoken(turns: Sequence[Mapping[str, str | int]]) -> Iterator[Spoken]:
    """Turn 0 is message 1. In a set of people the speakers have names; each turn is a second after the one before."""
    speakers = sorted({str(turn["speaker"]) for turn in turns})
    plain = set(speakers) <= {"user", "assistant"}
    begun: dict[str | int, tuple[datetime, int]] = {}
    for place, turn in enumerate(turns):
        speaker, text = str(turn["speaker"]), str(turn["text"])
        start, first = begun.setdefault(turn["session"], (_moment(str(turn["date"])), place))
        at = int((start + timedelta(seconds=place - first)).timestamp()) * 1_000_000
        role = speaker if plain else ("user", "assistant")[speakers.index(speaker) % 2]
        yield Spoken(place + 1, role, None if plain else speaker, at, text, COUNT(text))


def _moment(written: str) -> datetime:
    for form in DATES:
        try:
            return datetime.strptime(written, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise ValueError(f"No date: {written!r}")


@dataclass
class Recall:
    """Per budget: the mean share of the gold turns present, and of questions with all of them."""

    shares: dict[int, list[float]] = field(default_factory=lambda: {budget: [] for budget in BUDGETS})

    def add(self, gold: Collection[int], present: Mapping[int, Collection[int]]) -> None:
        for budget in BUDGETS:
            self.shares[budget].append(len(set(gold) & set(present[budget])) / len(set(gold)))

    @property
    def share(self) -> list[float]:
        return [100 * statistics.mean(self.shares[budget]) for budget in BUDGETS]

    @property
    def complete(self) -> list[float]:
        return [100 * statistics.mean(share == 1 for share in self.shares[budget]) for budget in BUDGETS]
