"""The gateway on PostgreSQL beside a bare proxy without a store, and beside the proxies of LiteLLM, Portkey and
Headroom, which store nothing of a turn.

Every server runs in its own process, on loopback, with an upstream that answers at once; the clients run in this one.
A turn is one question and one reply of sixty tokens. The servers are measured alternately, slice by slice, so that a
slow moment of the machine affects all of them, and what compares two servers is the ratio of their CPU time.
QUIRE_PROFILE=file writes a cProfile of the gateway.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack

import psycopg
from psycopg.rows import dict_row

from gateway_clients import (
    CHAT_ONLY_MODEL,
    NATIVE_MODEL,
    SENTENCE,
    SHAPES,
    Client,
    ClientScript,
    send_agent_history,
    send_for_stream,
    send_full_history,
    send_in_format,
    send_last_turns,
    send_new_messages,
)
from gateway_open_loop import compare_open_loop
from gateway_processes import PEERS, ServerProcess, find_peer, start_peer, start_servers
from gateway_servers import STREAM_CHUNKS
from infra.postgres import Cluster
from quire.db import migrate, schema
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import index_messages
from quire.jobs import queue_schema
from quire.log.row_digests import with_row_digest
from quire.model import Compaction, Draft, Message, Span, TokenCount
from quire.settings import Settings
from quire.store import SqlStore
from support import Report, run_benchmark

WINDOW_TOKENS, WIDE_WINDOW_TOKENS = 8_192, 1_000_000
SHORT_MESSAGES, LONG_MESSAGES, ACTIVE_MESSAGES = 1_000, 10_000, 60
"""Messages of a conversation, and those that are not archived."""
COUNTER = "chat:o200k_base"
WARM_UP_TURNS = 8
"""Turns of each client before measurement: each connection to the database prepares each statement once."""
CAPACITY_CLIENTS = 16
"""Clients with which the capacity for the open loop is measured."""


async def compare_formats(
    report: Report, server: ServerProcess, key: str, *, clients: int, rounds: int, seconds: float
) -> None:
    """Measures each format, passed through and translated."""
    ways = {
        **{name: (shape, NATIVE_MODEL) for name, shape in SHAPES.items()},
        **{f"{name} to chat": (SHAPES[name], CHAT_ONLY_MODEL) for name in ("messages", "responses")},
    }
    crowds = {
        name: await ClientGroup(server, key, send_in_format(shape, model), clients=clients).warm_up()
        for name, (shape, model) in ways.items()
    }
    await run_interleaved(crowds.values(), rounds=rounds, seconds=seconds)
    report.print_table(
        f"The gateway with {clients} clients, by format; clients send the whole list, ten turns a conversation",
        ("format", *COLUMNS),
        [(name, *crowd.row) for name, crowd in crowds.items()],
    )


class ClientGroup:
    """Clients of one server that continue from slice to slice, with the latency of their turns.

    Also the CPU time of the server's process, which is the better measure on a shared machine.
    """

    def __init__(self, server: ServerProcess, key: str, asking: ClientScript, *, clients: int) -> None:
        self._server = server
        self._clients = [Client(server.port, key, headers=server.headers) for _ in range(clients)]
        self._turns = [asking(client, number) for number, client in enumerate(self._clients)]
        self.times: list[float] = []
        self.seconds = self.cpu_seconds = 0.0

    async def warm_up(self, turns: int = 2) -> "ClientGroup":
        """Runs a few turns that open connections and fill caches."""
        for _ in range(turns):
            await asyncio.gather(*map(anext, self._turns))
        return self

    async def run_turns(self, seconds: float) -> None:
        began, before = time.perf_counter(), self._server.read_cpu_seconds()

        async def run(turns: AsyncIterator[None]) -> None:
            while (start := time.perf_counter()) - began < seconds:
                await anext(turns)
                self.times.append((time.perf_counter() - start) * 1_000)

        await asyncio.gather(*map(run, self._turns))
        self.seconds += time.perf_counter() - began
        self.cpu_seconds += self._server.read_cpu_seconds() - before

    def close(self) -> None:
        for client in self._clients:
            client.close()

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds

    @property
    def cpu_per_turn(self) -> float:
        """Milliseconds of CPU time."""
        return 1_000 * self.cpu_seconds / len(self.times)

    @property
    def row(self) -> tuple[object, ...]:
        cuts = statistics.quantiles(self.times, n=100)
        return self.rate, cuts[49], cuts[98], self.cpu_per_turn


COLUMNS = ("turns/s", "p50", "p99", "cpu ms/turn")


def create_database(cluster: Cluster) -> str:
    """Creates a database with Quire's tables and job queue, and returns its URL for a role that owns no table."""
    cluster.create_role("quire_app")
    cluster.create_database("ours")
    migrate.upgrade(cluster.url("ours"))
    migrate.grant_access(cluster.url("ours"), "quire_app")
    queue_schema.upgrade(cluster.url("ours"))
    queue_schema.grant(cluster.url("ours"), "quire_app")
    return cluster.url("ours", user="quire_app")


