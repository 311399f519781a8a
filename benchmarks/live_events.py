"""Event streams on two servers with one PostgreSQL: what idle streams cost, how soon a change arrives, and what NOTIFY
costs commits.

The servers are processes of their own. Transactions are counted by PostgreSQL, CPU time by the kernel. For the rates of
commits the cluster writes to disk, since NOTIFY's lock is held until a commit is there: set TMPDIR to a real disk.
"""

import asyncio
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from infra.postgres import Cluster, find_binaries
from quire.db import migrate
from quire.model import Message
from quire.store import SqlStore
from server.fleet import Fleet
from support import Report, run_benchmark

ROLE = "quire_app"
MAX_TRANSACTIONS_PER_SECOND = 5.0
MAX_CORE_PERCENT = 5.0
MAX_ARRIVAL_SECONDS = 1.0
SETTLING_SECONDS = 40.0
"""Time between the opening of streams and the measurement: the statistics of idle sessions arrive late."""
SWEEP_SECONDS = 60.0
"""Time for the first sweep of the servers."""
COMMIT_CLIENTS = 16
FLUSH_MS = (0, 5)
"""Times that a flush takes in addition to the disk's own."""
CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass
class EventStream:
    """A client of `/events` that does as little as possible."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, port: int, key: str, conversation: str) -> "EventStream":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        path = f"/api/conversations/{conversation}/events"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        stream = cls(reader, writer)
        await stream.wait_for('"head"')
        return stream

    async def wait_for(self, text: str) -> None:
        while line := await self.reader.readline():
            if text in line.decode():
                return
        raise EOFError("the server ended the stream")


def read_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_SECOND


def count_commits(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return row[0]


async def measure_idle(fleet: Fleet, url: str, *, seconds: float) -> tuple[float, float]:
    """Transactions a second, and the percentage of a core that both servers use."""
    await asyncio.sleep(SETTLING_SECONDS)
    pids = [server.process.pid for server in fleet.servers]
    commits, cpu, started_at = count_commits(url), sum(map(read_cpu_seconds, pids)), time.monotonic()
    await asyncio.sleep(seconds)
    elapsed = time.monotonic() - started_at
    used = sum(map(read_cpu_seconds, pids)) - cpu
    return (count_commits(url) - commits) / elapsed, used / elapsed * 100


async def measure_arrivals(store: SqlStore, streams: list[EventStream], *, changes: int) -> list[float]:
    """Seconds from a commit in this process to the event of a stream, on each server in turn."""
    arrivals: list[float] = []
    for number in range(changes):
        stream, conversation = streams[number % 2], f"c{number % 2}"
        [entry] = await store.append(conversation, Message.user(f"change {number}"))
        started_at = time.perf_counter()
        await asyncio.wait_for(stream.wait_for(f'"head":{entry.seq}'), 30)
        arrivals.append(time.perf_counter() - started_at)
        await asyncio.sleep(0.1)
    return arrivals


async def measure_streams(report: Report, *, quick: bool) -> None:
    rows: list[tuple[object, ...]] = []
    with Cluster.start(18) as cluster, tempfile.TemporaryDirectory() as folder:
        url = cluster.url("quire")
        cluster.create_database("quire")
        cluster.create_role(ROLE)
        migrate.upgrade(url)
        migrate.grant_access(url, ROLE)
        async with SqlStore.open(cluster.url("quire", user=ROLE)) as store:
            _, key = await store.keys.create("bench", ["read"])
            targets = (200,) if quick else (200, 2_000)
            # Before the servers start: their first sweep looks for work in every conversation that changed.
            for number in range(max(targets)):
                await store.create_conversation(f"c{number}")
            fleet = Fleet(cluster.url("quire", user=ROLE), key, Path(folder))
            try:
                fleet.start_server()
                fleet.start_server()
                await fleet.wait_ready(timeout_seconds=180)
                await asyncio.sleep(SWEEP_SECONDS)
                streams: list[EventStream] = []
                for target in targets:
                    streams += [
                        await EventStream.open(fleet.ports[number % 2], key, f"c{number}")
                        for number in range(len(streams), target)
                    ]
                    transactions, core = await measure_idle(fleet, url, seconds=10 if quick else 30)
                    rows.append((f"{target:,}", transactions, core))
                    if target == 200:
                        report.require_at_most(
                            "idle_transactions_per_second", transactions, MAX_TRANSACTIONS_PER_SECOND
                        )
                        report.require_at_most("idle_core_percent", core, MAX_CORE_PERCENT)
                arrivals = await measure_arrivals(store, streams, changes=20 if quick else 100)
            finally:
                fleet.stop()
    report.print_table("Idle streams on two servers", ("streams", "transactions/s", "% of a core, both servers"), rows)
    report.print_table(
        "A change by another process",
        ("median ms", "maximum ms"),
        [(statistics.median(arrivals) * 1_000, max(arrivals) * 1_000)],
    )
    report.require_at_most("arrival_seconds", max(arrivals), MAX_ARRIVAL_SECONDS)


async def notify_at_intervals(url: str) -> None:
    """What a process of Quire does: one small transaction every 20 ms, which need not reach the disk."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while True:
            await connection.execute("SELECT set_config('synchronous_commit', 'off', true), pg_notify('bench', 'some')")
            await asyncio.sleep(0.02)


