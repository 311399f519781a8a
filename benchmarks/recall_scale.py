"""Recall from one very long conversation, and the index of a large vault, on both databases.

The bare query reads the same rows by their numbers with the driver alone: the lower bound of any recall.
"""

import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy
import psycopg

from infra.postgres import Cluster
from infra.vaults import write_vault
from quire.context.vault import Vault
from quire.db import migrate
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import BULK_BATCH_ENTRIES, index_messages
from quire.llm.embeddings import load_local_embedder
from quire.model import Compaction, Draft, Message, Span, TokenCount
from quire.settings import Settings
from quire.store import SqlStore
from support import Report

BATCH_SIZE = 2_000
FACT_COUNT = 200
QUESTION_COUNT = 60
VOCABULARY_SIZE = 8_000
SCAN_DIMENSIONS = 256
SCAN_GOAL_RATIO = 10.0
"""`prepare` with recall, relative to a bare numpy scan of as many vectors."""
UPDATE_GOAL_RATIO = 0.15
"""Index update after one changed note, relative to building the index."""
RESOLVE_GOAL_RATIO = 40.0
"""Resolving a wikilink, relative to one `stat` of a file."""
BARE_QUERY = (
    "SELECT body FROM quire_entries WHERE tenant = 'default' AND conversation = 'c' AND branch = 0 AND seq IN ({})"
)


def generate_messages(size: int) -> tuple[list[Message], dict[int, str]]:
    """Generates messages of words with a natural frequency, and facts among them that a question can ask for."""
    chance = random.Random(7)
    words = ["".join(chance.choices("aeioubcdfglmnprstv", k=chance.randint(3, 9))) for _ in range(VOCABULARY_SIZE)]
    frequent = [1 / (rank + 2) for rank in range(VOCABULARY_SIZE)]
    messages = [
        (Message.user, Message.assistant)[number % 2](
            " ".join(chance.choices(words, frequent, k=40)).capitalize() + "."
        )
        for number in range(size)
    ]
    facts: dict[int, str] = {}
    for fact in range(FACT_COUNT):
        place = chance.randrange(0, size, 2)
        thing, value = chance.choice(words[2_000:]), f"{chance.randrange(10_000)}-{fact}"
        messages[place] = Message.user(f"Remember that the {thing} of plant {fact} is set to {value}.")
        facts[place + 1] = f"What is the {thing} of plant {fact} set to?"
    return messages, facts


async def append_messages(engine: Engine, messages: list[Message]) -> None:
    store = engine.store
    await store.create_conversation("c")
    for start in range(0, len(messages), BATCH_SIZE):
        some = messages[start : start + BATCH_SIZE]
        counts = [TokenCount(engine.message_counter.count(each), engine.message_counter.name) for each in some]
        await store.append("c", *(Draft(body=each, tokens=count) for each, count in zip(some, counts, strict=True)))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=len(messages)), summary="They spoke."))


def make_vector_scan(size: int) -> Callable[[], object]:
    """Makes the bare numpy scan that recall is compared with: cosine similarity of every message, and the top 100."""
    vectors = numpy.random.default_rng(7).standard_normal((size, SCAN_DIMENSIONS), dtype=numpy.float32)
    return lambda: numpy.argpartition(vectors @ vectors[0], -100)[-100:]


async def measure_recall(report: Report, backend: str, url: str, bare: Callable[[str], object], *, size: int) -> tuple:
    async with SqlStore.open(url) as store:
        settings = Settings(model="gpt-4o", context_limit=32_000, recall_tokens=2_000)
        engine = Engine(store, EngineConfig.create(settings, embedder=load_local_embedder()))
        messages, facts = generate_messages(size)
        await append_messages(engine, messages)
        conversation = await engine.conversation("c")
        start = time.process_time()
        await index_messages(engine, batch_entries=BULK_BATCH_ENTRIES)
        indexing = (time.process_time() - start) * 1_000 / size
        start = time.perf_counter()
        await conversation.prepare("Where were we?")
        cold = (time.perf_counter() - start) * 1_000
        taken, cpu, ratios, scan_ratios, found = [], [], [], [], 0
        scan = make_vector_scan(size)
        questions = list(facts.items())[:QUESTION_COUNT]
        for number, question in questions:
            start, cpu_start = time.perf_counter(), time.process_time()
            request = await conversation.prepare(question)
            ours = (time.perf_counter() - start) * 1_000
            cpu.append((time.process_time() - cpu_start) * 1_000)
            recalled = [row.span.first for row in request.manifest.included if row.slot == "recall" and row.span]
            found += number in recalled
            start = time.perf_counter()
            bare(BARE_QUERY.format(",".join(map(str, recalled))))
            ratios.append(ours / ((time.perf_counter() - start) * 1_000))
            start = time.perf_counter()
            scan()
            scan_ratios.append(ours / ((time.perf_counter() - start) * 1_000))
            taken.append(ours)
        median = statistics.median(taken)
        report.require_at_most(f"prepare_over_scan_{backend}_{size}", statistics.median(scan_ratios), SCAN_GOAL_RATIO)
        segments = await store.message_index.read_segments("c", await store.message_index.list_segments("c"))
        stored = sum(len(blob) for data in segments for blob in data) / size
        memory = sum(cached.nbytes for cached in engine.runtime.indexes.recall_indexes.values()) / size
        hits = f"{found}/{len(questions)}"
        scanned = statistics.median(scan_ratios)
        times = (median, statistics.median(cpu), statistics.median(ratios), scanned, cold, indexing)
        return (backend, size, *times, stored, memory, hits)


