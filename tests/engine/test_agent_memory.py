"""Memory: the project's files, and the agent's memories, each with the message that it cites."""

import json
from pathlib import Path

from stable_prefix import encode_stable_prefix

from quire.engine import Conversation, Engine, EngineConfig
from quire.engine.config import DEFAULT_AGENT
from quire.log.types import Citation
from quire.model import ToolCallPart
from quire.model.agents import Agent
from quire.settings import Settings
from quire.store import SqlStore

AGENT = Agent(name="helper", instructions="Help.")


def make_engine(store: SqlStore, *, agent: Agent = AGENT, folder: Path | None = None, **changes: object) -> Engine:
    settings = Settings.model_validate({"model": "gpt-4o", "context_limit": 16_000, **changes})
    return Engine(store, EngineConfig.create(settings, agent=agent, vault=folder))


async def remember(conversation: Conversation, text: str, **more: str) -> str:
    call = ToolCallPart(id="1", name="remember", arguments=json.dumps({"text": text, **more}))
    request = await conversation.prepare("Do the cookies have nuts?")
    return (await conversation.run_tool(call, request=request)).message.tool_results[0].content[0].text


async def record_turn(conversation: Conversation, text: str) -> None:
    request = await conversation.prepare(text)
    await conversation.record("I see.", request=request)


async def test_the_projects_memory_is_in_the_stable_prefix_and_is_read_for_every_request(
    store: SqlStore, tmp_path: Path
):
    (tmp_path / "AGENTS.md").write_text("Use tabs. @style.md")
    (tmp_path / "style.md").write_text("Short lines.")
    conversation = await make_engine(store, folder=tmp_path).conversation("c")
    first = await conversation.prepare("Hello")
    texts = [message["content"] for message in first.to_chat()["messages"]]
    assert "Use tabs." in texts[1]
    assert "Short lines." in texts[2]
    assert first.assembly.rendered.stable_messages == 2
    assert [(row.name, row.reason) for row in first.manifest.included if row.kind == "memory"] == [
        ("AGENTS.md", "memory"),
        ("style.md", "imported"),
    ]
    reply = await conversation.record("Hi", request=first)
    (tmp_path / "AGENTS.md").write_text("Use spaces.")
    assert "Use spaces." in str((await conversation.prepare("Again")).to_chat())
    assert (await conversation.replay(reply.seq)).matches


async def test_memory_can_be_switched_off(store: SqlStore, tmp_path: Path):
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    off = make_engine(store, folder=tmp_path, memory_integration=False)
    assert "tabs" not in str((await (await off.conversation("c")).prepare("Hello")).to_chat())


async def test_an_entry_cites_its_message_and_is_there_in_the_next_conversation(store: SqlStore):
    engine = make_engine(store)
    first = await engine.conversation("first")
    await record_turn(first, "By the way, I am allergic to nuts.")
    answer = await remember(first, "The user is allergic to nuts.")
    [entry] = await store.memories.list("helper")
    assert answer == f"Remembered as {entry.id}, from message #1."
    assert entry.citation == Citation("first", 0, 1)
    second = await engine.conversation("second")
    request = await second.prepare("What can I cook?")
    assert f"- The user is allergic to nuts. [{entry.id}]" in str(request.to_chat())
    assert request.assembly.rendered.stable_messages == 1
    [row] = [row for row in request.manifest.included if row.kind == "memory"]
    assert (row.slot, row.reason) == ("memory", "memory")


async def test_an_entry_made_since_comes_in_where_it_matters_and_keeps_the_prefix(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await record_turn(conversation, "I am allergic to nuts.")
    before = encode_stable_prefix(await conversation.prepare("Fine weather today?"))
    await remember(conversation, "The user is allergic to nuts.")
    request = await conversation.prepare("Do the cookies have nuts?")
    assert encode_stable_prefix(request) == before
    [row] = [row for row in request.manifest.included if row.kind == "memory"]
    assert (row.slot, row.reason, row.score is not None) == ("recall", "recalled", True)


async def test_a_correction_retires_the_old_entry(store: SqlStore):
    engine = make_engine(store)
    conversation = await engine.conversation("c")
    await record_turn(conversation, "I live in Rome.")
    await remember(conversation, "The user lives in Rome.")
    [old] = await store.memories.list("helper")
    await record_turn(conversation, "I moved to Milan.")
    await remember(conversation, "The user lives in Milan.", replaces=old.id)
    assert [entry.text for entry in await store.memories.list("helper")] == ["The user lives in Milan."]
    [retired] = [
        entry for entry in await store.memories.list("helper", include_retired=True) if entry.retired_at is not None
    ]
    assert (retired.id, retired.text) == (old.id, "The user lives in Rome.")
    text = str((await (await engine.conversation("later")).prepare("Where do I live?")).to_chat())
    assert "Milan" in text
    assert "Rome" not in text


async def test_what_is_recalled_never_becomes_a_memory_of_its_own(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await record_turn(conversation, "I am allergic to nuts.")
    await remember(conversation, "The user is allergic to nuts and to milk.")
    answers = [
        await remember(conversation, "the user is ALLERGIC to nuts and to milk"),
        await remember(conversation, "allergic to nuts"),
    ]
    [memory] = await store.memories.list("helper")
    assert "remembered already" in answers[0]
    assert f"replaces={memory.id!r}" in answers[1]


async def test_the_projects_memory_needs_no_agent(store: SqlStore, tmp_path: Path):
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    await store.memories.add(DEFAULT_AGENT, "Likes spaces.", source="notes.md")
    settings = Settings(model="gpt-4o", context_limit=16_000, context_tools=True)
    engine = Engine(store, EngineConfig.create(settings, vault=tmp_path))
    request = (await (await engine.conversation("c")).prepare("Hello")).to_chat()
    assert "Use tabs." in str(request)
    assert "Likes spaces." not in str(request)
    assert "remember" not in [tool["function"]["name"] for tool in request["tools"]]
