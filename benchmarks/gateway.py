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
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
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
SHORT, LONG, SEEN = 1_000, 10_000, 60
"""Messages of a conversation, and how many of them are not archived yet."""
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


class Crowd:
    """Clients of one server that go on from slice to slice, and what their turns took.

    Also what the server's own process spent on them, which tells more where others use the machine.
    """

    def __init__(self, server: "Server", key: str, asking: Asking, *, clients: int) -> None:
        self._server = server
        self._clients = [Client(server.port, key) for _ in range(clients)]
        self._turns = [asking(client, number) for number, client in enumerate(self._clients)]
        self.times: list[float] = []
        self.seconds = self.spent = 0.0

    async def warm(self, turns: int = 2) -> "Crowd":
        """The first turns make connections, and read what is new to the process."""
        for _ in range(turns):
            await asyncio.gather(*map(anext, self._turns))
        return self

    async def talk(self, seconds: float) -> None:
        began, before = time.perf_counter(), self._server.spent()

        async def run(turns: AsyncIterator[None]) -> None:
            while (start := time.perf_counter()) - began < seconds:
                await anext(turns)
                self.times.append((time.perf_counter() - start) * 1_000)

        await asyncio.gather(*map(run, self._turns))
        self.seconds += time.perf_counter() - began
        self.spent += self._server.spent() - before

    def leave(self) -> None:
        for client in self._clients:
            client.close()

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds

    @property
    def row(self) -> tuple[object, ...]:
        cuts = statistics.quantiles(self.times, n=100)
        return self.rate, cuts[49], cuts[98], 1_000 * self.spent / len(self.times)


class Server(NamedTuple):
    port: int
    pid: int

    def spent(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


COLUMNS = ("turns/s", "p50", "p99", "cpu ms/turn")


@contextmanager
def processes(*commands: tuple[str, ...]) -> Iterator[list[Server]]:
    """Some of the servers, started side by side."""
    script = str(Path(__file__).with_name("gateway_servers.py"))
    with ExitStack() as running:
        started = [
            running.enter_context(
                subprocess.Popen([sys.executable, script, *each], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for each in commands
        ]
        try:
            yield [Server(int(each.stdout.readline()), each.pid) for each in started if each.stdout is not None]
        finally:
            for each in started:
                if each.stdin is not None:
                    each.stdin.close()
                each.wait(20)


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
        crowds = {name: await Crowd(each, key, whole_lists, clients=clients).warm() for name, each in servers.items()}
        await in_turns(crowds.values(), rounds=rounds, seconds=seconds)
        rows += [(clients, name, *crowd.row) for name, crowd in crowds.items()]
        report.at_most(f"inserts_over_gateway_{clients}", crowds["inserts"].rate / crowds["gateway"].rate, 2.0)
    report.table(
        "Turns per second and milliseconds per turn; clients send the whole list, ten turns a conversation",
        ("clients", "server", *COLUMNS),
        rows,
    )


async def in_turns(crowds: Iterable[Crowd], *, rounds: int, seconds: float) -> None:
    crowds = list(crowds)
    for _ in range(rounds):
        for crowd in crowds:
            await crowd.talk(seconds)
    for crowd in crowds:
        crowd.leave()


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
    """The same view, with a thousand and with ten thousand messages behind it."""
    short = await filled(url, admin, SHORT, copies=clients)
    long = await filled(url, admin, LONG, copies=clients)
    rows: list[tuple[object, ...]] = []
    for way, asking in (("last three turns", last_turns), ("only what is new", only_what_is_new)):
        crowds = {
            size: await Crowd(server, key, asking(names), clients=clients).warm(3)
            for size, names in ((SHORT, short), (LONG, long))
        }
        await in_turns(crowds.values(), rounds=rounds, seconds=seconds)
        rows += [(way, size, *crowd.row) for size, crowd in crowds.items()]
        report.at_most(f"growth_{way.replace(' ', '_')}", crowds[SHORT].rate / crowds[LONG].rate, 1.3)
    report.table(
        f"The gateway with {clients} clients whose conversations have so many messages, named by header",
        ("the client sends", "messages", *COLUMNS),
        rows,
    )


async def run(*, quick: bool) -> Report:
    report = Report("gateway")
    counts, rounds, seconds = ((1, 16, 64), 2, 0.8) if quick else ((1, 16, 64), 5, 3.0)
    with Cluster.start(18, fsync=True) as cluster:
        async with databases(cluster) as (ours, theirs):
            async with SqlStore.open(ours) as store:
                _, key = await store.create_key("bench", ("read", "write", "chat"))
            with processes(("upstream",)) as [upstream]:
                up = f"http://127.0.0.1:{upstream.port}/v1"
                commands = (("bare", up), ("inserts", up, theirs), ("gateway", up, ours, str(WINDOW)))
                with processes(*commands) as (bare, inserts, gateway):
                    servers = {"bare": bare, "inserts": inserts, "gateway": gateway}
                    await compare(report, servers, key, counts=counts, rounds=rounds, seconds=seconds)
                    pieces = {"clients": 8 if quick else 16, "rounds": rounds, "seconds": seconds}
                    await grow(report, gateway, key, ours, cluster.url("ours"), **pieces)
    return report


if __name__ == "__main__":
    main(run)
