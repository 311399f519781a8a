"""A chat of forty turns with a real model in a window of 1,024 tokens, kept within it in four ways.

Quire (hybrid and summarize) beside a sliding window (LangChain's `trim_messages` before each call) and LangChain's
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

import httpx
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, trim_messages
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from quire.compaction.run import Summarizer
from quire.engine import Engine
from quire.errors import ModelInvalid
from quire.llm import Prompt, Reply
from quire.log import SqlStore
from quire.model import Message, TokenCount
from quire.model.entries import Draft
from quire.settings import Settings
from quire.testing.llama import LocalModel
from quire.testing.scripted import ScriptedModel
from quire.view.shapes import OpenAIShape
from quire.view.tokens import counter_for
from support import Report, main

WINDOW = 1_024
RESERVED = 128
REPLY = 40
INSTRUCTIONS = "You are a helpful guide to a river and its mills. Answer in one or two short sentences."


def question(turn: int) -> str:
    return (
        f"Question {turn}: at bend {turn} of the river stands mill number {turn * 7 % 90}. "
        f"What should a traveller who arrives there on day {turn} know about its wheel and its miller?"
    )


@dataclass
class Tally:
    """What the server reported."""

    sent: int = 0
    evaluated: int = 0
    first_token: list[float] = field(default_factory=list)
    failures: int = 0

    def note(self, body: dict[str, Any]) -> None:
        if "usage" in body:
            self.sent += body["usage"]["prompt_tokens"]
            self.evaluated += body["timings"]["prompt_n"]
            self.first_token.append(body["timings"]["prompt_ms"])

    def hook(self, response: httpx.Response) -> None:
        response.read()
        self.note(response.json())


class PlainModel:
    """A summarizer whose calls are tallied like all others."""

    def __init__(self, url: str, tally: Tally) -> None:
        self.name, self._url, self._tally, self._shape = "smollm2", url, tally, OpenAIShape()

    async def complete(self, prompt: Prompt) -> Reply:
        units = [unit for message in prompt.messages for unit in self._shape.units(message)]
        payload = self._shape.payload(
            model=self.name, system=prompt.system, tools=(), units=units, max_tokens=prompt.max_tokens
        )
        async with httpx.AsyncClient(timeout=300) as client:
            response = await client.post(f"{self._url}/chat/completions", json=payload)
        if response.status_code != 200:
            raise ModelInvalid(response.text)
        self._tally.note(response.json())
        return self._shape.parse(response.json())

    def stream(self, prompt: Prompt) -> Any:
        raise NotImplementedError


async def quire_chat(url: str, strategy: str, turns: int) -> Tally:
    tally = Tally()
    settings = Settings(
        model="smollm2",
        strategy=strategy,
        context_limit=WINDOW,
        reserved_response_tokens=RESERVED,
        recent_messages_to_keep=6,
        context_background_threshold=None,
    )
    async with SqlStore.open("sqlite://") as store:
        summarizer = Summarizer(model=PlainModel(url, tally), window=WINDOW, timeout=300)
        engine = Engine(store, settings=settings, instructions=INSTRUCTIONS, summarizer=summarizer)
        conversation = await engine.conversation()
        async with httpx.AsyncClient(timeout=300) as client:
            for turn in range(turns):
                request = await conversation.prepare(question(turn))
                body = request.to_openai(max_tokens=REPLY, temperature=0)
                response = (await client.post(f"{url}/chat/completions", json=body)).raise_for_status().json()
                tally.note(response)
                await conversation.record(response, request=request)
    return tally


def chat_model(url: str, tally: Tally, *, max_tokens: int) -> ChatOpenAI:
    client = httpx.Client(event_hooks={"response": [tally.hook]}, timeout=300)
    return ChatOpenAI(
        model="smollm2",
        base_url=url,
        api_key="none",
        max_tokens=max_tokens,  # type: ignore[call-arg]
        temperature=0,
        http_client=client,
        max_retries=0,
    )


async def sliding_window(url: str, turns: int) -> Tally:
    tally = Tally()
    model = chat_model(url, tally, max_tokens=REPLY)
    count = counter_for("gpt-4o").count
    history: list[BaseMessage] = [SystemMessage(INSTRUCTIONS)]
    for turn in range(turns):
        history.append(HumanMessage(question(turn)))
        kept = trim_messages(
            history,
            max_tokens=WINDOW - RESERVED - 32,
            token_counter=lambda messages: sum(5 + count(str(each.content)) for each in messages),
            strategy="last",
            start_on="human",
            include_system=True,
        )
        history.append(AIMessage(str(model.invoke(kept).content)))
    return tally


async def summarization_middleware(url: str, turns: int) -> Tally:
    tally = Tally()
    summaries = SummarizationMiddleware(
        model=chat_model(url, tally, max_tokens=150),
        trigger=("tokens", int((WINDOW - RESERVED) * 0.85)),
        keep=("messages", 6),
        # Its prompt takes about 500 tokens of the window, so that this is what is left for what it summarizes.
        trim_tokens_to_summarize=300,
    )
    agent = create_agent(
        chat_model(url, tally, max_tokens=REPLY),
        tools=[],
        system_prompt=INSTRUCTIONS,
        middleware=[summaries],
        checkpointer=InMemorySaver(),
    )
    for turn in range(turns):
        try:
            agent.invoke({"messages": [HumanMessage(question(turn))]}, {"configurable": {"thread_id": "1"}})
        except Exception:  # noqa: BLE001 (whatever it is, it is a turn that failed)
            tally.failures += 1
    return tally


async def bookkeeping(report: Report, *, quick: bool) -> None:
    """Plan, store and rebuild, with a summarizer that answers at once."""
    size = 20_000 if quick else 100_000
    with tempfile.TemporaryDirectory() as folder:
        async with SqlStore.open(f"sqlite:///{Path(folder) / 'quire.db'}") as store:
            settings = Settings(model="gpt-4o", context_limit=8_512, context_background_threshold=None)
            summary = ScriptedModel("Task: rivers [#1].", repeat=True)
            summarizer = Summarizer(model=summary, window=128_000)
            engine = Engine(store, settings=settings, summarizer=summarizer)
            conversation = await engine.conversation("c")
            tokens = engine.meter.count(Message.user(question(12_345)))
            for start in range(0, size, 2_000):
                numbers = range(start, start + 2_000)
                drafts = [
                    Draft(body=Message.user(question(n)), tokens=TokenCount(tokens, engine.meter.name)) for n in numbers
                ]
                await store.append("c", *drafts)
            engine.summarizer = None
            engine.use(strategy="discard")
            await conversation.prepare("The first request cuts the long history down.")
            engine.use(strategy="hybrid")
            engine.summarizer = summarizer
            taken: list[float] = []
            for _ in range(15):
                await conversation.append(*(question(n) for n in range(100)))
                start_time = time.perf_counter()
                await conversation.compact()
                await conversation.prepare("And now?")
                taken.append((time.perf_counter() - start_time) * 1_000)
    report.at_most("bookkeeping_ms", statistics.median(taken), 50.0)


async def run(*, quick: bool) -> Report:
    report = Report("compaction")
    turns = 8 if quick else 40
    ways: dict[str, Callable[[str], Any]] = {
        "Quire, hybrid": lambda url: quire_chat(url, "hybrid", turns),
        "Quire, summarize": lambda url: quire_chat(url, "summarize", turns),
        "sliding window": lambda url: sliding_window(url, turns),
        "SummarizationMiddleware": lambda url: summarization_middleware(url, turns),
    }
    tallies: dict[str, Tally] = {}
    for name, chat in ways.items():
        # A server of its own each: nobody finds another's prompts in the cache.
        with LocalModel(context=WINDOW, slots=2) as model:
            tallies[name] = await chat(model.url)
    report.table(
        f"{turns} turns in a window of {WINDOW} tokens, as the server reports them",
        ("", "calls", "sent", "evaluated", "first token, ms (median)", "failed turns"),
        [
            (name, len(each.first_token), each.sent, each.evaluated, statistics.median(each.first_token), each.failures)
            for name, each in tallies.items()
        ],
    )
    sliding = tallies["sliding window"].evaluated
    for name in ("hybrid", "summarize"):
        report.at_most(f"{name}_vs_sliding_window", tallies[f"Quire, {name}"].evaluated / sliding, 0.5)
    await bookkeeping(report, quick=quick)
    return report


if __name__ == "__main__":
    main(run)
