"""The costs of `scale_model`, measured in one run, and its predictions against measured points: 10,000, 100,000 and
1,000,000 messages, and gateway requests of other sizes. Prints the table that its costs give.

A small database and two sizes of requests give the costs. The first point is written by Quire, the others are copies of
its rows (`tenant_copies`), to each of which Quire then adds and indexes the same number of messages.
"""

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import psycopg

from gateway import ClientGroup
from gateway_clients import Client, send_agent_history
from gateway_processes import ServerProcess, start_servers
from infra.postgres import Cluster
from large_tenant import load_block, measure_bytes
from quire.db import migrate
from quire.jobs import queue_schema
from quire.store import DEFAULT_TENANT, SqlStore
from scale_model import (
    Costs,
    predict_index_bytes,
    predict_log_bytes,
    predict_turn_cpu_ms,
    render_table,
)
from support import Report
from tenant_copies import SEGMENTS_PER_BLOCK, copy_conversations

CALIBRATION_CONVERSATIONS, ADDED_CONVERSATIONS = 8 * SEGMENTS_PER_BLOCK, SEGMENTS_PER_BLOCK
WARM_UP_CONVERSATIONS, POINT_CONVERSATIONS = 16, 3 * SEGMENTS_PER_BLOCK
POINT_COPIES = (0, 10, 106)
"""Copies of the 9,600 messages of the first point."""
CALIBRATION_MESSAGES, POINT_MESSAGES = (8, 600), (120, 400)
"""Messages of the lists that give the costs of a request, and of those that are predicted. The lists grow with each
turn, and stay below the context window, above which requests are fitted."""
TURN_SECONDS, ROUNDS, WARM_UP_TURNS = 8.0, 4, 30
STREAMS = 300
WINDOW_TOKENS = 1_000_000
MAX_ERROR = 1.3
"""Goal: measured and predicted, the larger divided by the smaller."""
TEXT_BYTES = "SELECT sum(octet_length(body)) FROM quire_entries"
MANIFEST_BYTES = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname ~ %s"


def read_cluster_cpu(cluster: Cluster) -> float:
    """CPU seconds of a server's processes, those that have ended included."""
    postmaster = str(cluster.pid)
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if path.parent.name == postmaster:
            ticks += sum(map(int, fields[11:15]))
        elif fields[1] == postmaster:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def read_rss(process: ServerProcess) -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read_number(url: str, query: str, *values: object) -> float:
    with psycopg.connect(url) as connection:
        row = connection.execute(query, values or None).fetchone()
    return float((row or (0,))[0] or 0)


class MeasuredClient(Client):
    """Records the sizes of its requests."""

    def __init__(self, client: Client, sent: list[int]) -> None:
        super().__init__(client.port, client.key)
        self._sent = sent

    async def ask(self, body: bytes, conversation: str, *, path: str = "/v1/chat/completions") -> bytes:
        self._sent.append(len(body))
        return await super().ask(body, conversation, path=path)


class MeasuredGroup:
    """Clients of one server that send lists of one length."""

    def __init__(self, server: ServerProcess, key: str, *, messages: int) -> None:
        self.sent: list[int] = []

        async def ask(client: Client, number: int) -> AsyncIterator[None]:
            measured = MeasuredClient(client, self.sent)
            async for _ in send_agent_history(measured, number + messages * 100, messages=messages):
                yield

        self.group = ClientGroup(server, key, ask, clients=2)

    @property
    def kilobytes(self) -> float:
        return sum(self.sent) / len(self.sent) / 1_000


async def measure_requests(cluster: Cluster, admin: str, url: str) -> tuple[dict[int, tuple[float, float]], Costs]:
    """Kilobytes and CPU milliseconds of requests by the messages of their list, and the costs that a request has."""
    async with SqlStore.open(url) as store:
        await store.create_conversation("streamed")
        _, key = await store.keys.create("bench", ("read", "write", "chat"))
    with ExitStack() as running:
        [upstream] = running.enter_context(start_servers(("upstream",)))
        command = ("gateway", f"http://127.0.0.1:{upstream.port}/v1", url, str(WINDOW_TOKENS))
        [gateway] = running.enter_context(start_servers(command))
        sizes = sorted((*CALIBRATION_MESSAGES, *POINT_MESSAGES))
        by_size = {size: MeasuredGroup(gateway, key, messages=size) for size in sizes}
        for each in by_size.values():
            await each.group.warm_up(WARM_UP_TURNS)
        database = 0.0
        for _ in range(ROUNDS):
            for size, each in by_size.items():
                cpu = read_cluster_cpu(cluster)
                await each.group.run_turns(TURN_SECONDS / ROUNDS)
                if size == sizes[0]:
                    database += read_cluster_cpu(cluster) - cpu
        requests = len(by_size[sizes[0]].group.times)
        points = {size: (each.kilobytes, each.group.cpu_per_turn) for size, each in by_size.items()}
        gc.collect()
        before = read_rss(gateway)
        writers: list[asyncio.StreamWriter] = []
        for _ in range(STREAMS):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            head = (
                f"GET /api/conversations/streamed/events HTTP/1.1\r\nhost: quire\r\nauthorization: Bearer {key}\r\n\r\n"
            )
            writer.write(head.encode())
            await reader.readuntil(b"\r\n\r\n")
            writers.append(writer)
        stream_bytes = max(0, read_rss(gateway) - before) / STREAMS
        for writer in writers:
            writer.transport.abort()
        # The server waits for open streams when it ends.
        await asyncio.sleep(1)
        (small_kb, small_ms), (large_kb, large_ms) = (points[each] for each in CALIBRATION_MESSAGES)
        body_cpu_ms = (large_ms - small_ms) / (large_kb - small_kb)
    manifests = read_number(admin, MANIFEST_BYTES, "^quire_manifests")
    rows = read_number(admin, "SELECT count(*) FROM quire_manifests")
    return points, Costs(
        turn_cpu_ms=small_ms - body_cpu_ms * small_kb,
        body_cpu_ms=body_cpu_ms,
        database_cpu_ms=database / requests * 1_000,
        message_bytes=0,
        manifest_bytes=manifests / rows,
        index_cpu_ms=0,
        index_bytes=0,
        stream_bytes=stream_bytes,
    )


