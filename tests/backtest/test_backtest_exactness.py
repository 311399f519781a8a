"""A backtest with the settings of the real run predicts each of its requests: to the token, and byte for byte."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from infra.long_turn import QUESTION, READ_TOOL, make_steps
from infra.sizes import IS_FULL_SIZE
from quire.backtest import BacktestVariant, SimulatedStep, combine_variants, run_backtest, select_conversations
from quire.engine import Engine, EngineConfig
from quire.engine.background_jobs import EngineJobKind, InProcessJobs
from quire.engine.runtime import EngineRuntime
from quire.llm import Prompt, Reply
from quire.model import Compaction, Manifest, Message, ToolCallPart, Usage
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel, count_prompt_tokens

WINDOW = 1_800
TOWNS = ("Ghent", "Bruges", "Ostend", "Ypres", "Dinant", "Namur")
STRATEGIES = ("discard", "summarize", "hybrid")


class CompactionJobs(InProcessJobs):
    """Runs no indexing: how far it is when a request is made depends on the speed of the machine, and recall ranks with
    what is indexed. Without it each request indexes what it needs."""

    def enqueue(self, kind: EngineJobKind, *args: Any, **options: Any) -> None:
        if kind == "compact":
            super().enqueue(kind, *args, **options)


def make_engine(
    store: SqlStore, *, strategy: str, window: int = WINDOW, tools=(), summarizer=None, extracts: bool = False
) -> Engine:
    named = {"summarizer": "extract"} if extracts else {}
    settings = Settings.model_validate({"model": "gpt-4o", "context_limit": window, "strategy": strategy, **named})
    config = EngineConfig.create(
        settings, instructions="Answer like a harbour master.", tools=tools, summarizer=summarizer
    )
    return Engine(store, config, EngineRuntime(jobs=CompactionJobs()))


def iter_questions(count: int, *, seed: int = 3) -> Iterator[str]:
    random = Random(seed)
    for day in range(count):
        town, toll = random.choice(TOWNS), random.randrange(1_000)
        road = "The road was dry and we met other carts at noon. " * random.randint(1, 9)
        yield f"Day {day}: near {town} we paid {toll} pence. {road}What did we pay near {random.choice(TOWNS)}?"


async def list_manifests(engine: Engine, conversation: str) -> list[Manifest]:
    return [manifest for _, manifest in await engine.store.list_manifests(conversation)]


async def simulate(engine: Engine, variant: BacktestVariant) -> list[SimulatedStep]:
    steps: list[SimulatedStep] = []
    selection = await select_conversations(engine.store, ["c"])
    await run_backtest(engine, [variant], selection, on_step=lambda _c, _v, step: steps.append(step))
    return steps


async def expect_same(engine: Engine, variant: BacktestVariant, *, min_compactions: int) -> list[SimulatedStep]:
    """Every request of the backtest is the recorded one."""
    manifests, steps = await list_manifests(engine, "c"), await simulate(engine, variant)
    assert [step.tokens for step in steps] == [manifest.total_tokens for manifest in manifests]
    assert all(step.matches_recorded for step in steps)
    entries = await engine.store.read_range("c", kinds=["compaction"])
    assert sum(step.compactions for step in steps) == len(entries) >= min_compactions
    return steps


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_chat_is_predicted_to_the_token(store: SqlStore, strategy: str):
    engine = make_engine(store, strategy=strategy)
    conversation = await engine.conversation("c")
    for number, question in enumerate(iter_questions(30)):
        request = await conversation.prepare(question)
        entry = await conversation.record(f"I noted day {number}.", request=request)
        if number in (7, 18):
            await conversation.pin(entry.seq - 1)
        if number == 12:
            await conversation.set_priority(entry.seq - 1, 9)
    await engine.wait_for_background()
    [variant] = combine_variants([strategy])
    steps = await expect_same(engine, variant, min_compactions=3)
    assert [step.turn for step in steps] == list(range(1, 31))
    assert {step.step for step in steps} == {1}


@pytest.mark.parametrize("strategy", STRATEGIES if IS_FULL_SIZE else ["hybrid"])
async def test_a_long_turn_of_an_agent_is_predicted_to_the_token(store: SqlStore, strategy: str):
    engine = make_engine(store, strategy=strategy, window=6_000, tools=[READ_TOOL])
    conversation = await engine.conversation("c")
    question: str | None = QUESTION
    for step in make_steps(30, huge_result_tokens=9_000):
        request = await conversation.prepare(question)
        await conversation.record(step.reply, request=request)
        await conversation.append(*step.results)
        question = None
    await engine.wait_for_background()
    [variant] = combine_variants([strategy])
    steps = await expect_same(engine, variant, min_compactions=3)
    assert [(step.turn, step.step) for step in steps] == [(1, number) for number in range(1, 31)]


def read_page(page: int) -> str:
    """Reads a page of the log book."""
    return f"Page {page}: " + "wind north-west, two sails in sight, the pilot came aboard. " * (5 + page % 13)


def call_tool(page: int) -> Message:
    call = ToolCallPart(id=f"call{page}", name="read_page", arguments=json.dumps({"page": page}))
    return Message(role="assistant", parts=(call,))


def report_more_tokens(message: Message | str) -> Callable[[Prompt], Reply]:
    """A reply of a provider that counts a tenth more tokens than Quire."""

    def reply(prompt: Prompt) -> Reply:
        usage = Usage(model="gpt-4o", input_tokens=round(1.1 * count_prompt_tokens(prompt)), output_tokens=5)
        return Reply(Message.assistant(message) if isinstance(message, str) else message, usage, "stop")

    return reply


async def test_turns_of_the_agent_loop_are_predicted_with_usage_and_history_tools(store: SqlStore):
    engine = make_engine(store, strategy="hybrid", window=3_000, extracts=True)
    conversation = await engine.conversation("c")
    pages = iter(range(10_000))
    for turn, question in enumerate(iter_questions(16)):
        replies = [*(call_tool(next(pages)) for _ in range(turn % 4)), "Done."]
        model = ScriptedModel(*map(report_more_tokens, replies), name="gpt-4o")
        await conversation.send(question, tools=[read_page], model=model)
    manifests = await list_manifests(engine, "c")
    assert len({manifest.ratio for manifest in manifests}) > 5, "the reported usage changes the calibration"
    offered = {row.name for row in manifests[-1].included if row.kind == "tool"}
    assert offered == {"read_page", "history_search", "history_read"}
    [variant] = combine_variants(["hybrid"])
    await expect_same(engine, variant, min_compactions=2)


async def test_written_summaries_and_background_compactions_are_predicted(store: SqlStore):
    def summarize(prompt):
        return f"The travellers paid tolls near Ghent. {len(prompt.messages[0].text)} characters were read."

    writer = ScriptedModel(summarize, repeat=True, name="gpt-4o-mini")
    engine = make_engine(store, strategy="hybrid", summarizer=writer)
    conversation = await engine.conversation("c")
    for question in iter_questions(25):
        await conversation.send(question, model=ScriptedModel("Noted.", name="gpt-4o"))
        await engine.wait_for_background()
    bodies = [entry.body for entry in await store.read_range("c", kinds=["compaction"])]
    assert {body.trigger for body in bodies if isinstance(body, Compaction)} >= {"background"}
    [variant] = combine_variants(["hybrid"])
    calls = len(writer.prompts)
    await expect_same(engine, variant, min_compactions=2)
    assert len(writer.prompts) == calls, "a backtest calls no model"


async def test_another_strategy_sends_other_requests_and_the_log_stays_as_it_is(store: SqlStore):
    engine = make_engine(store, strategy="hybrid")
    conversation = await engine.conversation("c")
    for question in iter_questions(20):
        request = await conversation.prepare(question)
        await conversation.record("Noted.", request=request)
    await engine.wait_for_background()
    before = await store.get_branch("c")
    [variant] = combine_variants(["discard"], windows=[1_200])
    steps = await simulate(engine, variant)
    assert not all(step.matches_recorded for step in steps)
    assert max(step.tokens for step in steps) <= 1_200
    # The same settings in a real run give the same requests: the prediction holds for settings that never ran.
    real = make_engine(store, strategy="discard", window=1_200)
    other = await real.conversation("real")
    for question in iter_questions(20):
        request = await other.prepare(question)
        await other.record("Noted.", request=request)
    await real.wait_for_background()
    manifests = await list_manifests(real, "real")
    assert [step.tokens for step in steps] == [manifest.total_tokens for manifest in manifests]
    assert await store.get_branch("c") == before