def _list_notes(folder: str) -> list[Path]:
    return sorted(Path(folder).rglob("*.md"))


def _rewrite_note(note: Path) -> None:
    note.write_text("# Changed\n\nSomething entirely new about windmills.\n")


async def measure_vault(report: Report, backend: str, url: str, *, notes: int) -> tuple:
    with tempfile.TemporaryDirectory() as folder:
        write_vault(Path(folder), notes=notes)
        async with SqlStore.open(url) as store:
            engine = Engine(store, EngineConfig.create(Settings(), vault=Vault(folder, name="notes")))
            start, steps = time.perf_counter(), 0
            async for _ in engine.index_vault():
                steps += 1
            first = time.perf_counter() - start
            paths = _list_notes(folder)
            _rewrite_note(paths[0])
            again = Engine(store, EngineConfig.create(Settings(), vault=Vault(folder, name="notes")))
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
            start = time.perf_counter()
            for path in paths[1:1_001]:
                path.stat()
            stat_time = (time.perf_counter() - start) * 1_000 / len(names)
            hits = await store.passages.search("windmills", scopes=["vault:notes"], limit=1)
            assert hits[0].key == paths[0].relative_to(folder).as_posix()
    report.require_at_most(f"vault_update_over_build_{backend}", second / first, UPDATE_GOAL_RATIO)
    report.require_at_most(f"vault_resolve_over_stat_{backend}", resolving / stat_time, RESOLVE_GOAL_RATIO)
    return (backend, notes, first, steps, second, resolving)


@asynccontextmanager
async def open_sqlite_database() -> AsyncGenerator[tuple[str, Callable[[str], object]]]:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/quire.db"
        migrate.upgrade(f"sqlite:///{path}")
        connection = sqlite3.connect(path)
        yield f"sqlite:///{path}", lambda statement: connection.execute(statement).fetchall()
        connection.close()


@asynccontextmanager
async def open_postgres_database(cluster: Cluster, name: str) -> AsyncGenerator[tuple[str, Callable[[str], object]]]:
    cluster.create_database(name)
    url = cluster.url(name)
    migrate.upgrade(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT set_config('quire.tenant', 'default', false)")
        yield url, lambda statement: connection.execute(statement).fetchall()


async def measure_scale(report: Report, *, quick: bool) -> None:
    size, notes = (10_000, 1_000) if quick else (100_000, 10_000)
    rows, vault_rows = [], []
    async with open_sqlite_database() as (url, bare):
        rows.append(await measure_recall(report, "sqlite", url, bare, size=size))
        vault_rows.append(await measure_vault(report, "sqlite", url, notes=notes))
    with Cluster.start(18) as cluster:
        async with open_postgres_database(cluster, "recall") as (url, bare):
            rows.append(await measure_recall(report, "postgres", url, bare, size=size))
            vault_rows.append(await measure_vault(report, "postgres", url, notes=notes))
    report.print_table(
        "Recall from one conversation: segments in memory, words and vectors",
        (
            "database",
            "messages",
            "prepare ms",
            "CPU ms",
            "x read",
            "x scan",
            "first ms",
            "index CPU ms/msg",
            "stored B/msg",
            "memory B/msg",
            "found",
        ),
        rows,
    )
    report.print_table(
        "A vault",
        ("database", "notes", "first s", "steps", "again s", "resolve ms"),
        vault_rows,
    )
