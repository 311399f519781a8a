"""`prepare` compared with the bare read of the rows that it uses, and with two peers that do part of its work.

Peers: LangChain's `trim_messages` with an exact counter, and the OpenAI Agents SDK's `SQLiteSession.get_items`. Each
conversation is one of N messages of about sixty tokens, the budget is 8,000 tokens, and there is no recall.
Also: counting at append against the bare tokenizer, and all bookkeeping of a turn on SQLite.
"""

import random
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from agents import SQLiteSession
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, trim_messages

from infra.postgres import Cluster
from log import SENTENCE, BarePostgres, BareSqlite
from quire.db import migrate
from quire.engine import Conversation, Engine, EngineConfig
from quire.model import Message, TokenCount
from quire.model.entries import Draft
from quire.settings import Settings
from quire.store import SqlStore
from quire.wire.tokens import counter_for
from support import Report, run_benchmark, time_medians, time_ratio, time_rounds

BUDGET_TOKENS = 8_000
TURN_GOAL_RATIO = 6.0
"""A whole turn, relative to appending its two messages in one transaction."""
BARE_READ_GOAL_RATIOS = {"sqlite": 1.7, "postgres": 1.35}
"""`prepare` relative to the bare read of the rows that its request uses."""
GROWTH_GOAL_RATIO = 1.1
"""From 1,000 messages to the largest conversation."""
ROUNDS = 60
MESSAGE_WORD_COUNTS = {"60 tokens each": (25,), "20 to 700 tokens, as chats have them": (8, 25, 60, 120, 300)}
"""Words per message. Tokenizing a short message takes so little time that fetching it from memory is visible."""


def make_text(number: int) -> str:
    return f"{number}: {SENTENCE * 3}"


def make_varied_text(number: int, words: int) -> str:
    """Makes words that do not repeat between texts, so that the tokenizer's cache does not help."""
    chance = random.Random(number)
    return " ".join("".join(chance.choices("etaoinshrdlu", k=chance.randrange(2, 9))) for _ in range(words))


def make_engine(store: SqlStore) -> Engine:
    settings = Settings(model="gpt-4o", context_limit=BUDGET_TOKENS + 512, strategy="discard", context_threshold=1.0)
    return Engine(store, EngineConfig.create(settings, instructions="Be brief."))


async def create_conversation(engine: Engine, size: int) -> Conversation:
    conversation = await engine.conversation(f"{size:07}")
    tokens = engine.message_counter.count(Message.user(make_text(12_345)))
    for start in range(0, size, 2_000):
        drafts = [
            Draft(
                body=(Message.user, Message.assistant)[number % 2](make_text(number)),
                tokens=TokenCount(tokens, engine.message_counter.name),
            )
            for number in range(start, min(start + 2_000, size))
        ]
        await engine.store.append(conversation.id, *drafts)
    await conversation.prepare("The first request cuts the history to what fits.")
    return conversation


def make_langchain_trim(size: int) -> Callable[[], Any]:
    history: list[BaseMessage] = [(HumanMessage, AIMessage)[n % 2](make_text(n)) for n in range(size)]
    encode = counter_for("gpt-4o").count

    def count(messages: list[BaseMessage]) -> int:
        return sum(3 + encode(str(message.content)) for message in messages)

    prompt = [*history, HumanMessage("And now?")]
    return lambda: trim_messages(
        prompt, max_tokens=BUDGET_TOKENS, token_counter=count, strategy="last", start_on="human"
    )


async def make_agents_session(folder: Path, size: int) -> Callable[[], Awaitable[Any]]:
    session = SQLiteSession(f"{size}", folder / "agents.db")
    items = [{"role": ("user", "assistant")[n % 2], "content": make_text(n)} for n in range(size)]
    for start in range(0, size, 5_000):
        await session.add_items(items[start : start + 5_000])  # type: ignore[arg-type]
    return session.get_items


class PrepareTimes(NamedTuple):
    """Median of `prepare` in milliseconds, and its ratios to the bare read of the rows that the request uses."""

    milliseconds: float
    repeated: float
    after_turn: float
    """The request after a turn was recorded: the two messages of the turn are new to it."""
    uncached: float
    """A request whose window is not in the cache, so that all its rows are read."""


async def compare_with_bare_read(
    report: Report, name: str, engine: Engine, sizes: list[int], make_bare: Callable[[str, int], Any]
) -> list[float]:
    """Returns our medians by size; each alternates with the bare read of the same window."""
    conversations = {size: await create_conversation(engine, size) for size in sizes}
    small, large = conversations[1_000], conversations[sizes[-1]]
    _, growth = await time_ratio(lambda: large.prepare("And now?"), lambda: small.prepare("And now?"), rounds=ROUNDS)
    times = {size: await time_prepare(each, make_bare) for size, each in conversations.items()}
    report.require_at_most(f"{name}_growth_1000_to_{sizes[-1]}", growth, GROWTH_GOAL_RATIO)
    repeated = max(times[size].repeated for size in sizes[1:])
    report.require_at_most(f"{name}_vs_bare_read", repeated, BARE_READ_GOAL_RATIOS[name])
    report.print_table(
        f"{name}: prepare, milliseconds, and times the bare read",
        ("messages", "prepare", "x bare", "after a turn", "uncached"),
        [(size, *each) for size, each in times.items()],
    )
    return [each.milliseconds for each in times.values()]