async def compare_servers(
    report: Report, servers: dict[str, ServerProcess], key: str, *, counts: tuple[int, ...], rounds: int, seconds: float
) -> dict[str, float]:
    """Returns each server's turns per second with 16 clients: its capacity."""
    rows: list[tuple[object, ...]] = []
    capacities: dict[str, float] = {}
    for clients in counts:
        crowds = {
            name: await ClientGroup(each, key, send_full_history, clients=clients).warm_up(WARM_UP_TURNS)
            for name, each in servers.items()
        }
        await run_interleaved(crowds.values(), rounds=rounds, seconds=seconds)
        rows += [(clients, name, *crowd.row) for name, crowd in crowds.items()]
        if clients == CAPACITY_CLIENTS:
            capacities = {name: crowd.rate for name, crowd in crowds.items()}
    report.print_table(
        "Turns per second and milliseconds per turn; clients send the whole list, ten turns a conversation",
        ("clients", "server", *COLUMNS),
        rows,
    )
    return capacities


async def compare_shapes(
    report: Report, servers: dict[str, ServerProcess], key: str, *, clients: int, rounds: int, seconds: float
) -> None:
    """Compares a streamed turn with a whole one, and an agent's long list with the bare proxy's."""
    ways = {
        "whole": ("gateway", send_full_history),
        "streamed": ("gateway", send_for_stream),
        "long list": ("wide gateway", send_agent_history),
        "long list, bare": ("bare", send_agent_history),
    }
    crowds = {
        name: await ClientGroup(servers[server], key, script, clients=clients).warm_up(WARM_UP_TURNS)
        for name, (server, script) in ways.items()
    }
    await run_interleaved(crowds.values(), rounds=rounds, seconds=seconds)
    report.print_table(
        f"The gateway with {clients} clients: replies whole and in {STREAM_CHUNKS} chunks; lists of half a megabyte",
        ("turn", *COLUMNS),
        [(name, *crowd.row) for name, crowd in crowds.items()],
    )


async def run_interleaved(crowds: Iterable[ClientGroup], *, rounds: int, seconds: float) -> None:
    crowds = list(crowds)
    for _ in range(rounds):
        for crowd in crowds:
            await crowd.run_turns(seconds)
    for crowd in crowds:
        crowd.close()


def make_drafts(count: int) -> list[Draft]:
    speakers = (Message.assistant, Message.user)
    return [
        Draft(body=speakers[number % 2](f"{number}: {SENTENCE * 3}"), tokens=TokenCount(60, COUNTER))
        for number in range(1, count + 1)
    ]


async def create_long_conversations(url: str, admin: str, size: int, *, copies: int) -> list[str]:
    """Creates conversations of `size` messages, all but the newest archived; one is written, the others are copies."""
    names = [f"long-{size}-{number}" for number in range(copies)]
    async with SqlStore.open(url) as store:
        await store.create_conversation(names[0])
        written = make_drafts(size)
        for start in range(0, size, 2_000):
            await store.append(names[0], *written[start : start + 2_000])
        covers = Span(first=1, last=size - ACTIVE_MESSAGES)
        await store.append(names[0], Compaction(number=1, covers=covers, summary=SENTENCE * 10))
        # As after a background compaction: the recall index of the archive is built.
        engine = Engine(store, EngineConfig.create(Settings(model="gpt-4o")))
        await index_messages(engine)
    async with await psycopg.AsyncConnection.connect(admin, autocommit=True) as connection:
        for table in ("conversations", "branches", "entries", "paths", "message_segments"):
            found = await connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_name = %s", (f"quire_{table}",)
            )
            columns = [name for (name,) in await found.fetchall()]
            copied = ", ".join("%(copy)s" if name == "conversation" else name for name in columns)
            for name in names[1:]:
                statement = (
                    f"INSERT INTO quire_{table} ({', '.join(columns)}) "
                    f"SELECT {copied} FROM quire_{table} WHERE conversation = %(from)s"
                )
                await connection.execute(statement, {"copy": name, "from": names[0]})
        await update_row_digests(connection, names[1:])
        await connection.execute("ANALYZE")
    return names


