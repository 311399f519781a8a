"""One tenant of 10,000,000 messages on PostgreSQL: search, a gateway turn and the list by size, and bytes a message.

A block of conversations is written and indexed by Quire; PostgreSQL copies its rows (`tenant_copies`), so that the
texts repeat. Each size has its own database, and is measured in new processes, whose memory is that of this size.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from itertools import islice

import psycopg

from gateway import ClientGroup
from gateway_clients import send_full_history
from gateway_processes import start_servers
from infra.postgres import Cluster
from quire.db import migrate
from quire.engine.message_index import BULK_BATCH_ENTRIES, index_messages
from quire.engine.search import search_messages
from quire.jobs import queue_schema
from quire.log import ConversationRecord
from quire.store import DEFAULT_TENANT, SqlStore
from search import make_engine, percentile, read_memory_bytes
from search_data import MESSAGES_PER_CONVERSATION, ConversationGenerator, iter_queries
from support import Report
from tenant_copies import COPY_GAP_MICROS, copy_conversations

SEED = "searched"
BLOCK_CONVERSATIONS, QUICK_CONVERSATIONS = 2_048, 64
LOAD_BATCH_SIZE = 64
FULL_COPIES, QUICK_COPIES = (4, 14, 48), (1, 3)
QUERY_COUNT, PAGE_COUNT = 60, 100
TURN_SECONDS = 8.0
INDEX_TABLES = ("terms", "search_scopes", "message_segments", "unindexed_branches")
TABLE_BYTES = "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'quire%'"
MAX_GROWTH = 1.5
"""Goal: CPU time of a turn and of a page of the list with all messages, divided by that with the fewest."""


async def load_block(url: str, conversations: int, *, start: int = 0) -> dict[str, float]:
    """Appends and indexes conversations by their numbers; returns microseconds of this process's CPU time a message."""
    appending = indexing = 0.0
    generator = ConversationGenerator(SEED)
    async with SqlStore.open(url) as store:
        engine = make_engine(store, meaning=True)
        end = start + conversations
        for first in range(start, end, LOAD_BATCH_SIZE):
            generated = [generator.generate(each) for each in range(first, min(end, first + LOAD_BATCH_SIZE))]
            began = time.process_time()
            for each in generated:
                await store.create_conversation(each.id, title=each.title, origin=each.origin)
                await store.append(each.id, *each.drafts)
            appended = time.process_time()
            await index_messages(
                engine, conversations=[each.id for each in generated], batch_entries=BULK_BATCH_ENTRIES
            )
            appending, indexing = appending + appended - began, indexing + time.process_time() - appended
    messages = conversations * MESSAGES_PER_CONVERSATION
    return {"append_us": appending / messages * 1e6, "index_us": indexing / messages * 1e6}


async def time_calls(calls: Sequence[Callable[[], Awaitable[object]]]) -> dict[str, float]:
    """p50 and p95 in milliseconds, and the median of this process's CPU time."""
    taken: list[float] = []
    used: list[float] = []
    for call in calls:
        start, cpu_start = time.perf_counter(), time.process_time()
        await call()
        taken.append((time.perf_counter() - start) * 1_000)
        used.append((time.process_time() - cpu_start) * 1_000)
    return {"p50": percentile(taken, 50), "p95": percentile(taken, 95), "cpu": statistics.median(used)}


async def measure_search(url: str, conversations: int, *, meaning: bool) -> dict[str, float]:
    """The first search of a process with its memory, and later ones."""
    queries = list(islice(iter_queries(ConversationGenerator(SEED), conversations), QUERY_COUNT))
    async with SqlStore.open(url) as store:
        engine = make_engine(store, meaning=meaning)
        before, start, cpu_start = read_memory_bytes(), time.perf_counter(), time.process_time()
        await search_messages(engine, queries[0])
        first = {
            "first_seconds": time.perf_counter() - start,
            "first_cpu_seconds": time.process_time() - cpu_start,
            "memory_bytes": float(read_memory_bytes() - before),
        }

        def search(query: str) -> Callable[[], Awaitable[object]]:
            return lambda: search_messages(engine, query)

        return {**first, **await time_calls([search(each) for each in queries])}


async def measure_list(url: str, newest: int, oldest: int) -> dict[str, float]:
    """Pages of fifty conversations from random places."""
    chance = random.Random(7)
    async with SqlStore.open(url) as store:

        def read_page() -> Callable[[], Awaitable[object]]:
            before = ConversationRecord("~", "", 0, chance.randint(oldest, newest))
            return lambda: store.list_conversations(limit=50, before=before)

        await store.list_conversations(limit=50)
        return await time_calls([read_page() for _ in range(PAGE_COUNT)])


