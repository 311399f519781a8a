"""`prepare` beside the bare read of the rows that it uses, and beside two peers that do a part of the same.

Peers: LangChain's `trim_messages` with an exact counter, and the OpenAI Agents SDK's `SQLiteSession.get_items`. Each
conversation is one of N messages of about sixty tokens, the budget is 8,000 tokens, and there is no recall.
Also: counting at append beside the bare tokenizer, and all bookkeeping of a turn on SQLite.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
from agents import SQLiteSession
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, trim_messages

from log import SENTENCE, BarePostgres, BareSqlite
from quire.engine import Conversation, Engine
from quire.log import SqlStore, migrate
from quire.model import Message, TokenCount
from quire.model.entries import Draft
from quire.settings import Settings
from quire.testing.postgres import Cluster
from quire.view.tokens import counter_for
from support import Report, main, medians, ratio

BUDGET = 8_000
ROUNDS = 60
LENGTHS = {"60 tokens each": (25,), "20 to 700 tokens, as chats have them": (8, 25, 60, 120, 300)}
"""Words a message. Of a short one the tokenizer makes so little work that fetching the message from memory shows."""


def text(number: int) -> str:
    return f"{number}: {SENTENCE * 3}"


def varied(number: int, words: int) -> str:
    """Words that do not repeat from one text to the next, so that the tokenizer's cache does not help."""
    chance = random.Random(number)
    return " ".join("".join(chance.choices("etaoinshrdlu", k=chance.randrange(2, 9))) for _ in range(words))


def quire_engine(store: SqlStore) -> Engine:
    settings = Settings(model="gpt-4o", context_limit=BUDGET + 512, strategy="discard", context_threshold=1.0)
    return Engine(store, settings=settings, instructions="Be brief.")


async def fill(engine: Engine, size: int) -> Conversation:
    conversation = await engine.conversation(f"{size:07}")
    tokens = engine.meter.count(Message.user(text(12_345)))
    for start in range(0, size, 2_000):
        drafts = [
            Draft(
                body=(Message.user, Message.assistant)[number % 2](text(number)),
                tokens=TokenCount(tokens, engine.meter.name),
            )
            for number in range(start, min(start + 2_000, size))
        ]
        await engine.store.append(conversation.id, *drafts)
    await conversation.prepare("The first request cuts the history to what fits.")
    return conversation


def langchain_trim(size: int) -> Callable[[], Any]:
    history: list[BaseMessage] = [(HumanMessage, AIMessage)[n % 2](text(n)) for n in range(size)]
    encode = counter_for("gpt-4o").count

    def count(messages: list[BaseMessage]) -> int:
        return sum(3 + encode(str(message.content)) for message in messages)

    asked = [*history, HumanMessage("And now?")]
    return lambda: trim_messages(asked, max_tokens=BUDGET, token_counter=count, strategy="last", start_on="human")


async def agents_session(folder: Path, size: int) -> Callable[[], Awaitable[Any]]:
    session = SQLiteSession(f"{size}", folder / "agents.db")
    items = [{"role": ("user", "assistant")[n % 2], "content": text(n)} for n in range(size)]
    for start in range(0, size, 5_000):
        await session.add_items(items[start : start + 5_000])  # type: ignore[arg-type]
    return session.get_items


async def compare(report: Report, name: str, engine: Engine, sizes: list[int], bare: Callable[..., Any]) -> list[float]:
    """Our medians by size; each is taken in turn with the bare read of the same window."""
    ours: list[float] = []
    ratios: list[float] = []
    conversations = {size: await fill(engine, size) for size in sizes}
    small, large = conversations[1_000], conversations[sizes[-1]]
    _, growth = await ratio(lambda: large.prepare("And now?"), lambda: small.prepare("And now?"), rounds=ROUNDS)
    for conversation in conversations.values():
        window = await engine.store.window(conversation.id)
        read = bare(conversation.id, window)
        prepared, times_bare = await ratio(lambda c=conversation: c.prepare("And now?"), read, rounds=ROUNDS)
        ours.append(prepared)
        ratios.append(times_bare)
    report.at_most(f"{name}_growth_1000_to_{sizes[-1]}", growth, 1.3)
    report.at_most(f"{name}_vs_bare_read", max(ratios[1:]), 3.0)
    report.table(
        f"{name}: prepare, milliseconds, and times the bare read",
        ("messages", "prepare", "x bare"),
        list(zip(sizes, ours, ratios, strict=True)),
    )
    return ours


