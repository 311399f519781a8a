"""Documents that keep being referenced enter the agent's memory, if the setting says after how many messages."""

from pathlib import Path
from typing import Any

import pytest

from quire.agent.turn import run_turn
from quire.engine import Engine, EngineConfig
from quire.log.types import Memory
from quire.model.agents import Agent, AgentMemory
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

NAMESPACE = "keeper"


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    (tmp_path / "Mills.md").write_text("# Mills\n\nThe miller keeps every sixteenth sack.\n")
    (tmp_path / "Rivers.md").write_text("# Rivers\n\nAll rivers of the county, from north to south.\n")
    return tmp_path


def make_engine(store: SqlStore, vault: Path, *, memory: bool = True, **changes: Any) -> Engine:
    settings = Settings.model_validate({"model": "gpt-4o", **changes})
    agent = Agent(name=NAMESPACE, memory=AgentMemory(enabled=memory, files=()))
    return Engine(store, EngineConfig.create(settings, agent=agent, vault=vault))


async def ask(engine: Engine, conversation: str, *questions: str) -> None:
    for question in questions:
        opened = await engine.conversation(conversation)
        await opened.record("Yes.", request=await opened.prepare(question))


async def load_memories(store: SqlStore) -> list[Memory]:
    return await store.memories.list(NAMESPACE, limit=10)


async def test_a_document_of_the_third_message_is_remembered_once(store: SqlStore, vault: Path):
    engine = make_engine(store, vault, remember_documents_after=3)
    await ask(engine, "c", "See [[Mills]].", "See [[Mills]] and [[Rivers]].", "Nothing to see.")
    assert await load_memories(store) == []
    await ask(engine, "c", "See [[Mills]] again and [[Nowhere]].", "And [[mills]].", "And [[Mills]].")
    [memory] = await load_memories(store)
    assert (
        memory.text == "The document [[Mills]] (Mills.md) is often referred to: The miller keeps every sixteenth sack."
    )
    assert memory.source == "Mills.md"
    assert memory.citation is not None
    assert (memory.citation.conversation, memory.citation.seq) == ("c", 7)


async def test_the_next_conversation_knows_the_document(store: SqlStore, vault: Path):
    engine = make_engine(store, vault, remember_documents_after=2)
    await ask(engine, "c", "See [[Mills]].", "See [[Mills]].")
    later = await engine.conversation("later")
    assert "(Mills.md) is often referred to" in str((await later.prepare("Hello")).to_chat())


async def test_a_memory_that_was_retired_does_not_come_back(store: SqlStore, vault: Path):
    engine = make_engine(store, vault, remember_documents_after=2)
    await ask(engine, "c", "See [[Mills]].", "See [[Mills]].")
    [memory] = await load_memories(store)
    await store.memories.retire(memory.id)
    await ask(engine, "c", "See [[Mills]].")
    assert await load_memories(store) == []


@pytest.mark.parametrize("changes", [{}, {"remember_documents_after": 1, "memory": False}])
async def test_it_is_off_by_default_and_without_memory(store: SqlStore, vault: Path, changes: dict[str, Any]):
    await ask(make_engine(store, vault, **changes), "c", *["See [[Mills]]."] * 4)
    assert await load_memories(store) == []


async def test_a_turn_counts_its_question(store: SqlStore, vault: Path):
    conversation = await make_engine(store, vault, remember_documents_after=1).conversation("c")
    async for _ in run_turn(conversation, "See @Rivers.md", model=ScriptedModel("Yes.")):
        pass
    [memory] = await load_memories(store)
    assert memory.text.startswith("The document @Rivers.md (Rivers.md) is often referred to: All rivers")
