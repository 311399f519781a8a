"""Evidence recall within a token budget: the share of the answering turns that a request includes.

The whole conversation is archived, a question comes, and at most B tokens of messages are recalled, counted as rendered
(cl100k). The recalled messages are read from the manifest of a request that `prepare` made.
The weights were chosen on realtalk and beam500K; the other sets are only reported. Then recall from one conversation of
100,000 messages, and the index of a vault of 10,000 notes. All of it on both databases.
"""

import argparse
import asyncio
from itertools import islice
from pathlib import Path

import recall_scale
from infra.postgres import Cluster
from quire.llm.embeddings import Embedder, load_local_embedder
from quire.store import SqlStore
from recall_data import BUDGETS, DatasetChat, load_chats
from recall_requests import RecallBenchmark
from support import Report

RECALL_GOALS = {
    "locomo": (85, 91, 95, 97),
    "realtalk": (72, 81, 88, 92),
    "beam100K": (66, 74, 81, 89),
    "beam500K": (66, 71, 77, 81),
    "beam1M": (49, 59, 65, 73),
}
"""Share at each budget that a set must reach: the measured one, rounded down."""
QUICK_CONVERSATIONS = 1
"""Conversations of each set in a quick run."""
HEADER = ("set", "questions", "share at 1k / 2k / 4k / 8k", "all of them", "ms a request", "95 %")


async def measure_evidence_recall(report: Report, store: SqlStore, backend: str, folder: Path, *, quick: bool) -> None:
    for embedder in (load_local_embedder(), None) if backend == "sqlite" else (load_local_embedder(),):
        rows: list[tuple[object, ...]] = []
        for name in RECALL_GOALS:
            chats = list(islice(load_chats(name, folder), QUICK_CONVERSATIONS if quick else None))
            rows.append(await _measure_dataset(report, store, backend, name, chats, embedder, quick=quick))
        method = embedder.name if embedder is not None else "words and structure only"
        report.print_table(f"Evidence recall on {backend}, {method}", HEADER, rows)


async def _measure_dataset(
    report: Report,
    store: SqlStore,
    backend: str,
    name: str,
    chats: list[DatasetChat],
    embedder: Embedder | None,
    *,
    quick: bool,
) -> tuple[object, ...]:
    benchmark = RecallBenchmark(store, embedder)
    recall = await benchmark.measure(chats, f"{name}-{embedder is not None}")
    if embedder is not None and not quick:
        for budget, share, bar in zip(BUDGETS, recall.mean_shares, RECALL_GOALS[name], strict=True):
            report.require_at_most(f"{backend}.{name}.missed_{budget}", 100 - share, 100.0 - bar)
    return (
        name,
        sum(len(chat.questions) for chat in chats),
        " / ".join(f"{share:.1f}" for share in recall.mean_shares),
        " / ".join(f"{share:.1f}" for share in recall.complete_shares),
        f"{benchmark.median:.1f}",
        f"{benchmark.p95:.1f}",
    )


async def run(folder: Path | None, *, quick: bool, only: str | None) -> Report:
    report = Report("recall")
    if only != "scale":
        if folder is None:
            raise SystemExit("Evidence recall needs --data PATH (see recall_data.py); `--only scale` needs no data.")
        async with recall_scale.open_sqlite_database() as (url, _), SqlStore.open(url) as store:
            await measure_evidence_recall(report, store, "sqlite", folder, quick=quick)
        with Cluster.start(18) as cluster:
            async with (
                recall_scale.open_postgres_database(cluster, "evidence") as (url, _),
                SqlStore.open(url) as store,
            ):
                await measure_evidence_recall(report, store, "postgres", folder, quick=quick)
    if only != "evidence":
        await recall_scale.measure_scale(report, quick=quick)
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder with the data")
    parser.add_argument("--quick", action="store_true", help="a conversation of each set, and smaller sizes")
    parser.add_argument("--only", choices=("evidence", "scale"))
    options = parser.parse_args()
    asyncio.run(run(options.data, quick=options.quick, only=options.only)).print_goals_and_exit()
