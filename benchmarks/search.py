"""Search across all conversations of one tenant among others, on both databases: words, meaning, filters.

The full size is 10,000 conversations with 1,000,000 messages. The bare query is the database's own full-text index over
the same texts, in the same run; its ratio is per query. Then the time from an append until a search finds the message
while others append and search, the first search of a new process, memory, disk, and a purge.
"""

import argparse
import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from quire.engine import Engine, EngineConfig
from quire.engine.message_index import BULK_BATCH_ENTRIES, index_messages
from quire.engine.search import MessageFilter, MessageSearchResult, search_messages
from quire.llm.embeddings import load_local_embedder
from quire.model import Message
from quire.settings import Settings
from quire.store import SqlStore
from search_data import (
    CONVERSATION_GAP_MICROS,
    FACT_INTERVAL,
    FIRST_AT,
    MESSAGES_PER_CONVERSATION,
    PEOPLE,
    PROJECTS,
    ConversationGenerator,
    conversation_id,
    find_fact,
    iter_queries,
)
from search_targets import Target, open_postgres, open_sqlite
from support import Report

TENANT = "searched"
OTHER_TENANTS = tuple(f"other-{number}" for number in range(8))
OTHER_SHARE = 100
"""Each other tenant has a hundredth of the conversations."""
LOAD_BATCH_SIZE = 64
FULL_MESSAGES = 1_000_000
QUICK_MESSAGES = 20_000
QUERY_COUNT = 200
QUICK_QUERY_COUNT = 60
FRESHNESS_ROUNDS = 15
APPENDS_PER_SECOND = 20
POLL_SECONDS = 0.02
MAX_WAIT_SECONDS = 60
P95_GOAL_MS = 100.0
FRESHNESS_GOAL_SECONDS = 2.0
FACT_COUNT = 40


def percentile(times: Sequence[float], part: int) -> float:
    return statistics.quantiles(times, n=100)[part - 1]


