"""Cost of a turn on PostgreSQL: bytes on disk per message and manifest, statements and round trips per turn.

The figures of docs/scale.md. The engine writes turns, which are then copied under other ids, so that the tables are
large enough for their size to be that of rows, not of empty pages.
"""

import argparse
import asyncio
import random
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import httpx2
import psycopg

from fake_upstream import UpstreamRequest, run_fake_upstream
from infra.postgres import Cluster, PostgresServer
from quire.db import migrate
from quire.engine import Conversation, Engine, open_engine
from quire.server.app import create_app
from quire.server.state import ServerState
from quire.server.turn_registry import BranchKey
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import DEFAULT_TENANT, SqlStore
from quire.testing.scripted_model import ScriptedModel

SENTENCES = (
    "the river carries more water in spring than autumn and mill runs day night when sluice is open its keeper walks "
    "along bank with lantern to see whether ice has come down from hills which it does most years before April"
)
WORDS = SENTENCES.split()
VERBOSE = "--verbose" in sys.argv
WRITE = re.compile(r"\b(INSERT INTO|UPDATE \S+ SET|DELETE FROM)\b")
"""A statement that writes, also as a part of another."""
QUICK_MESSAGES = 4_000
TURNS_PER_CONVERSATION = 10
"""Questions in a conversation, each with its reply."""
TABLE_SIZES_QUERY = (
    "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind IN ('r', 'p') AND relname LIKE 'quire%'"
)


def make_sentence(dice: random.Random, words: int = 48) -> str:
    """About sixty tokens."""
    return " ".join(dice.choice(WORDS) for _ in range(words)) + "."


async def create_conversations(engine: Engine, conversations: int) -> None:
    dice = random.Random(7)
    for number in range(conversations):
        conversation = await engine.conversation(f"{number:026}")
        for _ in range(TURNS_PER_CONVERSATION):
            request = await conversation.prepare(make_sentence(dice))
            await conversation.record(make_sentence(dice), request=request)


COPIED_TABLES = {
    "conversations": "conversation",
    "branches": "conversation",
    "entries": "conversation",
    "paths": "conversation",
    "manifests": "conversation",
    "blob_uses": "conversation",
    "costs": "conversation",
}


def copy_conversations(connection: "psycopg.Connection[Any]", times: int) -> None:
    """Copies every conversation `times` times, under other ids."""
    for table, column in COPIED_TABLES.items():
        columns = [
            name
            for (name,) in connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position",
                [f"quire_{table}"],
            )
        ]
        chosen = ", ".join(f"{name} || '-' || made" if name == column else name for name in columns)
        connection.execute(
            f"INSERT INTO quire_{table} ({', '.join(columns)}) "
            f"SELECT {chosen} FROM quire_{table}, generate_series(1, %s) AS made",
            [times],
        )
    connection.execute("VACUUM ANALYZE")


def measure_tables(connection: "psycopg.Connection[Any]") -> Iterator[tuple[str, int, int]]:
    """Yields each table with its rows and bytes, including indexes and partitions."""
    bytes_of: dict[str, int] = {}
    for relation, size in connection.execute(TABLE_SIZES_QUERY):
        name = relation.removeprefix("quire_").rstrip("0123456789").rstrip("_")
        bytes_of[name] = bytes_of.get(name, 0) + size
    for name, size in sorted(bytes_of.items(), key=lambda item: -item[1]):
        [(rows,)] = connection.execute(f"SELECT count(*) FROM quire_{name}").fetchall()
        if rows:
            yield name, rows, size