async def counting(report: Report) -> None:
    from splintr import Tokenizer

    encode = Tokenizer.from_pretrained("o200k_base").encode_ordinary
    settings = Settings(model="gpt-4o")
    async with SqlStore.open("sqlite://") as store:
        meter = Engine(store, settings=settings).meter
        rows: list[tuple[object, ...]] = []
        for name, lengths in LENGTHS.items():
            texts = [varied(number, lengths[number % len(lengths)]) for number in range(1_000)]
            said = [Message.user(each) for each in texts]
            whole, times_bare = await ratio(
                lambda said=said: [meter.count(each) for each in said],
                lambda texts=texts: [len(encode(each)) for each in texts],
                rounds=25,
            )
            rows.append((name, whole, times_bare))
    report.table("counting 1,000 messages", ("", "milliseconds", "x bare tokenizer"), rows)
    times_bare = float(str(rows[-1][2]))
    report.at_most("counting_vs_bare", times_bare, 1.15)


async def bookkeeping(report: Report, folder: Path) -> None:
    async with SqlStore.open(f"sqlite:///{folder}/turns.db") as store:
        conversation = await fill(quire_engine(store), 1_000)
        taken: list[float] = []
        for turn in range(200):
            start = time.perf_counter()
            request = await conversation.prepare(f"Question {turn}: {SENTENCE}")
            request.to_openai()
            await conversation.record(SENTENCE * 2, request=request)
            taken.append((time.perf_counter() - start) * 1_000)
    report.at_most("turn_bookkeeping_ms", statistics.median(taken), 10.0)


async def run(*, quick: bool) -> Report:
    report = Report("view")
    sizes = [100, 1_000, 10_000] if quick else [100, 1_000, 10_000, 100_000]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "quire.db"
        async with SqlStore.open(f"sqlite:///{path}") as store:

            def bare_sqlite(conversation: str, window: Any) -> Any:
                return read_of(BareSqlite(path, conversation, window.branch.head_seq), window)

            sqlite_times = await compare(report, "sqlite", quire_engine(store), sizes, bare_sqlite)
        peers: list[tuple[object, ...]] = []
        for size, ours in zip(sizes, sqlite_times, strict=True):
            trim = langchain_trim(size)
            items = await agents_session(folder, size)
            rounds = 3 if size >= 10_000 else 10
            trimmed, got = await medians(trim, items, rounds=rounds)
            peers.append((size, ours, trimmed, got))
            if size >= 1_000:
                report.at_most(f"vs_trim_messages_{size}", ours / trimmed, 1.0)
                report.at_most(f"vs_agents_session_{size}", ours / got, 1.0)
        report.table(
            "beside peers, milliseconds", ("messages", "quire on SQLite", "trim_messages", "SQLiteSession"), peers
        )
        await counting(report)
        await bookkeeping(report, folder)
    await on_postgres(report, sizes)
    return report


def read_of(bare: Any, window: Any) -> Any:
    """The bare read of just the rows that the request uses."""
    first = window.messages[0].seq if window.messages else 1
    bare.known |= {"first": first, "last": window.branch.head_seq}
    return bare.window


async def on_postgres(report: Report, sizes: list[int]) -> None:
    with Cluster.start(18) as cluster:
        cluster.create_database("quire")
        cluster.create_role("quire_app")
        migrate.upgrade(cluster.url("quire"))
        migrate.grant(cluster.url("quire"), "quire_app")
        url = cluster.url("quire", user="quire_app")
        async with SqlStore.open(url) as store, await psycopg.AsyncConnection.connect(url, autocommit=True) as driver:

            def bare_postgres(conversation: str, window: Any) -> Any:
                return read_of(BarePostgres(driver, conversation, window.branch.head_seq), window)

            await compare(report, "postgres", quire_engine(store), sizes, bare_postgres)


if __name__ == "__main__":
    main(run)
