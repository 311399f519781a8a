"""Recall from one very long conversation, and the index of a large vault, on both databases.

The bare query reads the same rows by their numbers, with the driver alone: what no recall can do without.
"""

import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg

from quire.context.vault import Vault
from quire.engine import Engine
from quire.llm.embeddings import local_embedder
from quire.log import SqlStore, migrate
from quire.model import Compaction, Draft, Message, Span, TokenCount
from quire.settings import Settings
from quire.testing.postgres import Cluster
from quire.testing.vaults import write_vault
from support import Report

BATCH = 2_000
FACTS = 200
QUESTIONS = 60
WORDS = 8_000
BARE = "SELECT body FROM quire_entries WHERE tenant = 'default' AND conversation = 'c' AND branch = 0 AND seq IN ({})"


def talk(size: int) -> tuple[list[Message], dict[int, str]]:
    """So many messages of words as frequent as words are, and among them facts that a question can ask for."""
    chance = random.Random(7)
    words = ["".join(chance.choices("aeioubcdfglmnprstv", k=chance.randint(3, 9))) for _ in range(WORDS)]
    frequent = [1 / (rank + 2) for rank in range(WORDS)]
    messages = [
        (Message.user, Message.assistant)[number % 2](
            " ".join(chance.choices(words, frequent, k=40)).capitalize() + "."
        )
        for number in range(size)
    ]
    facts: dict[int, str] = {}
    for fact in range(FACTS):
        place = chance.randrange(0, size, 2)
        thing, value = chance.choice(words[2_000:]), f"{chance.randrange(10_000)}-{fact}"
        messages[place] = Message.user(f"Remember that the {thing} of plant {fact} is set to {value}.")
        facts[place + 1] = f"What is the {thing} of plant {fact} set to?"
    return messages, facts


async def fill(engine: Engine, messages: list[Message]) -> None:
    store = engine.store
    await store.create_conversation("c")
    for start in range(0, len(messages), BATCH):
        some = messages[start : start + BATCH]
        counts = [TokenCount(engine.meter.count(each), engine.meter.name) for each in some]
        await store.append("c", *(Draft(body=each, tokens=count) for each, count in zip(some, counts, strict=True)))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=len(messages)), summary="They spoke."))


async def archived(report: Report, backend: str, url: str, bare: Callable[[str], object], *, size: int) -> tuple:
    async with SqlStore.open(url) as store:
        settings = Settings(model="gpt-4o", context_limit=32_000, recall_tokens=2_000)
        engine = Engine(store, settings=settings, embedder=local_embedder())
        messages, facts = talk(size)
        await fill(engine, messages)
        conversation = await engine.conversation("c")
        start = time.perf_counter()
        await engine.recaller.archives.fill(await store.branch("c"))
        indexing = (time.perf_counter() - start) * 1_000 / size
        start = time.perf_counter()
        await conversation.prepare("Where were we?")
        cold = (time.perf_counter() - start) * 1_000
        taken, ratios, found = [], [], 0
        asked = list(facts.items())[:QUESTIONS]
        for number, question in asked:
            start = time.perf_counter()
            request = await conversation.prepare(question)
            ours = (time.perf_counter() - start) * 1_000
            shown = [row.span.first for row in request.manifest.included if row.slot == "recall" and row.span]
            found += number in shown
            start = time.perf_counter()
            bare(BARE.format(",".join(map(str, shown))))
            ratios.append(ours / ((time.perf_counter() - start) * 1_000))
            taken.append(ours)
        median = statistics.median(taken)
        report.at_most(f"prepare_{backend}_{size}_ms", median, 50)
        shelves = await store.read_shelves("c", await store.shelves("c"))
        kept = sum(map(len, shelves)) / size
        return (backend, size, median, statistics.median(ratios), cold, indexing, kept, f"{found}/{len(asked)}")


def _notes(folder: str) -> list[Path]:
    return sorted(Path(folder).rglob("*.md"))


def _change(note: Path) -> None:
    note.write_text("# Changed\n\nSomething entirely new about windmills.\n")


async def vaults(report: Report, backend: str, url: str, *, notes: int) -> tuple:
    with tempfile.TemporaryDirectory() as folder:
        write_vault(Path(folder), notes=notes)
        async with SqlStore.open(url) as store:
            engine = Engine(store, settings=Settings(), vault=Vault(folder, name="notes"))
            start, steps = time.perf_counter(), 0
            async for _ in engine.index_vault():
                steps += 1
            first = time.perf_counter() - start
            paths = _notes(folder)
            _change(paths[0])
            again = Engine(store, settings=Settings(), vault=Vault(folder, name="notes"))
            start = time.perf_counter()
            async for _ in again.index_vault():
                pass
            second = time.perf_counter() - start
            vault = again.vault
            assert vault is not None
            names = [f"[[{path.stem}]]" for path in paths[1:1_001]]
            start = time.perf_counter()
            for name in names:
                vault.resolve(name)
            resolving = (time.perf_counter() - start) * 1_000 / len(names)
            hits = await store.search("windmills", scopes=["vault:notes"], limit=1)
            assert hits[0].key == paths[0].relative_to(folder).as_posix()
    report.at_most(f"vault_again_{backend}_s", second, 1.0)
    report.at_most(f"vault_resolve_{backend}_ms", resolving, 1.0)
    return (backend, notes, first, steps, second, resolving)


@asynccontextmanager
async def sqlite_database() -> AsyncGenerator[tuple[str, Callable[[str], object]]]:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/quire.db"
        migrate.upgrade(f"sqlite:///{path}")
        connection = sqlite3.connect(path)
        yield f"sqlite:///{path}", lambda statement: connection.execute(statement).fetchall()
        connection.close()


@asynccontextmanager
async def postgres_database(cluster: Cluster, name: str) -> AsyncGenerator[tuple[str, Callable[[str], object]]]:
    cluster.create_database(name)
    url = cluster.url(name)
    migrate.upgrade(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT set_config('quire.tenant', 'default', false)")
        yield url, lambda statement: connection.execute(statement).fetchall()


async def measure(report: Report, *, quick: bool) -> None:
    size, notes = (10_000, 1_000) if quick else (100_000, 10_000)
    rows, vault_rows = [], []
    async with sqlite_database() as (url, bare):
        rows.append(await archived(report, "sqlite", url, bare, size=size))
        vault_rows.append(await vaults(report, "sqlite", url, notes=notes))
    with Cluster.start(18) as cluster:
        async with postgres_database(cluster, "recall") as (url, bare):
            rows.append(await archived(report, "postgres", url, bare, size=size))
            vault_rows.append(await vaults(report, "postgres", url, notes=notes))
    report.table(
        "Recall from one conversation: shelves in memory, words and vectors",
        ("database", "messages", "prepare ms", "x bare", "first ms", "index ms/msg", "bytes/msg", "found"),
        rows,
    )
    report.table(
        "A vault",
        ("database", "notes", "first s", "steps", "again s", "resolve ms"),
        vault_rows,
    )
