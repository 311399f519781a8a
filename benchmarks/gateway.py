"""The gateway on PostgreSQL against two bare FastAPI proxies: one without a store, one that does the same inserts.

Every server runs in its own process, on loopback, with an upstream that answers at once; the clients run in this one.
A turn is one question and one reply of sixty tokens. The servers are measured alternately, slice by slice, so that a
slow moment of the machine affects all of them. QUIRE_PROFILE=file writes a cProfile of the gateway.
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
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import dict_row

from infra.postgres import Cluster
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import index_messages
from quire.log import SqlStore, migrate, schema
from quire.log.ids import new_id
from quire.log.row_digests import with_row_digest
from quire.model import Compaction, Draft, Message, Span, TokenCount
from quire.settings import Settings
from support import Report, run_benchmark

SENTENCE = "The river carries more water in spring than in autumn, and the mill runs day and night. "
SYSTEM_PROMPT = "You keep the books of a mill, and answer in one sentence. " * 8
QUESTION_TEXT, REPLY_TEXT = SENTENCE * 3, "The mill runs. " * 12
TURNS_PER_CONVERSATION = 10
"""Turns after which a client starts a new conversation; until then it sends the whole history."""
WINDOW_TOKENS = 8_192
SHORT_MESSAGES, LONG_MESSAGES, ACTIVE_MESSAGES = 1_000, 10_000, 60
"""Messages of a conversation, and those that are not archived."""
COUNTER = "openai:o200k_base"
MAX_FORMAT_COST = 1.3
"""Goal: CPU time of a turn in another format, divided by that of chat completions."""


class Client:
    """Minimal HTTP client on a persistent connection."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key = port, key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: bytes, conversation: str, *, path: str = "/v1/chat/completions") -> bytes:
        try:
            return await self._send(body, conversation, path)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                raise
        # The server closed the idle connection while other servers were measured.
        self.close()
        self._streams = None
        return await self._send(body, conversation, path)

    async def _send(self, body: bytes, conversation: str, path: str) -> bytes:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = (
            f"POST {path} HTTP/1.1\r\nhost: quire\r\nauthorization: Bearer {self._key}\r\n"
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


ClientScript = Callable[[Client, int], AsyncIterator[None]]


def build_body(messages: list[dict[str, str]]) -> bytes:
    return json.dumps(
        {"model": "gpt-4o", "messages": [{"role": "system", "content": SYSTEM_PROMPT}, *messages]}
    ).encode()


async def send_full_history(client: Client, number: int) -> AsyncIterator[None]:
    """Sends the whole history, and starts a new conversation after some turns."""
    while True:
        conversation, history = new_id(), list[dict[str, str]]()
        for turn in range(TURNS_PER_CONVERSATION):
            history.append({"role": "user", "content": f"{number} {turn} {QUESTION_TEXT}"})
            answer = await client.ask(build_body(history), conversation)
            history.append({"role": "assistant", "content": json.loads(answer)["choices"][0]["message"]["content"]})
            yield


class WireShape(NamedTuple):
    """How a client of one format sends its history and reads the reply; the chat-only model has another name."""

    path: str
    build_body: Callable[[str, list[dict[str, str]]], dict[str, object]]
    read_text: Callable[[Any], str]


SHAPES = {
    "chat": WireShape(
        "/v1/chat/completions",
        lambda model, history: {"model": model, "messages": [{"role": "system", "content": SYSTEM_PROMPT}, *history]},
        lambda answer: answer["choices"][0]["message"]["content"],
    ),
    "messages": WireShape(
        "/v1/messages",
        lambda model, history: {"model": model, "max_tokens": 512, "system": SYSTEM_PROMPT, "messages": history},
        lambda answer: answer["content"][0]["text"],
    ),
    "responses": WireShape(
        "/v1/responses",
        lambda model, history: {"model": model, "instructions": SYSTEM_PROMPT, "input": history},
        lambda answer: answer["output"][0]["content"][0]["text"],
    ),
}
NATIVE_MODEL, CHAT_ONLY_MODEL = "gpt-4o", "gpt-4o-mini"


def send_in_format(shape: WireShape, model: str) -> ClientScript:
    """Sends the whole history in one of the formats, and starts a new conversation after some turns."""

    async def asking(client: Client, number: int) -> AsyncIterator[None]:
        while True:
            conversation, history = new_id(), list[dict[str, str]]()
            for turn in range(TURNS_PER_CONVERSATION):
                history.append({"role": "user", "content": f"{number} {turn} {QUESTION_TEXT}"})
                body = json.dumps(shape.build_body(model, history)).encode()
                answer = json.loads(await client.ask(body, conversation, path=shape.path))
                history.append({"role": "assistant", "content": shape.read_text(answer)})
                yield

    return asking


async def compare_formats(
    report: Report, server: "ServerProcess", key: str, *, clients: int, rounds: int, seconds: float
) -> None:
    """Compares the formats with chat completions, passed through and translated."""
    ways = {
        **{name: (shape, NATIVE_MODEL) for name, shape in SHAPES.items()},
        **{f"{name} to chat": (SHAPES[name], CHAT_ONLY_MODEL) for name in ("messages", "responses")},
    }
    crowds = {
        name: await ClientGroup(server, key, send_in_format(shape, model), clients=clients).warm_up()
        for name, (shape, model) in ways.items()
    }
    await run_interleaved(crowds.values(), rounds=rounds, seconds=seconds)
    for name, crowd in crowds.items():
        if name != "chat":
            ratio = crowd.cpu_per_turn / crowds["chat"].cpu_per_turn
            report.require_at_most(f"cpu_of_{name.replace(' ', '_')}_to_chat", ratio, MAX_FORMAT_COST)
    report.print_table(
        f"The gateway with {clients} clients, by format; clients send the whole list, ten turns a conversation",
        ("format", *COLUMNS),
        [(name, *crowd.row) for name, crowd in crowds.items()],
    )


def send_last_turns(names: list[str]) -> ClientScript:
    """Sends the last three turns of a conversation that it names."""

    async def asking(client: Client, number: int) -> AsyncIterator[None]:
        history, began = list[dict[str, str]](), new_id()
        for turn in range(1_000_000):
            history = [*history, {"role": "user", "content": f"{began} {turn} {QUESTION_TEXT}"}][-7:]
            answer = await client.ask(build_body(history), names[number])
            history.append({"role": "assistant", "content": json.loads(answer)["choices"][0]["message"]["content"]})
            yield

    return asking


def send_new_messages(names: list[str]) -> ClientScript:
    """Sends the question alone, and leaves the history to Quire."""

    async def asking(client: Client, number: int) -> AsyncIterator[None]:
        for turn in range(1_000_000):
            await client.ask(
                build_body([{"role": "user", "content": f"{number} {turn} {QUESTION_TEXT}"}]), names[number]
            )
            yield

    return asking


class ClientGroup:
    """Clients of one server that continue from slice to slice, with the latency of their turns.

    Also the CPU time of the server's process, which is the better measure on a shared machine.
    """

    def __init__(self, server: "ServerProcess", key: str, asking: ClientScript, *, clients: int) -> None:
        self._server = server
        self._clients = [Client(server.port, key) for _ in range(clients)]
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


class ServerProcess(NamedTuple):
    port: int
    pid: int

    def read_cpu_seconds(self) -> float:
        """Reads the CPU seconds of the process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


COLUMNS = ("turns/s", "p50", "p99", "cpu ms/turn")


@contextmanager
def start_servers(*commands: tuple[str, ...]) -> Iterator[list[ServerProcess]]:
    """Starts servers of `gateway_servers.py`."""
    script = str(Path(__file__).with_name("gateway_servers.py"))
    with ExitStack() as running:
        started = [
            running.enter_context(
                subprocess.Popen([sys.executable, script, *each], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for each in commands
        ]
        try:
            yield [ServerProcess(int(each.stdout.readline()), each.pid) for each in started if each.stdout is not None]
        finally:
            for each in started:
                if each.stdin is not None:
                    each.stdin.close()
                each.wait(20)


@asynccontextmanager
async def create_databases(cluster: Cluster) -> AsyncIterator[tuple[str, str]]:
    """Creates two databases with Quire's tables, so that the servers do not share rows."""
    cluster.create_role("quire_app")
    urls: list[str] = []
    for name in ("ours", "theirs"):
        cluster.create_database(name)
        migrate.upgrade(cluster.url(name))
        migrate.grant_access(cluster.url(name), "quire_app")
        urls.append(cluster.url(name, user="quire_app"))
    yield urls[0], urls[1]


async def compare_servers(
    report: Report, servers: dict[str, ServerProcess], key: str, *, counts: tuple[int, ...], rounds: int, seconds: float
) -> None:
    rows: list[tuple[object, ...]] = []
    for clients in counts:
        crowds = {
            name: await ClientGroup(each, key, send_full_history, clients=clients).warm_up()
            for name, each in servers.items()
        }
        await run_interleaved(crowds.values(), rounds=rounds, seconds=seconds)
        rows += [(clients, name, *crowd.row) for name, crowd in crowds.items()]
        report.require_at_most(f"inserts_over_gateway_{clients}", crowds["inserts"].rate / crowds["gateway"].rate, 2.0)
    report.print_table(
        "Turns per second and milliseconds per turn; clients send the whole list, ten turns a conversation",
        ("clients", "server", *COLUMNS),
        rows,
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
    """Compares conversations with the same view, of a thousand and of ten thousand messages."""
    short = await create_long_conversations(url, admin, SHORT_MESSAGES, copies=clients)
    long = await create_long_conversations(url, admin, LONG_MESSAGES, copies=clients)
    rows: list[tuple[object, ...]] = []
    for way, asking in (("last three turns", send_last_turns), ("new messages only", send_new_messages)):
        crowds = {
            size: await ClientGroup(server, key, asking(names), clients=clients).warm_up(3)
            for size, names in ((SHORT_MESSAGES, short), (LONG_MESSAGES, long))
        }
        await run_interleaved(crowds.values(), rounds=rounds, seconds=seconds)
        rows += [(way, size, *crowd.row) for size, crowd in crowds.items()]
        report.require_at_most(
            f"growth_{way.replace(' ', '_')}", crowds[SHORT_MESSAGES].rate / crowds[LONG_MESSAGES].rate, 1.3
        )
    report.print_table(
        f"The gateway with {clients} clients, by messages of their conversation, which a header names",
        ("the client sends", "messages", *COLUMNS),
        rows,
    )


async def run(*, quick: bool) -> Report:
    report = Report("gateway")
    counts, rounds, seconds = ((1, 16, 64), 2, 0.8) if quick else ((1, 16, 64), 5, 3.0)
    with Cluster.start(18, fsync=True) as cluster:
        async with create_databases(cluster) as (ours, theirs):
            async with SqlStore.open(ours) as store:
                _, key = await store.create_key("bench", ("read", "write", "chat"))
            with start_servers(("upstream",)) as [upstream]:
                up = f"http://127.0.0.1:{upstream.port}/v1"
                commands = (("bare", up), ("inserts", up, theirs), ("gateway", up, ours, str(WINDOW_TOKENS)))
                with start_servers(*commands) as (bare, inserts, gateway):
                    servers = {"bare": bare, "inserts": inserts, "gateway": gateway}
                    await compare_servers(report, servers, key, counts=counts, rounds=rounds, seconds=seconds)
                    await compare_formats(report, gateway, key, clients=8, rounds=rounds * 2, seconds=seconds)
                    pieces = {"clients": 8 if quick else 16, "rounds": rounds, "seconds": seconds}
                    await measure_growth(report, gateway, key, ours, cluster.url("ours"), **pieces)
    return report


if __name__ == "__main__":
    run_benchmark(run)