class CountingProxy:
    """TCP proxy that counts round trips: each client message after a server message is one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.round_trips = 0

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[int]:
        """Yields the port to connect to."""
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inward, outward = await asyncio.open_connection("127.0.0.1", self._port)
        answered = True

        async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, *, asking: bool) -> None:
            nonlocal answered
            while data := await source.read(65_536):
                if asking and answered:
                    self.round_trips += 1
                answered = not asking
                target.write(data)
                await target.drain()
            target.close()

        # Connections that are still open at the end are cancelled.
        with suppress(asyncio.CancelledError):
            await asyncio.gather(
                pass_on(reader, outward, asking=True), pass_on(inward, writer, asking=False), return_exceptions=True
            )


@contextmanager
def count_statements(connection: "psycopg.Connection[Any]", way: CountingProxy, what: str) -> Iterator[None]:
    """Prints the transactions, round trips and statements of the block."""
    connection.execute("SELECT pg_stat_statements_reset()")
    before = way.round_trips
    yield
    trips = way.round_trips - before
    statements = connection.execute(
        "SELECT query, calls FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'"
    ).fetchall()
    if VERBOSE:
        for query, calls in statements:
            print(f"    {calls} x {' '.join(query.split())[:110]}")
    transactions = sum(calls for query, calls in statements if query.startswith("BEGIN"))
    # Without the statements that begin a transaction, set its tenant and its time limit, notify and end it.
    others = [
        (query, calls)
        for query, calls in statements
        if "set_config" not in query and not query.startswith(("BEGIN", "SET LOCAL", "COMMIT"))
    ]
    writes = sum(calls for query, calls in others if WRITE.search(query))
    count = sum(calls for _, calls in others)
    print(f"{what}: {transactions} transactions, {trips} round trips, {count} statements, of these {writes} writes")


async def count_engine_turns(url: str, owner: "psycopg.Connection[Any]", way: CountingProxy) -> None:
    async with open_engine(url, model="gpt-4o") as engine:
        dice = random.Random(3)
        conversation = await engine.conversation("counted")
        for _ in range(8):  # Until every statement was met, and the driver has prepared those that it will.
            request = await conversation.prepare(make_sentence(dice))
            await conversation.record(make_sentence(dice), request=request)
        await _count_call(owner, way, "load the window", lambda: engine.store.read_window("counted"))
        await _count_call(owner, way, "append one message", lambda: conversation.append(make_sentence(dice)))
        await _count_call(owner, way, "prepare a request", lambda: conversation.prepare(make_sentence(dice)))
        prepared = await conversation.prepare(make_sentence(dice))
        await _count_call(
            owner, way, "record its reply", lambda: conversation.record(make_sentence(dice), request=prepared)
        )


async def count_server_turns(url: str, owner: "psycopg.Connection[Any]", way: CountingProxy) -> None:
    dice = random.Random(4)
    async with SqlStore.open(url) as store, httpx2.AsyncClient() as client:
        state = ServerState(store, Settings(model="gpt-4o"), http_client=client)
        conversation = await state.engine_for(DEFAULT_TENANT).conversation("sent")
        model = ScriptedModel(make_sentence(dice), repeat=True)
        for _ in range(8):
            await _run_turn(state, conversation, make_sentence(dice), model)
        await _count_call(
            owner, way, "a turn of the server", lambda: _run_turn(state, conversation, make_sentence(dice), model)
        )
        await state.wait_for_background()


async def _run_turn(state: ServerState, conversation: Conversation, question: str, model: ScriptedModel) -> None:
    await state.turns.start(BranchKey(DEFAULT_TENANT, conversation.id, 0), conversation, question, model=model)
    await state.turns.wait_until_idle()


async def count_gateway_turns(url: str, owner: "psycopg.Connection[Any]", way: CountingProxy) -> None:
    """Counts turns through the gateway, of a client that names its conversation and of one that does not."""
    dice = random.Random(5)

    async def reply(request: UpstreamRequest) -> None:
        message = {"role": "assistant", "content": make_sentence(dice)}
        usage = {"prompt_tokens": 100, "completion_tokens": 60, "total_tokens": 160}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        await request.respond({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage})

    async with SqlStore.open(url) as store, UpstreamClient() as outward, run_fake_upstream(reply) as upstream:
        settings = Settings(model="gpt-4o", base_url=upstream.url)
        app = create_app(ServerState(store, settings, http_client=outward), token="token")
        headers = {"Authorization": "Bearer token"}
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
            for what, named in (("by its name", {"X-Quire-Conversation": "named"}), ("by its messages", {})):
                messages: list[dict[str, str]] = []

                async def ask(named: dict[str, str] = named, messages: list[dict[str, str]] = messages) -> None:
                    messages.append({"role": "user", "content": make_sentence(dice)})
                    body = {"model": "gpt-4o", "messages": messages}
                    answer = await client.post("/v1/chat/completions", json=body, headers=named)
                    messages.append(answer.raise_for_status().json()["choices"][0]["message"])

                for _ in range(8):
                    await ask()
                await _count_call(owner, way, f"a turn of the gateway, known {what}", ask)


async def _count_call(
    owner: "psycopg.Connection[Any]", way: CountingProxy, what: str, work: Callable[[], Awaitable[Any]]
) -> None:
    with count_statements(owner, way, what):
        await work()
        await asyncio.sleep(0.05)


async def count_all(cluster: Cluster, owner: "psycopg.Connection[Any]") -> None:
    way = CountingProxy(cluster.port)
    async with way.open() as port:
        url = PostgresServer(port).url("quire")
        await count_engine_turns(url, owner, way)
        await count_server_turns(url, owner, way)
        await count_gateway_turns(url, owner, way)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="every statement")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--quick", action="store_true", help="4,000 messages, under a minute")
    options = parser.parse_args()
    target: int = QUICK_MESSAGES if options.quick else options.messages
    made = 100
    settings = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track_utility": "on"}
    with Cluster.start(18, settings=settings) as cluster:
        cluster.create_database("quire")
        url = cluster.url("quire")
        migrate.upgrade(url)

        async def fill() -> None:
            async with open_engine(url, model="gpt-4o") as engine:
                await create_conversations(engine, made)

        asyncio.run(fill())
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute("CREATE EXTENSION pg_stat_statements")
            copy_conversations(owner, max(0, target // (made * TURNS_PER_CONVERSATION * 2) - 1))
            messages = total = 0
            for name, rows, size in measure_tables(owner):
                print(f"{name:16} {rows:>9,} rows {size:>13,} bytes {size / rows:>8,.0f} a row")
                messages = rows if name == "entries" else messages
                total += size
            print(f"in all           {messages:>9,} messages {total:>9,} bytes {total / messages:>8,.0f} a message")
            body = owner.execute(
                "SELECT avg(length(body)), avg(length(manifest)) FROM quire_entries, LATERAL "
                "(SELECT manifest FROM quire_manifests LIMIT 1) AS one"
            ).fetchone()
            print(f"a body has {body[0]:.0f} characters, a manifest {body[1]:.0f}" if body else "")
            asyncio.run(count_all(cluster, owner))


if __name__ == "__main__":
    sys.exit(main())
