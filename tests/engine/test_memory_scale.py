"""Agent memory at any number of entries: all while they fit their slot, else a stable core and what the question
needs."""

import json
import sys
from pathlib import Path

from stable_prefix import encode_stable_prefix

from quire.engine import Engine, EngineConfig
from quire.model import ToolCallPart
from quire.model.agents import Agent
from quire.settings import Settings
from quire.store import SqlStore

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from memory import measure_curves

WINDOW = 8_192


def make_engine(store: SqlStore, **changes: object) -> Engine:
    settings = Settings.model_validate({"model": "gpt-4o", "context_limit": WINDOW, **changes})
    return Engine(store, EngineConfig.create(settings, agent=Agent(name="helper")))


async def add_facts(store: SqlStore, first: int, last: int) -> None:
    for number in range(first, last):
        text = f"Fact: the toll at mill{number} is {10_000 + number} pence and the miller is called Jan{number}."
        await store.memories.add("helper", text, source="mills.md")


async def test_no_number_of_memories_is_too_many(store: SqlStore):
    """The number of memories in a request never falls to nothing, and the one in question is among them."""
    engine, added, shown = make_engine(store), 0, list[int]()
    for count in (10, 30, 36, 60, 250):
        await add_facts(store, added, count)
        added = count
        conversation = await engine.conversation(f"with {count}")
        for number in (0, count // 2, count - 1):
            request = await conversation.prepare(f"What is the toll at mill{number}?")
            text = str(request.to_chat())
            assert f"{10_000 + number} pence" in text, (count, number)
            assert request.tokens <= request.manifest.max_input_tokens
        shown.append(text.count("Fact: "))
    assert shown[:2] == [10, 30]
    assert min(shown[2:]) >= 15


async def test_the_core_is_the_same_for_every_question(store: SqlStore):
    engine = make_engine(store)
    await add_facts(store, 0, 120)
    conversation = await engine.conversation("c")
    first = await conversation.prepare("What is the toll at mill3?")
    prefix = encode_stable_prefix(first)
    await add_facts(store, 120, 125)
    second = await conversation.prepare("What is the toll at mill123?")
    assert encode_stable_prefix(second) == prefix
    assert "10123 pence" in str(second.to_chat())
    rows = [row for row in second.manifest.included if row.kind == "memory"]
    assert {(row.slot, row.reason) for row in rows} == {("memory", "memory"), ("recall", "recalled")}
    assert (await conversation.replay((await conversation.record("It is 10123.", request=second)).seq)).matches


async def test_a_model_can_search_for_memories_that_a_request_leaves_out(store: SqlStore):
    engine = make_engine(store).with_changes(runs_turns=True)
    await add_facts(store, 0, 120)
    conversation = await engine.conversation("c")
    request = await conversation.prepare("Good morning.")
    assert "history_search" in [tool["function"]["name"] for tool in request.to_chat()["tools"]]
    assert "10003 pence" not in str(request.to_chat())
    call = ToolCallPart(id="1", name="history_search", arguments=json.dumps({"query": "toll at mill3"}))
    result = str((await conversation.run_tool(call, request=request)).message.tool_results[0].content)
    assert "10003 pence" in result
    [memory] = [each for each in await store.memories.list("helper", limit=200) if "mill3 " in each.text]
    assert memory.id in result


async def test_the_share_of_needed_memories_has_no_cliff(tmp_path: Path):
    """The benchmark, at a small size."""
    curves = await measure_curves(tmp_path, (10, 40, 200), (WINDOW,), questions=15)
    assert min(point.present for point in curves[WINDOW]) >= 90
