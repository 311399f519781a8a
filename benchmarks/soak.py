"""A soak: `quire serve` under moderate load of all wire formats for an hour; memory, handles and connections stay flat.

Real processes: the server with its workers, PostgreSQL, and a scripted upstream. Clients of the official SDKs send
turns with and without streams and with tool calls, follow event streams, and hang up; the upstream refuses some
requests and cuts some replies. Caches and pools fill at first, so goals compare the last third of the run with the
second, and latency of the last ten minutes with the minutes 10 to 20. A control times what Quire has no part in: a
request straight to the upstream, and an fsync beside the database. Samples are lines of JSON, and the plot is drawn
from them.

    just bench soak --minutes 60
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from infra.postgres import Cluster, find_free_port
from quire.db import migrate
from quire.store import SqlStore
from server.fleet import Process
from soak_clients import LoadState, run_load
from soak_plot import draw_plot
from soak_samples import (
    MinuteSample,
    SoakRecord,
    compare_cpu_per_turn,
    compare_minutes,
    compare_thirds,
    encode_sample,
    parse_record,
    sample_processes,
    summarize_minute,
)
from support import Report

ROLE = "quire_app"
SAMPLE_SECONDS = 5.0
START_TIMEOUT_SECONDS = 120.0
WINDOW_TOKENS = 6_000
"""Small enough that long conversations are fitted and compacted."""
MAX_GROWTH = 1.1
MAX_MEMORY_GROWTH = 1.05
MAX_CPU_GROWTH = 1.2
MIN_COMPARED_MINUTES = 30
QUICK_MINUTES = 2.0


@dataclass(frozen=True)
class SoakOptions:
    minutes: float
    turns_per_second: float
    workers: int
    database: str
    seed: int
    samples: Path


@contextmanager
def start_upstream() -> Iterator[str]:
    script = str(Path(__file__).with_name("soak_upstream.py"))
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


@contextmanager
def create_database(kind: str, folder: Path) -> Iterator[tuple[str, str | None]]:
    """Yields the URL of the server's role, and on PostgreSQL the owner's."""
    if kind == "sqlite":
        url = f"sqlite:///{folder}/quire.db"
        migrate.upgrade(url)
        yield url, None
        return
    with Cluster.start(18, fsync=True) as cluster:
        cluster.create_database("quire")
        cluster.create_role(ROLE)
        migrate.upgrade(cluster.url("quire"))
        migrate.grant_access(cluster.url("quire"), ROLE)
        yield cluster.url("quire", user=ROLE), cluster.url("quire")


@contextmanager
def start_server(folder: Path, url: str, upstream: str, *, workers: int) -> Iterator[tuple[int, Process]]:
    everything = {"base_url": upstream, "speaks": ["chat", "messages", "responses"], "overflow": "fit"}
    upstreams = {"gpt-4o": everything, "gpt-4o-mini": {"base_url": upstream, "overflow": "fit"}}
    own = {
        "QUIRE_DATABASE_URL": url,
        "QUIRE_MODEL": "gpt-4o",
        "QUIRE_BASE_URL": upstream,
        "QUIRE_UPSTREAMS": json.dumps(upstreams),
        "QUIRE_CONTEXT_LIMIT": str(WINDOW_TOKENS),
        "QUIRE_REQUESTS_PER_MINUTE": "1000000",
        **dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(folder)),
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    port = find_free_port()
    arguments = [sys.executable, "-m", "quire", "serve", "--port", str(port), "--keys", "--workers", str(workers)]
    server = Process(arguments, output=folder / "server.log", environment=others | own)
    try:
        yield port, server
    finally:
        server.stop()


async def wait_until_ready(port: int, server: Process) -> None:
    async with asyncio.timeout(START_TIMEOUT_SECONDS):
        while server.process.poll() is None:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
                status = await reader.read()
                writer.close()
                if status.startswith(b"HTTP/1.1 200"):
                    return
            await asyncio.sleep(0.2)
    raise RuntimeError(f"The server did not start:\n{server.logs[-2_000:]}")


def count_connections(owner_url: str | None) -> int:
    """Connections of the server's role to PostgreSQL."""
    if owner_url is None:
        return 0
    with psycopg.connect(owner_url, autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = %s", [ROLE]).fetchone()
    assert row is not None
    return row[0]


async def sample_until_end(
    state: LoadState, server: Process, owner_url: str | None, options: SoakOptions
) -> SoakRecord:
    """Writes each sample to the file at once, so that an interrupted run has its samples too."""
    record, started_at = SoakRecord([], []), time.monotonic()
    with options.samples.open("w", encoding="utf-8") as file:
        elapsed = 0.0
        while elapsed < options.minutes * 60 + SAMPLE_SECONDS / 2:
            connections = await asyncio.to_thread(count_connections, owner_url)
            sample = sample_processes(server.process.pid, seconds=elapsed, database_connections=connections)
            record.resources.append(sample)
            file.write(f"{encode_sample(sample)}\n")
            if elapsed >= (len(record.minutes) + 1) * 60:
                record.minutes.append(make_minute(len(record.minutes), state))
                file.write(f"{encode_sample(record.minutes[-1])}\n")
            file.flush()
            next_sample_at = started_at + SAMPLE_SECONDS * len(record.resources)
            await asyncio.sleep(max(0.0, next_sample_at - time.monotonic()))
            elapsed = time.monotonic() - started_at
    return record


def make_minute(minute: int, state: LoadState) -> MinuteSample:
    results, stream_errors = state.take_results()
    latencies = [each.seconds for each in results if each.is_regular and each.error is None]
    failures = len(stream_errors) + sum(each.error is not None for each in results)
    control, fsync = state.control_seconds, state.fsync_seconds
    state.control_seconds, state.fsync_seconds = [], []
    return summarize_minute(minute, latencies, turns=len(results), failures=failures, control=control, fsync=fsync)


async def run_soak(options: SoakOptions) -> SoakRecord:
    folder = Path(tempfile.mkdtemp(prefix="quire-soak-"))
    with create_database(options.database, folder) as (url, owner_url), start_upstream() as upstream:
        async with SqlStore.open(url) as store:
            _, key = await store.keys.create("soak", ("read", "write", "chat"))
        with start_server(folder, url, upstream, workers=options.workers) as (port, server):
            await wait_until_ready(port, server)
            state = LoadState(port, key, options.turns_per_second)
            async with run_load(state, upstream=upstream, folder=folder, seed=options.seed):
                record = await sample_until_end(state, server, owner_url, options)
            print_load(state)
            print(f"log of the server: {folder}", file=sys.stderr)
    return record


def print_load(state: LoadState) -> None:
    print(f"turns: {', '.join(f'{name} {count}' for name, count in state.behaviours.most_common())}")
    print(f"event streams: {state.stream_count} opened, {state.event_count} events")
    for error, count in state.errors.most_common(10):
        print(f"unscripted failure, {count} times: {error}")


def make_report(record: SoakRecord) -> Report:
    report = Report("soak")
    samples, minutes = record.resources, record.minutes
    marks = [samples[round((len(samples) - 1) * part)] for part in (0.0, 1 / 3, 2 / 3, 1.0)]
    header = ("minute", "PSS MB", "RSS MB", "handles", "threads", "connections", "load average")
    rows: list[tuple[object, ...]] = [
        (
            round(each.seconds / 60), each.pss_megabytes, each.rss_megabytes, each.file_handles, each.threads,
            each.database_connections, each.load_average,
        )
        for each in marks
    ]  # fmt: skip
    report.print_table("The server's processes, at the ends of the thirds", header, rows)
    size = max(1, len(minutes) // 3)
    thirds = [("first", minutes[:size]), ("second", minutes[size : 2 * size]), ("last", minutes[2 * size :])]
    report.print_table(
        "Turns by third of the run, and the median minute's latency in milliseconds",
        ("third", "turns", "p50", "p99", "control", "fsync"),
        [
            (name, sum(each.turns for each in part), _median([each.p50_ms for each in part]),
             _median([each.p99_ms for each in part]), _median([each.control_p50_ms for each in part]),
             _median([each.fsync_p50_ms for each in part]))
            for name, part in thirds
        ],
    )  # fmt: skip
    report.require_at_most("memory_growth", compare_thirds(samples, lambda each: each.pss_megabytes), MAX_MEMORY_GROWTH)
    report.require_at_most("file_handle_growth", compare_thirds(samples, lambda each: each.file_handles), MAX_GROWTH)
    connections = compare_thirds(samples, lambda each: each.database_connections)
    report.require_at_most("database_connection_growth", connections, MAX_GROWTH)
    report.require_at_most("cpu_per_turn_growth", compare_cpu_per_turn(record), MAX_CPU_GROWTH)
    if len(minutes) >= MIN_COMPARED_MINUTES:
        report.require_at_most("p50_growth", compare_minutes(minutes, lambda each: each.p50_ms), MAX_GROWTH)
        report.require_at_most("p99_growth", compare_minutes(minutes, lambda each: each.p99_ms), MAX_GROWTH)
        control = compare_minutes(minutes, lambda each: each.control_p50_ms)
        print(f"\nWithout Quire, the control's p50 grew by {control:.2f} between the same minutes.")
    report.require_at_most("unscripted_failures", sum(each.failures for each in minutes), 0)
    return report


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MINUTES:.0f} minutes")
    parser.add_argument("--turns-per-second", type=float, default=4.0, help="of all clients together")
    parser.add_argument("--workers", type=int, default=2, help="processes of the server; 1 for SQLite")
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=Path, default=Path("soak.jsonl"), help="file of samples")
    parser.add_argument("--plot", type=Path, help="SVG file to draw")
    parser.add_argument("--from-samples", action="store_true", help="run nothing; report the file of samples")
    given = parser.parse_args()
    if given.from_samples:
        record = parse_record(given.samples.read_text("utf-8").splitlines())
    else:
        options = SoakOptions(
            minutes=QUICK_MINUTES if given.quick else given.minutes,
            turns_per_second=given.turns_per_second,
            workers=1 if given.database == "sqlite" else given.workers,
            database=given.database,
            seed=given.seed,
            samples=given.samples,
        )
        record = asyncio.run(run_soak(options))
    if given.plot is not None:
        given.plot.write_text(draw_plot(record, title="quire serve under mixed load"), encoding="utf-8")
    make_report(record).print_goals_and_exit()


if __name__ == "__main__":
    main()