async def measure_turns(url: str) -> dict[str, float]:
    """Turns of one client of the gateway, which sends the whole list."""
    async with SqlStore.open(url) as store:
        _, key = await store.keys.create("bench", ("read", "write", "chat"))
    with ExitStack() as running:
        [upstream] = running.enter_context(start_servers(("upstream",)))
        [gateway] = running.enter_context(
            start_servers(("gateway", f"http://127.0.0.1:{upstream.port}/v1", url, "8192"))
        )
        group = await ClientGroup(gateway, key, send_full_history, clients=1).warm_up(20)
        await group.run_turns(TURN_SECONDS)
        group.close()
        return {"p50": percentile(group.times, 50), "p95": percentile(group.times, 95), "cpu": group.cpu_per_turn}


def measure_bytes(url: str) -> tuple[int, int, int]:
    """Messages, bytes of all tables, and those of the search index, with their indexes."""
    with psycopg.connect(url) as connection:
        [messages] = connection.execute("SELECT count(*) FROM quire_entries").fetchone() or (0,)
        total = index = 0
        for relation, size in connection.execute(TABLE_BYTES):
            total += size
            if relation.removeprefix("quire_").rstrip("0123456789").rstrip("_") in INDEX_TABLES:
                index += size
    return messages, total, index


async def measure(url: str, conversations: int, part: str) -> dict[str, float]:
    match part:
        case "search words":
            return await measure_search(url, conversations, meaning=False)
        case "search words and meaning":
            return await measure_search(url, conversations, meaning=True)
        case "list":
            with psycopg.connect(url) as connection:
                connection.execute("SELECT set_config('quire.tenant', %s, true)", (DEFAULT_TENANT,))
                query = "SELECT max(updated_at), min(updated_at) FROM quire_conversations WHERE tenant = %s"
                newest, oldest = connection.execute(query, (DEFAULT_TENANT,)).fetchone() or (0, 0)
            return await measure_list(url, newest, max(oldest, newest - 60 * COPY_GAP_MICROS))
        case _:
            return await measure_turns(url)


PARTS = ("list", "turn", "search words", "search words and meaning")


def measure_apart(url: str, conversations: int, part: str) -> dict[str, float]:
    """Measures in a new process."""
    command = [sys.executable, __file__, "--measure", part, "--url", url, "--conversations", str(conversations)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def report_size(report: Report, url: str, admin: str, conversations: int) -> dict[str, dict[str, float]]:
    messages, total, index = measure_bytes(admin)
    found = {part: measure_apart(url, conversations, part) for part in PARTS}
    report.print_table(
        f"{messages:,} messages: {total / messages:,.0f} bytes a message, of them the search index "
        f"{index / messages:,.0f}",
        ("what", "p50 ms", "p95 ms", "CPU ms", "first s", "first CPU s", "memory bytes/msg"),
        [
            (
                part,
                *(each[name] for name in ("p50", "p95", "cpu")),
                *(each.get(name, "") for name in ("first_seconds", "first_cpu_seconds")),
                each["memory_bytes"] / messages if "memory_bytes" in each else "",
            )
            for part, each in found.items()
        ],
    )
    return found


def run(report: Report, *, quick: bool) -> None:
    conversations, sizes = (QUICK_CONVERSATIONS, QUICK_COPIES) if quick else (BLOCK_CONVERSATIONS, FULL_COPIES)
    settings = {"shared_buffers": "2GB", "max_wal_size": "6GB", "wal_level": "minimal", "max_wal_senders": "0"}
    with Cluster.start(18, settings=settings) as cluster:
        cluster.create_role("quire_app")
        cluster.create_database("block")
        url = cluster.url("block")
        migrate.upgrade(url)
        migrate.grant_access(url, "quire_app")
        queue_schema.upgrade(url)
        queue_schema.grant(url, "quire_app")
        spent = asyncio.run(load_block(cluster.url("block", user="quire_app"), conversations))
        report.print_table("CPU of appending and indexing", ("append us/msg", "index us/msg"), [tuple(spent.values())])
        found: list[dict[str, dict[str, float]]] = []
        for copies in sizes:
            name = f"copies_{copies}"
            cluster.create_database(name, template="block")
            copy_conversations(cluster.url(name), DEFAULT_TENANT, copies=copies)
            found.append(report_size(report, cluster.url(name, user="quire_app"), cluster.url(name), conversations))
            cluster.drop_database(name)
    for part in ("list", "turn"):
        report.require_at_most(f"{part}_cpu_growth", found[-1][part]["cpu"] / found[0][part]["cpu"], MAX_GROWTH)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="26,000 messages, about a minute")
    parser.add_argument("--measure", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--conversations", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(asyncio.run(measure(options.url, options.conversations, options.measure))))
    else:
        made = Report("large_tenant")
        run(made, quick=options.quick)
        made.print_goals_and_exit()
