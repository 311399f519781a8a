"""Datasets of chats with questions and labelled evidence turns, and the score: the share of them in a request.

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

from quire.search.segments import IndexedMessage
from quire.wire.tokens import counter_for

BUDGETS = (1_000, 2_000, 4_000, 8_000)
DATE_FORMATS = ("%I:%M %p on %d %B, %Y", "%d.%m.%Y, %H:%M:%S", "%B-%d-%Y")
DAY_MICROSECONDS = 24 * 3_600 * 1_000_000
count_tokens = counter_for("gpt-4").count


class LabelledQuestion(NamedTuple):
    text: str
    category: str
    evidence: frozenset[int]
    """The numbers of the turns that answer it."""


@dataclass(frozen=True)
class DatasetChat:
    id: str
    messages: list[IndexedMessage]
    questions: list[LabelledQuestion]

    @property
    def asked_at(self) -> int:
        """Time of the questions: a day after the last turn."""
        return self.messages[-1].at + DAY_MICROSECONDS


def load_chats(name: str, folder: Path) -> Iterator[DatasetChat]:
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            chat = json.loads(line)
            questions = [
                LabelledQuestion(each["q"], each["cat"], frozenset(turn + 1 for turn in each["gold"]))
                for each in chat["questions"]
            ]
            yield DatasetChat(chat["id"], list(_parse_turns(chat["turns"])), questions)


def _parse_turns(turns: Sequence[Mapping[str, str | int]]) -> Iterator[IndexedMessage]:
    """Turn 0 is message 1. In a set of people the speakers have names; each turn is a second after the one before."""
    speakers = sorted({str(turn["speaker"]) for turn in turns})
    plain = set(speakers) <= {"user", "assistant"}
    begun: dict[str | int, tuple[datetime, int]] = {}
    for place, turn in enumerate(turns):
        speaker, text = str(turn["speaker"]), str(turn["text"])
        start, first = begun.setdefault(turn["session"], (_parse_date(str(turn["date"])), place))
        at = int((start + timedelta(seconds=place - first)).timestamp()) * 1_000_000
        role = speaker if plain else ("user", "assistant")[speakers.index(speaker) % 2]
        yield IndexedMessage(place + 1, role, None if plain else speaker, at, text, count_tokens(text))


def _parse_date(written: str) -> datetime:
    for form in DATE_FORMATS:
        try:
            return datetime.strptime(written, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise ValueError(f"No date: {written!r}")


@dataclass
class RecallScores:
    """Per budget: the mean share of the gold turns present, and of questions with all of them."""

    shares_by_budget: dict[int, list[float]] = field(default_factory=lambda: {budget: [] for budget in BUDGETS})

    def add(self, gold: Collection[int], present: Mapping[int, Collection[int]]) -> None:
        for budget in BUDGETS:
            self.shares_by_budget[budget].append(len(set(gold) & set(present[budget])) / len(set(gold)))

    @property
    def mean_shares(self) -> list[float]:
        return [100 * statistics.mean(self.shares_by_budget[budget]) for budget in BUDGETS]

    @property
    def complete_shares(self) -> list[float]:
        return [100 * statistics.mean(share == 1 for share in self.shares_by_budget[budget]) for budget in BUDGETS]
