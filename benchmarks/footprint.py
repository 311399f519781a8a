"""What a turn costs PostgreSQL: bytes on disk for each message and manifest, statements and round trips for each turn.

The figures of docs/scale.md. Turns are made by the engine and then copied under other names, so that tables are large
enough for their bytes to be those of rows, not of empty pages.
"""

import argparse
import asyncio
import random
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import httpx
import psycopg

from quire.agent.loop import turn
from quire.engine import Conversation, Engine, open_engine
from quire.log import SqlStore, migrate
from quire.server.app import create_app
from quire.server.serving import Serving
from quire.settings import Settings
from quire.testing.postgres import Cluster, Server
from quire.testing.scripted import ScriptedModel

SENTENCES = (
    "the river carries more water in spring than autumn and mill runs day night when sluice is open its keeper walks "
    "along bank with lantern to see whether ice has come down from hills which it does most years before April"
)
WORDS = SENTENCES.split()
VERBOSE = "--verbose" in sys.argv
TURNS = 10
"""Questions in a conversation, each with its reply."""
TOTALS = (
    "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind IN ('r', 'p') AND relname LIKE 'quire%'"
)


def said(dice: random.Random, words: int = 48) -> str:
    """About sixty tokens."""
    return " ".join(dice.choice(WORDS) for _ in range(words)) + "."


async def told(engine: Engine, conversations: int) -> None:
    dice = random.Random(7)
    for number in range(conversations):
        conversation = await engine.conversation(f"{number:026}")
        for _ in range(TURNS):
            await conversation.prepare(said(dice))
            await conversation.record(said(dice))


COPIED = {
    "conversations": "conversation",
    "branches": "conversation",
    "entries": "conversation",
    "paths": "conversation",
    "manifests": "conversation",
    "blob_uses": "conversation",
    "spending": "conversation",
}


def copy(connection: "psycopg.Connection[Any]", times: int) -> None:
    """Every conversation so many times more, under other names."""
    for table, column in COPIED.items():
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


def sizes(connection: "psycopg.Connection[Any]") -> Iterator[tuple[str, int, int]]:
    """Each table with its rows and its bytes, indexes and partitions included."""
    bytes_of: dict[str, int] = {}
    for relation, size in connection.execute(TOTALS):
        name = relation.removeprefix("quire_").rstrip("0123456789").rstrip("_")
        bytes_of[name] = bytes_of.get(name, 0) + size
    for name, size in sorted(bytes_of.items(), key=lambda item: -item[1]):
        [(rows,)] = connection.execute(f"SELECT count(*) FROM quire_{name}").fetchall()
        if rows:
            yield name, rows, size