async def time_prepare(conversation: Conversation, make_bare: Callable[[str, int], Any]) -> PrepareTimes:
    engine = conversation.engine
    window = await engine.store.read_window(conversation.id)
    bare = make_bare(conversation.id, window.branch.head_seq)
    bare.parameters |= {"first": window.messages[0].seq}
    counter, messages = engine.message_counter, (Message.user("And then?"), Message.assistant("The mill stops."))
    turn = [Draft(body=each, tokens=TokenCount(counter.count(each), counter.name)) for each in messages]
    after_turn, repeated, uncached = (list[list[float]]() for _ in range(3))
    for _ in range(ROUNDS):
        stored = await engine.store.append(conversation.id, *turn)
        bare.parameters |= {"last": stored[-1].seq}
        for times in (after_turn, repeated, uncached):
            if times is uncached:
                engine.runtime.windows.clear()
            taken = await time_rounds(lambda: conversation.prepare("And now?"), bare.window, rounds=1)
            times.append([each for [each] in taken])
    ratios = (statistics.median(ours / bare for ours, bare in times) for times in (repeated, after_turn, uncached))
    return PrepareTimes(statistics.median(ours for ours, _ in repeated), *ratios)


async def measure_counting(report: Report) -> None:
    from splintr import Tokenizer

    encode = Tokenizer.from_pretrained("o200k_base").encode_ordinary
    settings = Settings(model="gpt-4o")
    async with SqlStore.open("sqlite://") as store:
        counter = Engine(store, EngineConfig.create(settings)).message_counter
        rows: list[tuple[object, ...]] = []
        for name, lengths in MESSAGE_WORD_COUNTS.items():
            texts = [make_varied_text(number, lengths[number % len(lengths)]) for number in range(1_000)]
            messages = [Message.user(each) for each in texts]
            whole, times_bare = await time_ratio(
                lambda messages=messages: [counter.count(each) for each in messages],
                lambda texts=texts: [len(encode(each)) for each in texts],
                rounds=25,
            )
            rows.append((name, whole, times_bare))
    report.print_table("counting 1,000 messages", ("", "milliseconds", "x bare tokenizer"), rows)
    times_bare = float(str(rows[-1][2]))
    report.require_at_most("counting_vs_bare", times_bare, 1.15)


async def measure_bookkeeping(report: Report, folder: Path) -> None:
    """Compares all bookkeeping of a turn with the bare append of its two messages to another conversation."""
    async with SqlStore.open(f"sqlite:///{folder}/turns.db") as store:
        engine = make_engine(store)
        conversation = await create_conversation(engine, 1_000)
        other = await engine.conversation("append")

        async def run_turn() -> None:
            request = await conversation.prepare(f"Question: {SENTENCE}")
            request.to_chat()
            await conversation.record(SENTENCE * 2, request=request)

        async def append_messages() -> None:
            await other.append(f"Question: {SENTENCE}", Message.assistant(SENTENCE * 2))

        taken, ratio = await time_ratio(run_turn, append_messages, rounds=200)
    report.print_table("bookkeeping of a turn", ("milliseconds", "x append of its messages"), [(taken, ratio)])
    report.require_at_most("turn_over_append", ratio, TURN_GOAL_RATIO)


async def run(*, quick: bool) -> Report:
    report = Report("view")
    sizes = [100, 1_000, 10_000] if quick else [100, 1_000, 10_000, 100_000]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "quire.db"
        async with SqlStore.open(f"sqlite:///{path}") as store:
            sqlite_times = await compare_with_bare_read(
                report, "sqlite", make_engine(store), sizes, lambda name, size: BareSqlite(path, name, size)
            )
        peers: list[tuple[object, ...]] = []
        for size, ours in zip(sizes, sqlite_times, strict=True):
            trim = make_langchain_trim(size)
            items = await make_agents_session(folder, size)
            rounds = 3 if size >= 10_000 else 10
            trimmed, got = await time_medians(trim, items, rounds=rounds)
            peers.append((size, ours, trimmed, got))
            if size >= 1_000:
                report.require_at_most(f"vs_trim_messages_{size}", ours / trimmed, 1.0)
                report.require_at_most(f"vs_agents_session_{size}", ours / got, 1.0)
        report.print_table(
            "compared with peers, milliseconds",
            ("messages", "quire on SQLite", "trim_messages", "SQLiteSession"),
            peers,
        )
        await measure_counting(report)
        await measure_bookkeeping(report, folder)
    await measure_postgres(report, sizes)
    return report


async def measure_postgres(report: Report, sizes: list[int]) -> None:
    with Cluster.start(18) as cluster:
        cluster.create_database("quire")
        cluster.create_role("quire_app")
        migrate.upgrade(cluster.url("quire"))
        migrate.grant_access(cluster.url("quire"), "quire_app")
        url = cluster.url("quire", user="quire_app")
        async with SqlStore.open(url) as store, await psycopg.AsyncConnection.connect(url, autocommit=True) as driver:
            await compare_with_bare_read(
                report, "postgres", make_engine(store), sizes, lambda name, size: BarePostgres(driver, name, size)
            )


if __name__ == "__main__":
    run_benchmark(run)