async def measure_commits(url: str, second_statement: str, *, seconds: int) -> float:
    """Commits a second of all clients together, each of two statements."""
    script = f"BEGIN; INSERT INTO changes DEFAULT VALUES; {second_statement}; END;"
    pgbench = find_binaries(18)
    assert pgbench is not None
    arguments = ("-n", "-c", str(COMMIT_CLIENTS), "-j", "2", "-T", str(seconds), "-f", "/dev/stdin", url)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(pgbench / "pgbench", *arguments, stdin=pipe, stdout=pipe)
    output, _ = await process.communicate(script.encode())
    [line] = [line for line in output.decode().splitlines() if line.startswith("tps = ")]
    return float(line.split()[2])


async def measure_commit_rates(report: Report, *, flush_ms: int, quick: bool) -> None:
    """With `flush_ms`, PostgreSQL waits that long before each flush, as for a synchronous standby."""
    seconds, rounds = (2, 3) if quick else (5, 5)
    rates: dict[str, list[float]] = {"none": [], "in every transaction": [], "coalesced": []}
    settings = {"commit_delay": str(flush_ms * 1_000), "commit_siblings": "0"}
    with Cluster.start(18, fsync=True, settings=settings) as cluster:
        url = cluster.url("postgres")
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute("CREATE TABLE changes (id bigserial PRIMARY KEY)")
        # Interleaved, so that a slow moment of the machine affects all of them.
        for _ in range(rounds):
            rates["none"].append(await measure_commits(url, "SELECT 1", seconds=seconds))
            rates["in every transaction"].append(
                await measure_commits(url, "SELECT pg_notify('bench', 'changed')", seconds=seconds)
            )
            notifying = asyncio.create_task(notify_at_intervals(url))
            rates["coalesced"].append(await measure_commits(url, "SELECT 1", seconds=seconds))
            notifying.cancel()
            await asyncio.gather(notifying, return_exceptions=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    report.print_table(
        f"Commits of {COMMIT_CLIENTS} clients, on disk{f' and {flush_ms} ms later' if flush_ms else ''}",
        ("NOTIFY", "commits/s", "of those without"),
        [(name, rate, rate / medians["none"]) for name, rate in medians.items()],
    )


async def run(*, quick: bool) -> Report:
    report = Report("live_events")
    for flush_ms in FLUSH_MS:
        await measure_commit_rates(report, flush_ms=flush_ms, quick=quick)
    await measure_streams(report, quick=quick)
    return report


if __name__ == "__main__":
    run_benchmark(run)