async def update_row_digests(connection: psycopg.AsyncConnection, names: list[str]) -> None:
    """Gives copied rows the digests of their new names."""
    for table in (schema.conversations, schema.branches):
        async with connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(f"SELECT * FROM {table.name} WHERE conversation = ANY(%s)", [names])
            for row in await cursor.fetchall():
                digest = with_row_digest(table, row)["row_digest"]
                update = f"UPDATE {table.name} SET row_digest = %s WHERE conversation = %s"
                await connection.execute(update, [digest, row["conversation"]])


async def measure_growth(
    report: Report, server: ServerProcess, key: str, url: str, admin: str, *, clients: int, rounds: int, seconds: float
) -> None:
    """Compares conversations with the same view, of a thousand and of ten thousand messages; and a client that names
    its conversation with one that sends the whole list."""
    short = await create_long_conversations(url, admin, SHORT_MESSAGES, copies=clients)
    long = await create_long_conversations(url, admin, LONG_MESSAGES, copies=clients)
    rows: list[tuple[object, ...]] = []
    for way, asking in (("last three turns", send_last_turns), ("new messages only", send_new_messages)):
        crowds = {
            size: await ClientGroup(server, key, asking(names), clients=clients).warm_up(3)
            for size, names in ((SHORT_MESSAGES, short), (LONG_MESSAGES, long))
        }
        listed = await ClientGroup(server, key, send_full_history, clients=clients).warm_up(3)
        await run_interleaved([*crowds.values(), listed], rounds=rounds, seconds=seconds)
        rows += [(way, size, *crowd.row) for size, crowd in crowds.items()]
        rows.append(("whole list", "to 20", *listed.row))
    report.print_table(
        f"The gateway with {clients} clients, by messages of their conversation, which a header names",
        ("the client sends", "messages", *COLUMNS),
        rows,
    )


async def run(*, quick: bool) -> Report:
    report = Report("gateway")
    counts, rounds, seconds = ((1, 16, 64), 2, 0.8) if quick else ((1, 16, 64), 5, 3.0)
    with ExitStack() as running:
        cluster = running.enter_context(Cluster.start(18, fsync=True))
        ours = create_database(cluster)
        async with SqlStore.open(ours) as store:
            _, key = await store.keys.create("bench", ("read", "write", "chat"))
        [upstream] = running.enter_context(start_servers(("upstream",)))
        up = f"http://127.0.0.1:{upstream.port}/v1"
        commands = {
            "bare": ("bare", up),
            "gateway": ("gateway", up, ours, str(WINDOW_TOKENS)),
            "wide gateway": ("gateway", up, ours, str(WIDE_WINDOW_TOKENS)),
        }
        started = running.enter_context(start_servers(*commands.values()))
        servers = dict(zip(commands, started, strict=True))
        gateway = servers["gateway"]
        usual = {name: each for name, each in servers.items() if name != "wide gateway"}
        for name, peer in PEERS.items():
            version = find_peer(name, install=not quick)
            started_peer = running.enter_context(start_peer(name, up, key=key)) if version is not None else None
            if started_peer is not None:
                usual[name] = started_peer
                print(f"{name}: {peer.title} {version}, {peer.how}")
        capacities = await compare_servers(report, usual, key, counts=counts, rounds=rounds, seconds=seconds)
        await compare_shapes(report, servers, key, clients=4, rounds=rounds, seconds=seconds)
        await compare_formats(report, gateway, key, clients=8, rounds=rounds * 2, seconds=seconds)
        pieces = {"clients": 8 if quick else 16, "rounds": rounds, "seconds": seconds}
        await measure_growth(report, gateway, key, ours, cluster.url("ours"), **pieces)
        await compare_open_loop(
            report, usual, key, capacities=capacities, rounds=rounds, seconds=4.0 if quick else 15.0
        )
    return report


if __name__ == "__main__":
    run_benchmark(run)
