"""Paraphrases of a memory: named when one is added, and superseded with the memory that they paraphrase."""

import json

import pytest

from quire.engine import Conversation, Engine, EngineConfig
from quire.engine.memory_writer import correct_memory
from quire.llm.embeddings import Embedder, load_local_embedder
from quire.model import ToolCallPart
from quire.model.agents import Agent
from quire.settings import Settings
from quire.store import SqlStore


def make_engine(store: SqlStore, embedder: Embedder | None) -> Engine:
    settings = Settings(model="gpt-4o", context_limit=16_000)
    return Engine(store, EngineConfig.create(settings, agent=Agent(name="helper"), embedder=embedder))


async def say_and_remember(conversation: Conversation, said: str, text: str, **more: str) -> str:
    request = await conversation.prepare(said)
    await conversation.record("I see.", request=request)
    call = ToolCallPart(id="1", name="remember", arguments=json.dumps({"text": text, **more}))
    return str((await conversation.run_tool(call, request=request)).message.tool_results[0].content)


@pytest.mark.every_database
@pytest.mark.parametrize(
    ("embedder", "old", "paraphrase", "new"),
    [
        (load_local_embedder(), "The user lives in Rome.", "The user's home is in Rome.", "The user lives in Milan."),
        (load_local_embedder(), "The user's manager is Anna.", "Anna is the boss of the user.", "The manager is Bob."),
        (
            None,
            "The weekly meeting of the design team is in Rome.",
            "In Rome there is the design team's meeting, weekly.",
            "The weekly meeting of the design team is in Milan.",
        ),
    ],
    ids=["home", "boss", "words"],
)
async def test_a_correction_supersedes_the_paraphrases_of_a_memory(
    store: SqlStore, embedder: Embedder | None, old: str, paraphrase: str, new: str
):
    conversation = await make_engine(store, embedder).conversation("c")
    first = await store.memories.add("helper", old, source="a.md")
    second = await store.memories.add("helper", paraphrase, source="b.md")
    kept = [
        await store.memories.add("helper", text, source="c.md")
        for text in (
            "The user works in Rome.",
            "The user's sister lives in Rome.",
            "Anna likes tea.",
        )
    ]
    answer = await say_and_remember(conversation, new, new, replaces=first.id)
    current = {each.id for each in await store.memories.list("helper")}
    retired = {each.id: each for each in await store.memories.list("helper", include_retired=True)}
    assert {first.id, second.id}.isdisjoint(current)
    assert {each.id for each in kept} <= current
    replacement = retired[first.id].replaced_by
    assert replacement in current
    assert retired[second.id].replaced_by == replacement
    assert f"{second.id}, which said the same" in answer


async def test_a_memory_that_is_close_to_another_is_stored_and_names_it(store: SqlStore):
    """Words and static vectors cannot tell a paraphrase from a fact beside it, so the model is asked."""
    conversation = await make_engine(store, load_local_embedder()).conversation("c")
    await say_and_remember(conversation, "I live in Rome.", "The user lives in Rome.")
    [known] = await store.memories.list("helper")
    answer = await say_and_remember(conversation, "I work in Rome.", "The user works in Rome.")
    assert len(await store.memories.list("helper")) == 2
    assert f"close to {known.id}" in answer


async def test_a_paraphrase_is_not_stored_beside_its_memory(store: SqlStore):
    conversation = await make_engine(store, load_local_embedder()).conversation("c")
    await say_and_remember(conversation, "I live in Rome.", "The user lives in Rome.")
    [known] = await store.memories.list("helper")
    answer = await say_and_remember(conversation, "My home is in Rome.", "The user's home is in Rome.")
    assert [each.id for each in await store.memories.list("helper")] == [known.id]
    assert f"replaces={known.id!r}" in answer


async def test_a_correction_by_a_person_supersedes_paraphrases_too(store: SqlStore):
    engine = make_engine(store, load_local_embedder())
    first = await store.memories.add("helper", "The user lives in Rome.", source="a.md")
    await store.memories.add("helper", "The user's home is in Rome.", source="b.md")
    await correct_memory(engine, first.id, "The user lives in Milan.", source="user")
    assert [each.text for each in await store.memories.list("helper")] == ["The user lives in Milan."]