def read_memory_bytes() -> int:
    """Resident memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096


def make_engine(store: SqlStore, *, meaning: bool) -> Engine:
    settings = Settings(model="gpt-4o")
    return Engine(store, EngineConfig.create(settings, embedder=load_local_embedder() if meaning else None))


class LoadTimes(NamedTuple):
    """Seconds for the searched tenant."""

    appending: float
    indexing: float


async def load_conversations(target: Target, store: SqlStore, conversations: int) -> LoadTimes:
    """Appends and indexes the conversations of all tenants."""
    appending = indexing = 0.0
    for tenant in (*OTHER_TENANTS, TENANT):
        own = store.for_tenant(tenant)
        engine, generator = make_engine(own, meaning=True), ConversationGenerator(tenant)
        count = conversations if tenant == TENANT else max(1, conversations // OTHER_SHARE)
        for first in range(0, count, LOAD_BATCH_SIZE):
            generated = [generator.generate(each) for each in range(first, min(count, first + LOAD_BATCH_SIZE))]
            start = time.perf_counter()
            for each in generated:
                await own.create_conversation(each.id, title=each.title, origin=each.origin)
                await own.append(each.id, *each.drafts)
            appended = time.perf_counter()
            await index_messages(
                engine, conversations=[each.id for each in generated], batch_entries=BULK_BATCH_ENTRIES
            )
            if tenant == TENANT:
                appending, indexing = appending + appended - start, indexing + time.perf_counter() - appended
            target.bare.load(text for each in generated for text in each.texts)
            print_progress(tenant, first, count)
    target.bare.finish()
    return LoadTimes(appending, indexing)


def print_progress(tenant: str, done: int, total: int) -> None:
    if done % (10 * LOAD_BATCH_SIZE) == 0:
        print(f"  {time.strftime('%H:%M:%S')} {tenant}: {done:,} of {total:,} conversations", file=sys.stderr)


def make_filters(conversations: int) -> list[tuple[str, MessageFilter]]:
    middle = FIRST_AT + conversations // 2 * CONVERSATION_GAP_MICROS
    return [
        ("project", MessageFilter(project=PROJECTS[1])),
        ("role and time", MessageFilter(role="assistant", since=middle)),
        ("source and person", MessageFilter(source="claude-code", person=PEOPLE[0])),
        ("one conversation", MessageFilter(conversations=(conversation_id(conversations // 3),))),
    ]


class SearchMeasurement:
    """Times searches of one database, alternating with the same query of the bare index."""

    def __init__(self, report: Report, target: Target, queries: Sequence[str]) -> None:
        self._report, self._target, self._queries = report, target, queries
        self._bare_times: list[float] = []
        self._rows: list[tuple[object, ...]] = []

    async def measure(self, name: str, engine: Engine, where: MessageFilter | None = None, **options: Any) -> None:
        await search_messages(engine, self._queries[0])
        taken: list[float] = []
        used: list[float] = []
        ratios: list[float] = []
        for query in self._queries:
            start, cpu_start = time.perf_counter(), time.process_time()
            await search_messages(engine, query, where=where or MessageFilter(), **options)
            taken.append((time.perf_counter() - start) * 1_000)
            used.append((time.process_time() - cpu_start) * 1_000)
            self._bare_times.append(_time_call(self._target.bare.search, query))
            ratios.append(taken[-1] / self._bare_times[-1])
        p95 = percentile(taken, 95)
        self._rows.append((name, percentile(taken, 50), p95, max(taken), statistics.median(used), ratios))
        self._report.require_at_most(f"{self._target.name}.{name.replace(' ', '_')}_p95_ms", p95, P95_GOAL_MS)

    def print_table(self, title: str) -> None:
        bare_p95 = percentile(self._bare_times, 95)
        rows = [
            (name, p50, p95, most, cpu, statistics.median(ratios), p95 / bare_p95)
            for name, p50, p95, most, cpu, ratios in self._rows
        ]
        unranked = [_time_call(self._target.bare.search_unranked, query) for query in self._queries]
        for name, times in (("bare, ranked", self._bare_times), ("bare, unranked", unranked)):
            rows.append((name, percentile(times, 50), percentile(times, 95), max(times), "", "", ""))
        header = ("search", "p50 ms", "p95 ms", "max ms", "CPU ms", "x bare, median", "x bare, p95")
        self._report.print_table(title, header, rows)


def _time_call(search: Callable[[str], object], query: str) -> float:
    start = time.perf_counter()
    search(query)
    return (time.perf_counter() - start) * 1_000


async def count_missed_facts(engine: Engine, conversations: int) -> int:
    facts = [fact for number in range(0, conversations, FACT_INTERVAL) if (fact := find_fact(number)) is not None]
    missed = 0
    for fact in facts[:FACT_COUNT]:
        result = await search_messages(engine, fact.question, limit=3)
        missed += (fact.conversation, fact.seq) not in [
            (each.entry.conversation, each.entry.seq) for each in result.messages
        ]
    return missed


async def measure_freshness(engine: Engine, conversations: int, queries: Sequence[str]) -> list[float]:
    """Seconds from an append until a search finds the message, while others append and search."""
    generator = ConversationGenerator("load")
    stopped = asyncio.Event()

    async def append_steadily() -> None:
        for number in cycle(range(conversations)):
            if stopped.is_set():
                return
            [draft, *_] = generator.generate(number).drafts
            await append_and_enqueue(engine, conversation_id(number), draft.body)
            await asyncio.sleep(1 / APPENDS_PER_SECOND)

    async def search_steadily() -> None:
        for query in cycle(queries):
            if stopped.is_set():
                return
            await search_messages(engine, query)
            await asyncio.sleep(0.05)

    load = [asyncio.create_task(append_steadily()), asyncio.create_task(search_steadily())]
    taken: list[float] = []
    for number in range(FRESHNESS_ROUNDS):
        word = f"canary{number}x{int(time.time())}"
        start = time.perf_counter()
        await append_and_enqueue(
            engine, conversation_id(number * 7 % conversations), Message.user(f"The {word} sings.")
        )
        await wait_until_found(engine, word)
        taken.append(time.perf_counter() - start)
    stopped.set()
    await asyncio.gather(*load)
    return taken


async def wait_until_found(engine: Engine, word: str) -> None:
    async with asyncio.timeout(MAX_WAIT_SECONDS):
        while not await is_found(engine, word):  # noqa: ASYNC110 (polls, as a client would)
            await asyncio.sleep(POLL_SECONDS)


async def is_found(engine: Engine, word: str) -> bool:
    result: MessageSearchResult = await search_messages(engine, word, limit=1)
    return any(word in each.excerpt for each in result.messages)


async def append_and_enqueue(engine: Engine, conversation: str, message: Message) -> None:
    await (await engine.conversation(conversation)).append(message)


async def measure_purge(engine: Engine) -> tuple[float, bool]:
    """Milliseconds of purging one message, and whether a search still finds it."""
    conversation, word = conversation_id(1), f"purged{int(time.time())}"
    await append_and_enqueue(engine, conversation, Message.user(f"The secret is {word}."))
    await wait_until_found(engine, word)
    [hit, *_] = (await search_messages(engine, word, limit=1)).messages
    start = time.perf_counter()
    await engine.store.purge(conversation, [hit.entry.seq])
    return (time.perf_counter() - start) * 1_000, await is_found(engine, word)


async def measure_target(report: Report, target: Target, *, conversations: int, query_count: int) -> None:
    async with SqlStore.open(target.url) as store:
        taken = await load_conversations(target, store, conversations)
        await measure_searches(report, target, store, conversations=conversations, query_count=query_count)
        await measure_changes(report, target, store, conversations=conversations, loading=taken)


async def measure_searches(
    report: Report, target: Target, store: SqlStore, *, conversations: int, query_count: int
) -> None:
    own, messages = store.for_tenant(TENANT), conversations * MESSAGES_PER_CONVERSATION
    queries = list(islice(iter_queries(ConversationGenerator(TENANT), conversations), query_count))
    before, engine = read_memory_bytes(), make_engine(own, meaning=True)
    start = time.perf_counter()
    await search_messages(engine, queries[0])
    cold = time.perf_counter() - start
    memory = (read_memory_bytes() - before) / messages
    measurement = SearchMeasurement(report, target, queries)
    await measurement.measure("words", make_engine(own, meaning=False))
    await measurement.measure("words and meaning", engine)
    for name, where in make_filters(conversations):
        await measurement.measure(name, engine, where)
    await measurement.measure("newest first", engine, order="newest", min_score=0.1)
    measurement.print_table(f"{target.name}: {messages:,} messages in {conversations:,} conversations")
    missed = await count_missed_facts(engine, conversations)
    report.print_table(
        f"{target.name}: the first search, and the catalog in memory",
        ("first search s", "memory bytes/msg", "facts missed"),
        [(cold, memory, missed)],
    )
    report.require_at_most(f"{target.name}.facts_missed", float(missed), 0.0)


async def measure_changes(
    report: Report, target: Target, store: SqlStore, *, conversations: int, loading: LoadTimes
) -> None:
    own, messages = store.for_tenant(TENANT), conversations * MESSAGES_PER_CONVERSATION
    engine = make_engine(own, meaning=True)
    queries = list(islice(iter_queries(ConversationGenerator(TENANT), conversations), QUICK_QUERY_COUNT))
    await search_messages(engine, queries[0])
    fresh = await measure_freshness(engine, conversations, queries)
    purging, still_found = await measure_purge(engine)
    await engine.runtime.jobs.wait()
    microseconds = [seconds / messages * 1_000_000 for seconds in loading]
    report.print_table(
        f"{target.name}: appends, index and purge",
        ("append us/msg", "index us/msg", "index bytes/msg", "bare bytes/msg",
         "found s, p50", "found s, max", "purge ms"),
        [(*microseconds, target.measure_index_bytes() / messages, target.bare.measure_bytes() / messages,
          statistics.median(fresh), max(fresh), purging)],
    )  # fmt: skip
    report.require_at_most(f"{target.name}.found_seconds", max(fresh), FRESHNESS_GOAL_SECONDS)
    report.require_at_most(f"{target.name}.found_after_purge", float(still_found), 0.0)


async def run(databases: Sequence[str], *, messages: int) -> Report:
    report = Report("search")
    conversations = max(FACT_INTERVAL, messages // MESSAGES_PER_CONVERSATION)
    query_count = QUERY_COUNT if messages > QUICK_MESSAGES else QUICK_QUERY_COUNT
    for name, opened in (("sqlite", open_sqlite), ("postgres", open_postgres)):
        if name in databases:
            async with opened() as target:
                await measure_target(report, target, conversations=conversations, query_count=query_count)
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MESSAGES:,} messages, about a minute")
    parser.add_argument("--messages", type=int, default=FULL_MESSAGES, help="messages of the searched tenant")
    parser.add_argument("--database", choices=("sqlite", "postgres"), action="append", help="default: both")
    options = parser.parse_args()
    size = QUICK_MESSAGES if options.quick else options.messages
    asyncio.run(run(options.database or ("sqlite", "postgres"), messages=size)).print_goals_and_exit()
