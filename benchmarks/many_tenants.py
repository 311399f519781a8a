"""10,000 tenants on PostgreSQL: what a sweep, an index, a search and the list of tenants cost, next to 100 tenants.

One tenant with a few conversations is written and indexed by Quire, and PostgreSQL copies its rows under other names
(`tenant_copies`). Costs are CPU time of the measuring process, which is that of a worker or a server, and wall time,
which has PostgreSQL's in it.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Sequence

from infra.postgres import Cluster
from large_tenant import make_engine, measure_bytes, read_memory_bytes
from quire.db import migrate
from quire.engine.message_index import index_messages
from quire.engine.search import search_messages
from quire.engine.tenants import TenantEngines
from quire.jobs import Sweeper, queue_schema
from quire.jobs.base import Job
from quire.jobs.sweeper import SWEEP_INTERVALS
from quire.llm.embeddings import load_local_embedder
from quire.model import Message
from quire.settings import Settings
from quire.store import SqlStore
from search_data import ConversationGenerator
from support import Report
from tenant_copies import copy_tenants

TENANT = "org"
CONVERSATIONS, MESSAGES = 2, 50
FULL_SIZES, QUICK_SIZES = (100, 10_000), (20, 200)
SAMPLE = 200
"""Tenants in which something new happens, is swept, indexed and searched."""
MAX_GROWTH = 1.5
"""Goal: CPU time of an operation with all tenants, divided by that with the fewest."""


async def load_tenant(url: str) -> None:
    generator = ConversationGenerator(TENANT)
    async with SqlStore.open(url, tenant=TENANT) as store:
        for number in range(CONVERSATIONS):
            made = generator.generate(number)
            await store.create_conversation(made.id, title=made.title, origin=made.origin)
            await store.append(made.id, *made.drafts[:MESSAGES])
        await index_messages(make_engine(store, meaning=True))


class Costs:
    """CPU and wall time of operations, in milliseconds for each."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[float, float]] = {}

    async def measure(self, name: str, work: Awaitable[object], *, count: int) -> None:
        start, cpu_start = time.perf_counter(), time.process_time()
        await work
        cpu, wall = time.process_time() - cpu_start, time.perf_counter() - start
        self.rows[name] = cpu / count * 1_000, wall / count * 1_000


async def measure(url: str, tenants: int) -> Costs:
    costs = Costs()
    names = random.Random(7).sample([f"{TENANT}-{number}" for number in range(1, tenants + 1)], min(SAMPLE, tenants))
    async with SqlStore.open(url) as store:
        engines = TenantEngines(store, Settings(model="gpt-4o"), embedder=load_local_embedder())
        engines(TENANT)
        deferred: list[Job] = []

        async def defer(jobs: Sequence[Job]) -> None:
            deferred.extend(jobs)

        sweeper = Sweeper(store, engines, clock=lambda: time.time_ns() // 1_000 + 120 * 1_000_000)
        begin = time.time_ns() // 1_000

        async def sweep() -> None:
            # Only what has happened since the beginning.
            for interval in SWEEP_INTERVALS:
                await store.all_tenants.record_sweep(interval.name, begin)
            await sweeper.sweep(defer)

        await costs.measure("sweep that finds nothing", sweep(), count=1)

        async def append() -> None:
            for name in names:
                await store.for_tenant(name).append("conversation-000000", Message.user("When is high tide at night?"))

        async def index() -> None:
            for name in names:
                await index_messages(engines(name))

        async def search() -> None:
            for name in names:
                found = await search_messages(engines(name), "high tide")
                assert found.complete
                assert found.messages

        async def list_tenants() -> None:
            page = None
            while found := await store.all_tenants.list_updated_conversations(since=0, until=2**62, after=page):
                page = found[-1]

        await costs.measure("append, another tenant each time", append(), count=len(names))
        await costs.measure("sweep, a conversation", sweep(), count=len(names))
        assert {job.tenant for job in deferred} >= set(names), "the sweep missed a tenant"
        await costs.measure("index, a tenant", index(), count=len(names))
        before = read_memory_bytes()
        await costs.measure("first search of a tenant", search(), count=len(names))
        costs.rows["memory of a searched tenant, kB"] = ((read_memory_bytes() - before) / len(names) / 1e3, 0.0)
        await costs.measure("second search of a tenant", search(), count=len(names))
        await costs.measure("all conversations, as `quire tenant list`", list_tenants(), count=1)
    return costs


def run(report: Report, *, quick: bool) -> None:
    sizes = QUICK_SIZES if quick else FULL_SIZES
    with Cluster.start(18, settings={"shared_buffers": "1GB", "max_wal_size": "2GB"}) as cluster:
        cluster.create_role("quire_app")
        cluster.create_database("tenants")
        admin, url = cluster.url("tenants"), cluster.url("tenants", user="quire_app")
        migrate.upgrade(admin)
        migrate.grant_access(admin, "quire_app")
        queue_schema.upgrade(admin)
        queue_schema.grant(admin, "quire_app")
        asyncio.run(load_tenant(url))
        found: list[Costs] = []
        first = 1
        for size in sizes:
            print(f"  {time.strftime('%H:%M:%S')} {size:,} tenants", file=sys.stderr)
            copy_tenants(admin, TENANT, first=first, last=size)
            first = size + 1
            found.append(asyncio.run(measure(url, size)))
            messages, total, index = measure_bytes(admin)
            report.print_table(
                f"{size:,} tenants, {messages:,} messages: {total / messages:,.0f} bytes a message, of them the "
                f"search index {index / messages:,.0f}",
                ("operation", "CPU ms", "wall ms"),
                [(name, *each) for name, each in found[-1].rows.items()],
            )
    for name in ("sweep, a conversation", "index, a tenant", "first search of a tenant"):
        growth = found[-1].rows[name][0] / found[0].rows[name][0]
        report.require_at_most(f"{name.replace(',', '').replace(' ', '_')}_growth", growth, MAX_GROWTH)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200 tenants, under a minute")
    options = parser.parse_args()
    made = Report("many_tenants")
    run(made, quick=options.quick)
    made.print_goals_and_exit()