def create_database(cluster: Cluster, name: str) -> tuple[str, str]:
    """The URLs of the owner and of the application."""
    cluster.create_database(name)
    url = cluster.url(name)
    migrate.upgrade(url)
    migrate.grant_access(url, "quire_app")
    queue_schema.upgrade(url)
    queue_schema.grant(url, "quire_app")
    return url, cluster.url(name, user="quire_app")


def run(report: Report, *, quick: bool) -> None:
    settings = {"shared_buffers": "1GB", "max_wal_size": "4GB"}
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster.start(18, settings=settings))
        cluster.create_role("quire_app")
        admin, url = create_database(cluster, "requests")
        points, costs = asyncio.run(measure_requests(cluster, admin, url))
        admin, url = create_database(cluster, "calibration")
        empty = measure_bytes(admin)
        # The first ones load the embedder and fill caches.
        asyncio.run(load_block(url, WARM_UP_CONVERSATIONS))
        spent = asyncio.run(load_block(url, CALIBRATION_CONVERSATIONS, start=WARM_UP_CONVERSATIONS))
        messages, total, index = measure_bytes(admin)
        text = read_number(admin, TEXT_BYTES)
        costs = costs._replace(
            message_bytes=(total - index - (empty[1] - empty[2]) - text) / messages,
            index_bytes=(index - empty[2]) / messages,
            index_cpu_ms=spent["index_us"] / 1_000,
        )
        rows: list[tuple[object, ...]] = []

        def compare(what: str, predicted: float, measured: float) -> None:
            error = max(predicted / measured, measured / predicted)
            rows.append((what, predicted, measured, error))
            print(f"  {what}: predicted {predicted:.3f}, measured {measured:.3f}", file=sys.stderr)
            report.require_at_most(f"{what.replace(' ', '_').replace(',', '')}_error", error, MAX_ERROR)

        for size in POINT_MESSAGES:
            kilobytes, measured = points[size]
            compare(f"CPU ms of a request of {kilobytes:.0f} kB", predict_turn_cpu_ms(costs, kilobytes), measured)
        create_database(cluster, "point")
        asyncio.run(load_block(cluster.url("point", user="quire_app"), POINT_CONVERSATIONS))
        for copies in POINT_COPIES[:1] if quick else POINT_COPIES:
            name = f"copies_{copies}"
            cluster.create_database(name, template="point")
            admin = cluster.url(name)
            if copies:
                copy_conversations(admin, DEFAULT_TENANT, copies=copies)
            messages, total, index = measure_bytes(admin)
            text = read_number(admin, TEXT_BYTES)
            log = predict_log_bytes(costs, messages, requests=0, text_bytes=text)
            compare(f"MB of the log of {messages:,} messages", log / 1e6, (total - index - empty[1] + empty[2]) / 1e6)
            compare(
                f"MB of the index of {messages:,} messages",
                predict_index_bytes(costs, messages) / 1e6,
                (index - empty[2]) / 1e6,
            )
            url = cluster.url(name, user="quire_app")
            spent = asyncio.run(load_block(url, ADDED_CONVERSATIONS, start=POINT_CONVERSATIONS))
            compare(f"CPU us of indexing one of {messages:,}", costs.index_cpu_ms * 1_000, spent["index_us"])
    report.print_table("Predicted and measured", ("what", "predicted", "measured", "error"), rows)
    report.print_table("Costs", costs._fields, [tuple(costs)])
    print(f"\n{render_table(costs)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10,000 messages only, about a minute")
    made = Report("scale")
    run(made, quick=parser.parse_args().quick)
    made.print_goals_and_exit()
