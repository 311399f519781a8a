"""The gateway on PostgreSQL beside two bare FastAPI proxies: one without a store, one that does the same inserts.

Every server is a process of its own, on loopback, with an upstream that answers at once; so are clients, in this one.
A turn is one question and one reply of sixty tokens. The proxies are measured in turns, slice by slice, so that a slow
moment of the machine meets them alike. QUIRE_PROFILE=file writes a cProfile of the gateway.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psycopg

from quire.engine import Engine
from quire.log import SqlStore, migrate
from quire.log.fresh import new_id
from quire.model import Compaction, Draft, Message, Span, TokenCount
from quire.settings import Settings
from quire.testing.postgres import Cluster
from support import Report, main

SENTENCE = "The river carries more water in spring than in autumn, and the mill runs day and night. "
SYSTEM = "You keep the books of a mill, and answer in one sentence. " * 8
QUESTION, SAID = SENTENCE * 3, "The mill runs. " * 12
TURNS = 10
"""A client begins a new conversation after so many turns; until then it sends the whole list."""
WINDOW = 8_192
LONG, SEEN = 10_000, 60
COUNTER = "openai:o200k_base"


class Client:
    """Speaks just enough HTTP, on a connection that it keeps."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key = port, key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: bytes, conversation: str) -> bytes:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: quire\r\nauthorization: Bearer {self._key}\r\n"
            f"x-quire-conversation: {conversation}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        status = await reader.readuntil(b"\r\n\r\n")
        length = int(status.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        answer = await reader.readexactly(length)
        if not status.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{status.decode()}{answer.decode()[:500]}")
        return answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


Asking = Callable[[Client, int], AsyncIterator[None]]


def body_of(messages: list[dict[str, str]]) -> bytes:
    return json.dumps({"model": "gpt-4o", "messages": [{"role": "system", "content": SYSTEM}, *messages]}).encode()


async def whole_lists(client: Client, number: int) -> AsyncIterator[None]:
    """Sends all that was said so far, and begins anew after some turns."""
    while True:
        conversation, history = new_id(), list[dict[str, str]]()
        for turn in range(TURNS):
            history.append({"role": "user", "content": f"{number} {turn} {QUESTION}"})
            answer = await client.ask(body_of(history), conversation)
            history.append({"role": "assistant", "content": json.loads(answer)["choices"][0]["message"]["content"]})
            yield


def last_turns(names: list[str]) -> Asking:
    """Sends the last three turns of a conversation that it names."""

    async def asking(client: Client, number: int) -> AsyncIterator[None]:
        history, began = list[dict[str, str]](), new_id()
        for turn in range(1_000_000):
            history = [*history, {"role": "user", "content": f"{began} {turn} {QUESTION}"}][-7:]
            answer = await client.ask(body_of(history), names[number])
            history.append({"role": "assistant", "content": json.loads(answer)["choices"][0]["message"]["content"]})
            yield

    return asking


def only_what_is_new(names: list[str]) -> Asking:
    """Sends the question alone, and leaves the history to Quire."""

    async def asking(client: Client, number: int) -> AsyncIterator[None]:
        for turn in range(1_000_000):
            await client.ask(body_of([{"role": "user", "content": f"{number} {turn} {QUESTION}"}]), names[number])
            yield

    return asking


async def slice_of(
    port: int, key: str, asking: Asking, *, clients: int, seconds: float = 0.0, turns_each: int = 1
) -> tuple[list[float], float]:
    """Milliseconds of each turn within the time, and how long it took; each client has at least so many."""
    times: list[float] = []
    began = time.perf_counter()

    async def run(number: int) -> None:
        client = Client(port, key)
        turns = asking(client, number)
        try:
            had = 0
            while had < turns_each or time.perf_counter() - began < seconds:
                start = time.perf_counter()
                await anext(turns)
                times.append((time.perf_counter() - start) * 1_000)
                had += 1
        finally:
            client.close()
            with suppress(RuntimeError):
                await turns.aclose()  # type: ignore[attr-defined]

    await asyncio.gather(*(run(number) for number in range(clients)))
    return times, time.perf_counter() - began


class Measured:
    """Turns of one server, and what its own process spent on them, which tells more where others use the machine."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self.times: list[float] = []
        self.seconds = self.spent = 0.0

    async def add(self, key: str, asking: Asking, *, clients: int, seconds: float) -> None:
        before = self._server.spent()
        times, took = await slice_of(self._server.port, key, asking, clients=clients, seconds=seconds)
        self.times += times
        self.seconds += took
        self.spent += self._server.spent() - before

    @property
    def cost(self) -> float:
        """Milliseconds of processor time for a turn."""
        return 1_000 * self.spent / len(self.times)

    @property
    def row(self) -> tuple[object, ...]:
        return self.rate, self.at(0.5), self.at(0.99), self.cost

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds

    def at(self, share: float) -> float:
        return statistics.quantiles(self.times, n=100)[round(share * 100) - 1]


class Server(NamedTuple):
    port: int
    pid: int

    def spent(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


COLUMNS = ("turns/s", "p50", "p99", "cpu ms/turn")


@contextmanager
def process(*arguments: str) -> Iterator[Server]:
    """One of the servers."""
    command = [sys.executable, str(Path(__file__).with_name("gateway_servers.py")), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        try:
            yield Server(int(started.stdout.readline()), started.pid)
        finally:
            started.stdin.close()
            started.wait(20)


@asynccontextmanager
async def databases(cluster: Cluster) -> AsyncIterator[tuple[str, str]]:
    """Two databases with Quire's tables, so that neither server's rows are in the other's way."""
    cluster.create_role("quire_app")
    urls: list[str] = []
    for name in ("ours", "theirs"):
        cluster.create_database(name)
        migrate.upgrade(cluster.url(name))
        migrate.grant(cluster.url(name), "quire_app")
        urls.append(cluster.url(name, user="quire_app"))
    yield urls[0], urls[1]


async def compare(
    report: Report, servers: dict[str, Server], key: str, *, counts: tuple[int, ...], rounds: int, seconds: float
) -> None:
    rows: list[tuple[object, ...]] = []
    for clients in counts:
        measured = {name: Measured(server) for name, server in servers.items()}
        for _ in range(rounds):
            for found in measured.values():
                await found.add(key, whole_lists, clients=clients, seconds=seconds)
        rows += [(clients, name, *found.row) for name, found in measured.items()]
        ratio = measured["inserts"].rate / measured["gateway"].rate
        report.at_most(f"inserts_over_gateway_{clients}", ratio, 2.0)
    report.table(
        "Turns per second and milliseconds per turn; clients send the whole list, ten turns a conversation",
        ("clients", "server", *COLUMNS),
        rows,
    )


def drafts(count: int) -> list[Draft]:
    speakers = (Message.assistant, Message.user)
    return [
        Draft(body=speakers[number % 2](f"{number}: {SENTENCE * 3}"), tokens=TokenCount(60, COUNTER))
        for number in range(1, count + 1)
    ]


async def filled(url: str, admin: str, size: int, *, copies: int) -> list[str]:
    """Conversations of so many messages, all but the newest archived; one is written, the others are copies of it."""
    names = [f"long-{size}-{number}" for number in range(copies)]
    async with SqlStore.open(url) as store:
        await store.create_conversation(names[0])
        written = drafts(size)
        for start in range(0, size, 2_000):
            await store.append(names[0], *written[start : start + 2_000])
        if size > SEEN:
            covers = Span(first=1, last=size - SEEN)
            await store.append(names[0], Compaction(number=1, covers=covers, summary=SENTENCE * 10))
            # What a compaction in the background leaves behind: the archive is ready to be recalled from.
            engine = Engine(store, settings=Settings(model="gpt-4o"))
            await engine.recaller.archives.fill(await store.branch(names[0]))
    async with await psycopg.AsyncConnection.connect(admin, autocommit=True) as connection:
        for table in ("conversations", "branches", "entries", "paths", "shelves"):
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
        await connection.execute("ANALYZE")
    return names


async def grow(
    report: Report, server: Server, key: str, url: str, admin: str, *, clients: int, rounds: int, seconds: float
) -> None:
    """The same view, with nothing and with ten thousand messages behind it."""
    short = await filled(url, admin, SEEN, copies=clients)
    long = await filled(url, admin, LONG, copies=clients)
    rows: list[tuple[object, ...]] = []
    for way, asking in (("last three turns", last_turns), ("only what is new", only_what_is_new)):
        found = {SEEN: Measured(server), LONG: Measured(server)}
        for names in (short, long):
            # The first turns read what is new to the process.
            await slice_of(server.port, key, asking(names), clients=clients, turns_each=3)
        for _ in range(rounds):
            for size, names in ((SEEN, short), (LONG, long)):
                await found[size].add(key, asking(names), clients=clients, seconds=seconds)
        rows += [(way, size, *measured.row) for size, measured in found.items()]
        report.at_most(f"growth_{way.replace(' ', '_')}", found[SEEN].rate / found[LONG].rate, 1.3)
    report.table(
        f"The gateway with {clients} clients whose conversations have so many messages, named by header",
        ("the client sends", "messages", *COLUMNS),
        rows,
    )


async def run(*, quick: bool) -> Report:
    report = Report("gateway")
    counts, rounds, seconds = ((1, 16, 64), 2, 1.2) if quick else ((1, 16, 64), 5, 3.0)
    with Cluster.start(18, fsync=True) as cluster:
        async with databases(cluster) as (ours, theirs):
            async with SqlStore.open(ours) as store:
                _, key = await store.create_key("bench", ("read", "write", "chat"))
            with process("upstream") as upstream:
                up = f"http://127.0.0.1:{upstream.port}/v1"
                with (
                    process("bare", up) as bare,
                    process("inserts", up, theirs) as inserts,
                    process("gateway", up, ours, str(WINDOW)) as gateway,
                ):
                    servers = {"bare": bare, "inserts": inserts, "gateway": gateway}
                    for server in servers.values():
                        await slice_of(server.port, key, whole_lists, clients=4, seconds=0.5)
                    await compare(report, servers, key, counts=counts, rounds=rounds, seconds=seconds)
                    admin = cluster.url("ours")
                    pieces = {"clients": 16, "rounds": rounds, "seconds": seconds}
                    await grow(report, gateway, key, ours, admin, **pieces)
    return report


if __name__ == "__main__":
    main(run)
