"""Memory: the project's files, and what the agent remembers, each entry with the message that it came from."""

import json
from pathlib import Path

from quire.engine import Conversation, Engine
from quire.log import SqlStore
from quire.log.found import Citation
from quire.model import ToolCallPart
from quire.model.agents import Agent
from quire.settings import Settings

AGENT = Agent(name="helper", instructions="Help.")


def engine_on(store: SqlStore, *, agent: Agent = AGENT, folder: Path | None = None, **changes: object) -> Engine:
    settings = Settings.model_validate({"model": "gpt-4o", "context_limit": 16_000, **changes})
    return Engine(store, settings=settings, agent=agent, vault=folder)


async def remember(conversation: Conversation, text: str, **more: str) -> str:
    arguments = json.dumps({"text": text, **more})
    [result] = (await conversation.run_tool(ToolCallPart(id="1", name="remember", arguments=arguments))).tool_results
    return result.content[0].text


async def told(conversation: Conversation, text: str) -> None:
    await conversation.prepare(text)
    await conversation.record("I see.")


async def test_the_projects_memory_stands_in_the_stable_part_and_is_read_anew(store: SqlStore, tmp_path: Path):
    (tmp_path / "AGENTS.md").write_text("Use tabs. @style.md")
    (tmp_path / "style.md").write_text("Short lines.")
    conversation = await engine_on(store, folder=tmp_path).conversation("c")
    first = await conversation.prepare("Hello")
    texts = [message["content"] for message in first.to_openai()["messages"]]
    assert "Use tabs." in texts[1]
    assert "Short lines." in texts[2]
    assert first.assembly.pages.stable == 2
    assert [(row.name, row.reason) for row in first.manifest.included if row.what == "memory"] == [
        ("AGENTS.md", "memory"),
        ("style.md", "imported"),
    ]
    reply = await conversation.record("Hi")
    (tmp_path / "AGENTS.md").write_text("Use spaces.")
    assert "Use spaces." in str((await conversation.prepare("Again")).to_openai())
    assert (await conversation.replay(reply.seq)).matches


async def test_memory_can_be_switched_off(store: SqlStore, tmp_path: Path):
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    off = engine_on(store, folder=tmp_path, memory_integration=False)
    assert "tabs" not in str((await (await off.conversation("c")).prepare("Hello")).to_openai())


async def test_an_entry_cites_its_message_and_is_there_in_the_next_conversation(store: SqlStore):
    engine = engine_on(store)
    first = await engine.conversation("first")
    await told(first, "By the way, I am allergic to nuts.")
    said = await remember(first, "The user is allergic to nuts.")
    [entry] = await store.memories("helper")
    assert said == f"Remembered as {entry.id}, from message #1."
    assert entry.cites == Citation("first", 0, 1)
    second = await engine.conversation("second")
    request = await second.prepare("What can I cook?")
    assert "- The user is allergic to nuts. [#1]" in str(request.to_openai())
    assert request.assembly.pages.stable == 1
    [row] = [row for row in request.manifest.included if row.what == "memory"]
    assert (row.slot, row.reason) == ("memory", "memory")


async def test_an_entry_made_since_comes_in_where_it_matters_and_keeps_the_prefix(store: SqlStore):
    conversation = await engine_on(store).conversation("c")
    await told(conversation, "I am allergic to nuts.")
    before = (await conversation.prepare("Fine weather today?")).assembly.pages.stable_bytes()
    await remember(conversation, "The user is allergic to nuts.")
    request = await conversation.prepare("Do the cookies have nuts?")
    assert request.assembly.pages.stable_bytes() == before
    [row] = [row for row in request.manifest.included if row.what == "memory"]
    assert (row.slot, row.reason, row.score is not None) == ("recall", "recalled", True)


async def test_a_correction_retires_the_old_entry(store: SqlStore):
    engine = engine_on(store)
    conversation = await engine.conversation("c")
    await told(conversation, "I live in Rome.")
    await remember(conversation, "The user lives in Rome.")
    [old] = await store.memories("helper")
    await told(conversation, "I moved to Milan.")
    await remember(conversation, "The user lives in Milan.", replaces=old.id)
    assert [entry.text for entry in await store.memories("helper")] == ["The user lives in Milan."]
    [retired] = [entry for entry in await store.memories("helper", retired=True) if entry.retired_at is not None]
    assert (retired.id, retired.text) == (old.id, "The user lives in Rome.")
    text = str((await (await engine.conversation("later")).prepare("Where do I live?")).to_openai())
    assert "Milan" in text
    assert "Rome" not in text


async def test_what_is_recalled_never_becomes_a_memory_of_its_own(store: SqlStore):
    conversation = await engine_on(store).conversation("c")
    await told(conversation, "I am allergic to nuts.")
    await remember(conversation, "The user is allergic to nuts and to milk.")
    await conversation.prepare("Do the cookies have nuts?")
    said = [
        await remember(conversation, "the user is ALLERGIC to nuts and to milk"),
        await remember(conversation, "allergic to nuts"),
    ]
    assert "remembered already" in said[0]
    assert "recalled text is not remembered anew" in said[1]
    assert len(await store.memories("helper")) == 1
