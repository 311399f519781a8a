"""Agent memory at any number of entries: the share of the needed memories that a request contains.

Each memory is a fact about one of many farms. Farms share the words of their names and the subjects of their facts, and
half of the questions name the subject by another word, as people do. The needed memory of a question is drawn from all
of them, old and new. No model, no embedder: search is by words. With --quick up to 300 entries and 40 questions.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import log10
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from quire.engine import Engine, EngineConfig
from quire.model.agents import Agent
from quire.settings import Settings
from quire.store import SqlStore
from results import DOCS, PICTURES
from soak_plot import Line, Panel, draw_panels
from support import Report, run_benchmark

COUNTS = (10, 30, 100, 300, 1_000, 3_000, 10_000)
WINDOWS = (8_192, 32_000, 128_000)
QUESTIONS = 200
MAX_MISSED_PERCENT = 5.0
MAX_DROP_PERCENT = 10.0
"""Largest fall of the share from one count to the next: there is no cliff."""
MAX_VAGUE_DROP_PERCENT = 40.0
"""The same where several memories fit a question equally well, and more than the request holds."""
FIRST_WORDS = (
    "Upper Lower Old New Black White Long Stone River Hill Broad Cold Dry East West North South Green Red Little"
)
SECOND_WORDS = (
    "Mill Farm Barn Ford Field Lodge Grange Dairy Orchard Meadow Brook Acre Croft Cross Bridge Wood Marsh Pond"
)
THIRD_WORDS = "Ash Oak Elm Birch Thorn Hazel Willow Alder Maple Beech Rowan Yew"
SUBJECTS = {
    "toll": "fee", "owner": "landlord", "harvest": "crop", "roof": "covering", "well": "water supply",
    "gate": "entrance", "horse": "animal",
}  # fmt: skip
"""What a fact is about, and another word for it."""


class Fact(NamedTuple):
    text: str
    question: str
    vague_question: str
    """Omits a word of the farm's name, so that it also fits other farms."""


class CurvePoint(NamedTuple):
    memories: int
    present: float
    """Percentage of the needed memories that the requests contain."""
    present_for_vague: float
    milliseconds: float


def make_facts(seed: int = 31) -> Iterator[Fact]:
    """Different facts in a random order, each with a question."""
    chance = random.Random(seed)
    names = [(a, b, c) for a in FIRST_WORDS.split() for b in SECOND_WORDS.split() for c in THIRD_WORDS.split()]
    pairs = [(name, subject) for name in names for subject in SUBJECTS]
    chance.shuffle(pairs)
    for (first, second, third), subject in pairs:
        farm = f"{first} {third} {second}"
        wanted = subject if chance.random() < 0.5 else SUBJECTS[subject]
        yield Fact(
            f"The {subject} of {farm} was entered as number {chance.randrange(10**6)} in the book of {third}.",
            f"Please look up the {wanted} that we have for {farm}.",
            f"Please look up the {wanted} that we have for {first} {second}.",
        )


async def measure_present(engine: Engine, facts: Sequence[Fact]) -> tuple[float, float, float]:
    """Percentages of these facts that the requests for their questions contain, and for their vague questions, and the
    median milliseconds of a request. All questions are in one conversation, which began after the facts were stored."""
    conversation = await engine.conversation()
    present, taken = [0, 0], list[float]()
    for fact in facts:
        for kind, question in enumerate((fact.question, fact.vague_question)):
            start = perf_counter()
            request = await conversation.prepare(question)
            taken.append(1_000 * (perf_counter() - start))
            present[kind] += fact.text in str(request.to_chat())
    exact, vague = (100 * count / len(facts) for count in present)
    return exact, vague, median(taken)


async def measure_curves(
    folder: Path, counts: Sequence[int], windows: Sequence[int], *, questions: int
) -> dict[int, list[CurvePoint]]:
    chance, source = random.Random(7), make_facts()
    curves: dict[int, list[CurvePoint]] = {window: [] for window in windows}
    async with SqlStore.open(f"sqlite:///{folder / 'memory.db'}") as store:
        facts: list[Fact] = []
        for count in counts:
            while len(facts) < count:
                facts.append(next(source))
                await store.memories.add("farms", facts[-1].text, source="farms.md")
            for window in windows:
                settings = Settings(model="gpt-4o", context_limit=window)
                engine = Engine(store, EngineConfig.create(settings, agent=Agent(name="farms")))
                needed = [chance.choice(facts) for _ in range(questions)]
                curves[window].append(CurvePoint(count, *await measure_present(engine, needed)))
    return curves


def _draw_lines(curve: Sequence[CurvePoint]) -> list[Line]:
    return [
        Line("whole name in the question", [(log10(each.memories), each.present) for each in curve]),
        Line("part of the name", [(log10(each.memories), each.present_for_vague) for each in curve]),
    ]


async def run(*, quick: bool) -> Report:
    report = Report("memory")
    counts, windows, questions = (COUNTS[:4], WINDOWS[:1], 40) if quick else (COUNTS, WINDOWS, QUESTIONS)
    with TemporaryDirectory() as folder:
        curves = await measure_curves(Path(folder), counts, windows, questions=questions)
    rows = [(window, *row) for window, curve in curves.items() for row in curve]
    report.print_table(
        f"Needed memories in the request, {questions} questions each",
        ("window", "memories", "present (%)", "vague questions", "ms a request"),
        rows,
    )
    for window, curve in curves.items():
        shares = [point.present for point in curve]
        drops = [before - after for before, after in pairwise(shares)]
        vague_drops = [before.present_for_vague - after.present_for_vague for before, after in pairwise(curve)]
        report.require_at_most(f"missed_{window}_percent", 100 - min(shares), MAX_MISSED_PERCENT)
        report.require_at_most(f"largest_drop_{window}_percent", max(drops), MAX_DROP_PERCENT)
        report.require_at_most(f"largest_vague_drop_{window}_percent", max(vague_drops), MAX_VAGUE_DROP_PERCENT)
    if not quick:
        panels = [
            Panel(f"Window of {window:,} tokens", "% of needed memories", _draw_lines(curve))
            for window, curve in curves.items()
        ]
        plot = draw_panels(
            panels,
            title="Memories that a question needs and a request contains",
            last_x=log10(counts[-1]),
            x_label="memories of the agent",
            x_ticks={log10(count): f"{count:,}" for count in counts},
        )
        (DOCS / PICTURES["memory"]).write_text(plot, encoding="utf-8")
    return report


if __name__ == "__main__":
    run_benchmark(run)
