"""Evidence recall within a token budget: of the turns that answer a question, the share that is put before the model.

A conversation is wholly archived, a question comes, and at most B tokens of recalled messages are shown, counted as
they are written out (cl100k). What is shown is read from the manifest of a request that `prepare` made.
The weights were chosen on realtalk and beam500K; the other sets are only reported. Then recall from one conversation of
100,000 messages, and the index of a vault of 10,000 notes. All of it on both databases.
"""

import argparse
import asyncio
from itertools import islice
from pathlib import Path

import recall_scale
from quire.llm.embeddings import Embedder, local_embedder
from quire.log import SqlStore
from quire.testing.postgres import Cluster
from recall_data import BUDGETS, Chat, chats
from recall_prepared import Prepared
from support import Report

FIRST_BAR = {
    "locomo": (85, 90, 94, 97),
    "realtalk": (70, 78, 85, 92),
    "beam100K": (64, 70, 77, 84),
    "beam500K": (59, 66, 72, 77),
}
SETS = (*FIRST_BAR, "beam1M")
MILLISECONDS = 10.0
QUICK = 1
"""Conversations of each set in a quick run."""
HEADER = ("set", "questions", "share at 1k / 2k / 4k / 8k", "all of them", "ms a request", "95 %")


async def evidence(report: Report, store: SqlStore, backend: str, folder: Path, *, quick: bool) -> None:
    for embedder in (local_embedder(), None) if backend == "sqlite" else (local_embedder(),):
        rows: list[tuple[object, ...]] = []
        for name in SETS:
            given = list(islice(chats(name, folder), QUICK if quick else None))
            rows.append(await _row(report, store, backend, name, given, embedder, quick=quick))
        how = embedder.name if embedder is not None else "words and structure alone"
        report.table(f"Evidence recall on {backend}, {how}", HEADER, rows)


async def _row(
    report: Report,
    store: SqlStore,
    backend: str,
    name: str,
    given: list[Chat],
    embedder: Embedder | None,
    *,
    quick: bool,
) -> tuple[object, ...]:
    way = Prepared(store, embedder)
    recall = await way.measure(given, f"{name}-{embedder is not None}")
    if embedder is not None and not quick:
        for budget, share, bar in zip(BUDGETS, recall.share, FIRST_BAR.get(name, ()), strict=False):
            report.at_most(f"{backend}.{name}.missed_{budget}", 100 - share, 100.0 - bar)
        report.at_most(f"{backend}.{name}.milliseconds", way.median, MILLISECONDS)
    return (
        name,
        sum(len(chat.asked) for chat in given),
        " / ".join(f"{share:.1f}" for share in recall.share),
        " / ".join(f"{share:.1f}" for share in recall.complete),
        f"{way.median:.1f}",
        f"{way.slow:.1f}",
    )


async def run(folder: Path | None, *, quick: bool, only: str | None) -> Report:
    report = Report("recall")
    if folder is None:
        print("Without --data PATH there is no evidence to recall: see recall_data.py for where it comes from.")
    elif only != "scale":
        async with recall_scale.sqlite_database() as (url, _), SqlStore.open(url) as store:
            await evidence(report, store, "sqlite", folder, quick=quick)
        with Cluster.start(18) as cluster:
            async with recall_scale.postgres_database(cluster, "evidence") as (url, _), SqlStore.open(url) as store:
                await evidence(report, store, "postgres", folder, quick=quick)
    if only != "evidence":
        await recall_scale.measure(report, quick=quick)
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder with the data")
    parser.add_argument("--quick", action="store_true", help="a conversation of each set, and smaller sizes")
    parser.add_argument("--only", choices=("evidence", "scale"))
    asked = parser.parse_args()
    asyncio.run(run(asked.data, quick=asked.quick, only=asked.only)).finish()