class Way:
    """The way to the server, on which each turn from speaking to listening is a round trip."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.trips = 0

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[int]:
        """Gives the port to connect to."""
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inward, outward = await asyncio.open_connection("127.0.0.1", self._port)
        answered = True

        async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, *, asking: bool) -> None:
            nonlocal answered
            while data := await source.read(65_536):
                if asking and answered:
                    self.trips += 1
                answered = not asking
                target.write(data)
                await target.drain()
            target.close()

        # Whoever is still connected at the end is cut off.
        with suppress(asyncio.CancelledError):
            await asyncio.gather(
                pass_on(reader, outward, asking=True), pass_on(inward, writer, asking=False), return_exceptions=True
            )


@contextmanager
def counted(connection: "psycopg.Connection[Any]", way: Way, what: str) -> Iterator[None]:
    """Prints what the server was asked meanwhile."""
    connection.execute("SELECT pg_stat_statements_reset()")
    before = way.trips
    yield
    trips = way.trips - before
    asked = connection.execute(
        "SELECT query, calls FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'"
    ).fetchall()
    if VERBOSE:
        for query, calls in asked:
            print(f"    {calls} x {' '.join(query.split())[:110]}")
    begun = sum(calls for query, calls in asked if query.startswith("BEGIN"))
    writes = sum(calls for query, calls in asked if query.lstrip().startswith(("INSERT", "UPDATE", "DELETE")))
    # Those that begin a transaction, name its tenant and end it are not counted among its statements.
    others = sum(calls for query, calls in asked if "set_config" not in query and not query.startswith("BEGIN"))
    print(f"{what}: {begun} transactions, {trips} round trips, {others} statements, of these {writes} writes")


async def counting(url: str, owner: "psycopg.Connection[Any]", way: Way) -> None:
    async with open_engine(url, model="gpt-4o") as engine:
        dice = random.Random(3)
        conversation = await engine.conversation("counted")
        for _ in range(8):  # Until every statement was met, and the driver has prepared those that it will.
            await conversation.prepare(said(dice))
            await conversation.record(said(dice))
        await _count(owner, way, "load the window", lambda: engine.store.window("counted"))
        await _count(owner, way, "append one message", lambda: conversation.append(said(dice)))
        await _count(owner, way, "prepare a request", lambda: conversation.prepare(said(dice)))
        await _count(owner, way, "record its reply", lambda: conversation.record(said(dice)))
        model = ScriptedModel(said(dice), repeat=True)
        await _count(owner, way, "a turn of the server", lambda: _taken(conversation, said(dice), model))


async def _taken(conversation: Conversation, question: str, model: ScriptedModel) -> None:
    async for _ in turn(conversation, question, model=model):
        pass


async def counting_gateway(url: str, owner: "psycopg.Connection[Any]", way: Way) -> None:
    """Turns through the gateway, of a client that names its conversation and of one that does not."""
    dice = random.Random(5)

    def upstream(request: httpx.Request) -> httpx.Response:
        message = {"role": "assistant", "content": said(dice)}
        usage = {"prompt_tokens": 100, "completion_tokens": 60, "total_tokens": 160}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx.Response(200, json={"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage})

    settings = Settings(model="gpt-4o", base_url="http://upstream/v1")
    async with (
        SqlStore.open(url) as store,
        httpx.AsyncClient(transport=httpx.MockTransport(upstream)) as outward,
    ):
        app = create_app(Serving(store, settings, client=outward), token="token")
        headers = {"Authorization": "Bearer token"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
            for what, named in (("by its name", {"X-Quire-Conversation": "named"}), ("by its messages", {})):
                messages: list[dict[str, str]] = []

                async def ask(named: dict[str, str] = named, messages: list[dict[str, str]] = messages) -> None:
                    messages.append({"role": "user", "content": said(dice)})
                    body = {"model": "gpt-4o", "messages": messages}
                    answer = await client.post("/v1/chat/completions", json=body, headers=named)
                    messages.append(answer.raise_for_status().json()["choices"][0]["message"])

                for _ in range(8):
                    await ask()
                await _count(owner, way, f"a turn of the gateway, known {what}", ask)


async def _count(owner: "psycopg.Connection[Any]", way: Way, what: str, work: Callable[[], Awaitable[Any]]) -> None:
    with counted(owner, way, what):
        await work()
        await asyncio.sleep(0.05)


async def count_all(cluster: Cluster, owner: "psycopg.Connection[Any]") -> None:
    way = Way(cluster.port)
    async with way.open() as port:
        url = Server(port).url("quire")
        await counting(url, owner, way)
        await counting_gateway(url, owner, way)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="every statement")
    parser.add_argument("--messages", type=int, default=50_000)
    wanted: int = parser.parse_args().messages
    made = 100
    settings = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track_utility": "on"}
    with Cluster.start(18, settings=settings) as cluster:
        cluster.create_database("quire")
        url = cluster.url("quire")
        migrate.upgrade(url)

        async def fill() -> None:
            async with open_engine(url, model="gpt-4o") as engine:
                await told(engine, made)

        asyncio.run(fill())
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute("CREATE EXTENSION pg_stat_statements")
            copy(owner, max(0, wanted // (made * TURNS * 2) - 1))
            messages = total = 0
            for name, rows, size in sizes(owner):
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
