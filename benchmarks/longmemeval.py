"""LongMemEval-S: search over the sessions of a haystack, and recall from all of them, next to a floor and a control.

Search: each session is a conversation, the question is the query, and sessions rank by their best message. The floor is
SQLite's FTS5 in the same run. Recall: the sessions by date are one archived conversation, and the recalled turns are
read from the manifest of a request that `prepare` made; the control is the question of another haystack. The weights of
search were fitted on every second question ("tuning half", `fit_ranker.py`), and the other half is reported alone;
other choices, such as the weight of words about the request, were made with both halves in view. No model is called.
"""

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from longmemeval_data import HaystackQuestion, Turn, format_mean, load_questions, rank_by_fts, score_ranking
from quire.db import migrate
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import BULK_BATCH_ENTRIES, index_messages
from quire.engine.search import search_messages
from quire.llm.embeddings import Embedder, load_local_embedder
from quire.model import Compaction, Draft, Message, Span, TokenCount
from quire.settings import Settings
from quire.settings.schema import ModelEntry
from quire.store import SqlStore
from support import Report

METRICS = ("any@1", "any@5", "any@10", "all@5", "all@10")
SEARCH_GOALS = {"any@1": 93.5, "all@5": 93.0, "all@10": 97.5}
RECALL_GOALS = {1_000: 95.0}
BUDGETS = (1_000, 2_000)
CONTROL_BUDGETS = (1_000, 2_000)
ALL_HITS = 1_000
QUICK_COUNT = 24
WARM_UP = "the weather of a place and its name"


def make_drafts(engine: Engine, turns: Iterable[Turn], at: int) -> list[Draft]:
    drafts: list[Draft] = []
    for place, turn in enumerate(turns):
        message = (Message.user if turn.role == "user" else Message.assistant)(turn.text)
        tokens = TokenCount(engine.message_counter.count(message), engine.message_counter.name)
        drafts.append(Draft(body=message, tokens=tokens, created_at=at + place * 1_000_000))
    return drafts


class Measurements:
    """Values by name, each with the question that it belongs to."""

    def __init__(self) -> None:
        self.values: defaultdict[str, list[tuple[HaystackQuestion, Mapping[str, float]]]] = defaultdict(list)
        self.index_cpu = self.message_count = 0.0
        self.query_cpu: list[float] = []

    async def measure_search(self, question: HaystackQuestion, url: str, embedder: Embedder) -> None:
        async with SqlStore.open(url) as store:
            settings = Settings(model="gpt-4o")
            engines = {
                "words": Engine(store, EngineConfig.create(settings)),
                "words and meaning": Engine(store, EngineConfig.create(settings, embedder=embedder)),
            }
            for session in sorted(question.sessions, key=lambda each: each.name):
                await store.create_conversation(session.name, title=f"Conversation {session.name}")
                await store.append(session.name, *make_drafts(engines["words"], session.turns, session.at))
            started = time.process_time()
            count = await index_messages(engines["words and meaning"], batch_entries=BULK_BATCH_ENTRIES)
            self.index_cpu += time.process_time() - started
            self.message_count += count
            for name, engine in engines.items():
                asked = engine.with_changes(clock=lambda: question.at)
                await search_messages(asked, WARM_UP)
                started = time.process_time()
                await search_messages(asked, question.text)
                if name == "words and meaning":
                    self.query_cpu.append((time.process_time() - started) * 1_000)
                found = await search_messages(asked, question.text, limit=ALL_HITS)
                ranked = list(dict.fromkeys(hit.conversation.id for hit in found.messages))
                self.values[name].append((question, score_ranking(ranked, question.gold)))
        self.values["FTS5, a document a session"].append(
            (question, score_ranking(rank_by_fts(question), question.gold))
        )

    async def measure_recall(
        self, question: HaystackQuestion, control: HaystackQuestion, url: str, embedder: Embedder
    ) -> None:
        models = {"gpt-4": ModelEntry(window=64_000)}  # the counter of gpt-4, with space for every budget
        async with SqlStore.open(url) as store:
            engines = {
                budget: Engine(
                    store,
                    EngineConfig.create(
                        Settings(model="gpt-4", models=models, strategy="hybrid", recall_tokens=budget),
                        embedder=embedder,
                    ),
                )
                for budget in BUDGETS
            }
            drafts: list[Draft] = []
            evidence: set[int] = set()
            for session in question.sessions:
                evidence |= {
                    len(drafts) + place
                    for place, turn in enumerate(session.turns, start=1)
                    if turn.is_evidence and session.is_gold
                }
                drafts += make_drafts(engines[BUDGETS[0]], session.turns, session.at)
            if not evidence:
                return
            await store.create_conversation("archive")
            await store.append("archive", *drafts, Compaction(number=1, covers=Span(first=1, last=len(drafts))))
            await index_messages(engines[BUDGETS[0]], batch_entries=BULK_BATCH_ENTRIES)
            for name, asked in (("recall", question), ("recall, another haystack's question", control)):
                shares: dict[str, float] = {}
                for budget, engine in engines.items():
                    at = question.at
                    conversation = await engine.with_changes(clock=lambda at=at: at).conversation("archive")
                    manifest = (await conversation.prepare(asked.text)).manifest
                    rows = [each for each in manifest.included if each.slot == "recall" and each.span is not None]
                    present = {each.span.first for each in rows if each.span is not None}
                    shares[str(budget)] = len(present & evidence) / len(evidence)
                self.values[name].append((question, shares))


