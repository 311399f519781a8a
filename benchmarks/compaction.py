"""A chat of forty turns with a real model in a context window of 1,024 tokens, with four strategies.

Quire (hybrid and summarize) against a sliding window (LangChain's `trim_messages` before each call) and LangChain's
`SummarizationMiddleware`. The server, llama.cpp, says how many prompt tokens it was sent, how many of them it had to
evaluate because its cache did not hold them, and how long that took. Calls that write summaries are counted in.
Also: the bookkeeping of a compaction, without the model, in a conversation of 100,000 messages.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, trim_messages
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from infra.llama import LocalModel
from quire.compaction.summarizer import Summarizer
from quire.engine import Conversation, Engine, EngineConfig
from quire.engine.message_index import index_messages
from quire.errors import ModelRequestRejected
from quire.llm import Prompt, Reply
from quire.model import Message, TokenCount
from quire.model.entries import Draft
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel
from quire.wire.chat.render import OpenAIChatFormat
from quire.wire.tokens import counter_for
from support import Report, run_benchmark

WINDOW_TOKENS = 1_024
TURNS, QUICK_TURNS = 40, 20
"""The window is full after about ten turns, so that a quick run compacts too."""
SHORT_MESSAGES = 1_000
RESERVED_TOKENS = 128
MAX_REPLY_TOKENS = 40
INSTRUCTIONS = "You are a helpful guide to a river and its mills. Answer in one or two short sentences."


def make_question(turn: int) -> str:
    return (
        f"Question {turn}: at bend {turn} of the river stands mill number {turn * 7 % 90}. "
        f"What should a traveller who arrives there on day {turn} know about its wheel and its miller?"
    )


@dataclass
class ServerUsage:
    """Usage that the server reported."""

    prompt_tokens: int = 0
    evaluated_tokens: int = 0
    first_token_ms: list[float] = field(default_factory=list)
    failures: int = 0

    def add_response(self, body: dict[str, Any]) -> None:
        if "usage" in body:
            self.prompt_tokens += body["usage"]["prompt_tokens"]
            self.evaluated_tokens += body["timings"]["prompt_n"]
            self.first_token_ms.append(body["timings"]["prompt_ms"])

    def on_response(self, response: httpx2.Response) -> None:
        response.read()
        self.add_response(response.json())


class CountedModel:
    """A summarizer whose calls are counted like all others."""

    def __init__(self, url: str, tally: ServerUsage) -> None:
        self.name, self._url, self._usage, self._wire_format = "smollm2", url, tally, OpenAIChatFormat()

    async def complete(self, prompt: Prompt) -> Reply:
        units = [unit for message in prompt.messages for unit in self._wire_format.render_message(message)]
        payload = self._wire_format.build_payload(
            model=self.name, system=prompt.system, tools=(), messages=units, max_tokens=prompt.max_tokens
        )
        async with httpx2.AsyncClient(timeout=300) as client:
            response = await client.post(f"{self._url}/chat/completions", json=payload)
        if response.status_code != 200:
            raise ModelRequestRejected(response.text)
        self._usage.add_response(response.json())
        return self._wire_format.parse_reply(response.json())

    def stream(self, prompt: Prompt) -> Any:
        raise NotImplementedError


async def run_quire(url: str, strategy: str, turns: int) -> ServerUsage:
    tally = ServerUsage()
    settings = Settings(
        model="smollm2",
        strategy=strategy,
        context_limit=WINDOW_TOKENS,
        reserved_response_tokens=RESERVED_TOKENS,
        recent_messages_to_keep=6,
        context_background_threshold=None,
    )
    async with SqlStore.open("sqlite://") as store:
        summarizer = Summarizer(model=CountedModel(url, tally), window=WINDOW_TOKENS, timeout=300)
        engine = Engine(store, EngineConfig.create(settings, instructions=INSTRUCTIONS, summarizer=summarizer))
        conversation = await engine.conversation()
        async with httpx2.AsyncClient(timeout=300) as client:
            for turn in range(turns):
                request = await conversation.prepare(make_question(turn))
                body = request.to_chat(max_tokens=MAX_REPLY_TOKENS, temperature=0)
                response = (await client.post(f"{url}/chat/completions", json=body)).raise_for_status().json()
                tally.add_response(response)
                await conversation.record(response, request=request)
    return tally


def make_chat_model(url: str, tally: ServerUsage, *, max_tokens: int) -> ChatOpenAI:
    client = httpx2.Client(event_hooks={"response": [tally.on_response]}, timeout=300)
    return ChatOpenAI(
        model="smollm2",
        base_url=url,
        api_key="none",
        max_tokens=max_tokens,  # type: ignore[call-arg]
        temperature=0,
        http_client=client,
        max_retries=0,
    )


async def run_sliding_window(url: str, turns: int) -> ServerUsage:
    tally = ServerUsage()
    model = make_chat_model(url, tally, max_tokens=MAX_REPLY_TOKENS)
    count = counter_for("gpt-4o").count
    history: list[BaseMessage] = [SystemMessage(INSTRUCTIONS)]
    for turn in range(turns):
        history.append(HumanMessage(make_question(turn)))
        trimmed = trim_messages(
            history,
            max_tokens=WINDOW_TOKENS - RESERVED_TOKENS - 32,
            token_counter=lambda messages: sum(5 + count(str(each.content)) for each in messages),
            strategy="last",
            start_on="human",
            include_system=True,
        )
        history.append(AIMessage(str(model.invoke(trimmed).content)))
    return tally


async def run_summarization_middleware(url: str, turns: int) -> ServerUsage:
    tally = ServerUsage()
    summaries = SummarizationMiddleware(
        model=make_chat_model(url, tally, max_tokens=150),
        trigger=("tokens", int((WINDOW_TOKENS - RESERVED_TOKENS) * 0.85)),
        keep=("messages", 6),
        # Its prompt takes about 500 tokens of the window; this is the rest, for the text to summarize.
        trim_tokens_to_summarize=300,
    )
    agent = create_agent(
        make_chat_model(url, tally, max_tokens=MAX_REPLY_TOKENS),
        tools=[],
        system_prompt=INSTRUCTIONS,
        middleware=[summaries],
        checkpointer=InMemorySaver(),
    )
    for turn in range(turns):
        try:
            agent.invoke({"messages": [HumanMessage(make_question(turn))]}, {"configurable": {"thread_id": "1"}})
        except Exception:  # noqa: BLE001 (any error is a failed turn)
            tally.failures += 1
    return tally


async def measure_bookkeeping(report: Report, *, quick: bool) -> None:
    """Compares plan, store and rebuild of a compaction in a long conversation with those in a short one.

    The summarizer answers at once.
    """
    sizes = (SHORT_MESSAGES, 20_000 if quick else 100_000)
    with tempfile.TemporaryDirectory() as folder:
        async with SqlStore.open(f"sqlite:///{Path(folder) / 'quire.db'}") as store:
            settings = Settings(model="gpt-4o", context_limit=8_512, context_background_threshold=None)
            summarizer = Summarizer(model=ScriptedModel("Task: rivers [#1].", repeat=True), window=128_000)
            engine = Engine(store, EngineConfig.create(settings, summarizer=summarizer))
            conversations = [await create_cut_conversation(engine, size) for size in sizes]
            # As in use, where the index follows each append: the first compaction would index all messages.
            await index_messages(engine)
            taken: tuple[list[float], list[float]] = ([], [])
            for _ in range(15):
                for times, conversation in zip(taken, conversations, strict=True):
                    times.append(await time_compaction(conversation))
    medians = [statistics.median(times) for times in taken]
    report.print_table(
        "bookkeeping of a compaction", ("messages", "milliseconds"), list(zip(sizes, medians, strict=True))
    )
    growth = statistics.median(long / short for short, long in zip(*taken, strict=True))
    report.require_at_most(f"bookkeeping_growth_{sizes[0]}_to_{sizes[1]}", growth, 1.3)


async def create_cut_conversation(engine: Engine, size: int) -> Conversation:
    """Creates a conversation of `size` messages and discards all that does not fit the window."""
    conversation = await engine.conversation(f"{size:07}")
    counter = engine.message_counter
    tokens = TokenCount(counter.count(Message.user(make_question(12_345))), counter.name)
    for start in range(0, size, 1_000):
        drafts = [Draft(body=Message.user(make_question(n)), tokens=tokens) for n in range(start, start + 1_000)]
        await engine.store.append(conversation.id, *drafts)
    discarding = engine.with_changes(summarizer=None, strategy="discard")
    await (await discarding.conversation(conversation.id)).prepare("The first request cuts the long history down.")
    return conversation


async def time_compaction(conversation: Conversation) -> float:
    """Appends a hundred messages, and returns the milliseconds of a compaction and the next request."""
    await conversation.append(*(make_question(n) for n in range(100)))
    start = time.perf_counter()
    await conversation.compact()
    await conversation.prepare("And now?")
    return (time.perf_counter() - start) * 1_000


async def run(*, quick: bool) -> Report:
    report = Report("compaction")
    turns = QUICK_TURNS if quick else TURNS
    strategies: dict[str, Callable[[str], Any]] = {
        "Quire, hybrid": lambda url: run_quire(url, "hybrid", turns),
        "Quire, summarize": lambda url: run_quire(url, "summarize", turns),
        "sliding window": lambda url: run_sliding_window(url, turns),
        "SummarizationMiddleware": lambda url: run_summarization_middleware(url, turns),
    }
    usage: dict[str, ServerUsage] = {}
    for name, run_chat in strategies.items():
        # Each has its own server, so that the prompt caches are separate.
        with LocalModel(context=WINDOW_TOKENS, slots=2) as model:
            usage[name] = await run_chat(model.url)
    report.print_table(
        f"{turns} turns in a window of {WINDOW_TOKENS} tokens, as the server reports them",
        ("", "calls", "sent", "evaluated", "first token, ms (median)", "failed turns"),
        [
            (
                name,
                len(each.first_token_ms),
                each.prompt_tokens,
                each.evaluated_tokens,
                statistics.median(each.first_token_ms),
                each.failures,
            )
            for name, each in usage.items()
        ],
    )
    sliding = usage["sliding window"].evaluated_tokens
    for name in ("hybrid", "summarize"):
        report.require_at_most(f"{name}_vs_sliding_window", usage[f"Quire, {name}"].evaluated_tokens / sliding, 0.5)
    await measure_bookkeeping(report, quick=quick)
    return report


if __name__ == "__main__":
    run_benchmark(run)