def print_search(report: Report, measured: Measurements) -> None:
    def make_row(name: str, values: Sequence[tuple[HaystackQuestion, Mapping[str, float]]]) -> tuple[object, ...]:
        return (name, len(values), *(format_mean([each[metric] for _, each in values]) for metric in METRICS))

    names = ("FTS5, a document a session", "words", "words and meaning")
    rows = [make_row(name, measured.values[name]) for name in names]
    own = measured.values["words and meaning"]
    for title, is_tuning in (("  tuning half", True), ("  other half", False)):
        rows.append(make_row(title, [each for each in own if each[0].is_tuning == is_tuning]))
    kinds = sorted({question.kind for question, _ in own})
    rows += [make_row(f"  {kind}", [each for each in own if each[0].kind == kind]) for kind in kinds]
    report.print_table("LongMemEval-S, search, sessions by their best message", ("ranking", "n", *METRICS), rows)
    print(
        f"index: {measured.index_cpu / measured.message_count * 1e6:.0f} us of CPU a message; "
        f"query with 20 hits: {statistics.median(measured.query_cpu):.1f} ms of CPU (median)"
    )
    for metric, goal in SEARCH_GOALS.items():
        share = 100 * statistics.mean(each[metric] for _, each in own)
        report.require_at_most(f"search.{metric}.missed", 100 - share, 100 - goal)


def print_recall(report: Report, measured: Measurements) -> None:
    rows: list[tuple[object, ...]] = []
    own = measured.values["recall"]
    groups = [("recall", own), *(("  " + title, [each for each in own if each[0].is_tuning == is_tuning])
              for title, is_tuning in (("tuning half", True), ("other half", False)))]  # fmt: skip
    groups += [
        (f"  {kind}", [each for each in own if each[0].kind == kind]) for kind in sorted({q.kind for q, _ in own})
    ]
    control = "recall, another haystack's question"
    groups.append((control, measured.values[control]))
    for name, values in groups:
        rows.append(
            (name, len(values), *(format_mean([each[str(budget)] for _, each in values]) for budget in BUDGETS))
        )
    report.print_table("LongMemEval-S, evidence turns in a request, by tokens", ("", "n", *map(str, BUDGETS)), rows)
    for budget, goal in RECALL_GOALS.items():
        share = 100 * statistics.mean(each[str(budget)] for _, each in own)
        report.require_at_most(f"recall.{budget}.missed", 100 - share, 100 - goal)


async def run(folder: Path, *, count: int | None, only: str | None) -> Report:
    report, measured = Report("longmemeval"), Measurements()
    questions, embedder = load_questions(folder, count=count), load_local_embedder()
    with tempfile.TemporaryDirectory() as working:
        template, path = Path(working) / "template.db", Path(working) / "quire.db"
        migrate.upgrade(f"sqlite:///{template}")

        def create_database() -> str:
            for old in Path(working).glob("quire.db*"):
                old.unlink()
            shutil.copy(template, path)
            return f"sqlite:///{path}"

        for place, question in enumerate(questions):
            if only != "recall":
                await measured.measure_search(question, create_database(), embedder)
            if only != "search":
                control = questions[(place + len(questions) // 2) % len(questions)]
                await measured.measure_recall(question, control, create_database(), embedder)
    if only != "recall":
        print_search(report, measured)
    if only != "search":
        print_recall(report, measured)
    if count is not None:
        # The goals are those of all questions.
        report.goals.clear()
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the data (see longmemeval_data.py)")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_COUNT} questions, as many of each type as its share"
    )
    parser.add_argument("--count", type=int, help="so many questions, as many of each type as its share")
    parser.add_argument("--only", choices=("search", "recall"))
    options = parser.parse_args()
    count = QUICK_COUNT if options.quick else options.count
    asyncio.run(run(options.data, count=count, only=options.only)).print_goals_and_exit()
