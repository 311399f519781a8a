"""Two levels of a summary: the full one where it fits its share of the window, the short one elsewhere."""

import pytest

from quire.compaction.execution import SHORT_SUMMARY_TOKENS
from quire.compaction.extractive_summary import SHORT_HEADING
from quire.engine import Conversation, Engine, EngineConfig
from quire.model import Compaction, Message
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

FACTS = "\n".join(f"- The berth of ship {number} is {7 * number} [#{number % 9 + 1}]" for number in range(150))
FULL_SUMMARY = f"## Facts and identifiers\n{FACTS}"


async def open_conversation(store: SqlStore, summary: str = FULL_SUMMARY) -> Conversation:
    settings = Settings(
        model="gpt-4o",
        context_limit=64_000,
        context_background_threshold=None,
        strategy="summarize",
        recent_messages_to_keep=2,
    )
    model = ScriptedModel(summary, repeat=True, name="gpt-4o-mini")
    engine = Engine(store, EngineConfig.create(settings, summarizer=model))
    conversation = await engine.conversation("c")
    for number in range(40):
        await conversation.append(f"Question {number}: " + "why " * 300, Message.assistant("so " * 300))
    assert await conversation.compact() is not None
    return conversation


def with_window(conversation: Conversation, window: int) -> Conversation:
    return Conversation(conversation.engine.with_changes(context_limit=window), conversation.id)


async def read_compaction(store: SqlStore) -> Compaction:
    entry = (await store.read_window("c")).compaction
    assert entry is not None
    assert isinstance(entry.body, Compaction)
    return entry.body


async def test_both_levels_are_stored_and_each_window_has_the_one_that_fits(store: SqlStore) -> None:
    conversation = await open_conversation(store)
    body = await read_compaction(store)
    assert body.summary == FULL_SUMMARY
    assert body.short_summary is not None
    assert body.short_summary.startswith(SHORT_HEADING)
    counter = conversation.engine.message_counter.token_counter
    assert counter.count(body.short_summary) <= SHORT_SUMMARY_TOKENS
    assert all(line in FULL_SUMMARY for line in body.short_summary.splitlines()[1:] if "…" not in line)
    large, small = conversation, with_window(conversation, 6_000)
    for each, level, text in (
        (large, None, FULL_SUMMARY), (small, "short", body.short_summary), (large, None, FULL_SUMMARY),
    ):  # fmt: skip
        request = await each.prepare("Where is ship 7?")
        [row] = [row for row in request.manifest.included if row.kind == "summary"]
        assert row.summary_level == level
        assert any(text in str(message["content"]) for message in request.to_chat()["messages"])
        reply = await each.record("In berth 49.", request=request)
        assert (await each.replay(reply.seq)).matches
    assert len(await store.read_range("c", kinds=["compaction"])) == 1, "a smaller window needs no other compaction"


async def test_a_short_summary_has_one_level(store: SqlStore) -> None:
    await open_conversation(store, "## Task\nShips and their berths [#1].")
    assert (await read_compaction(store)).short_summary is None


@pytest.mark.every_database
async def test_a_purge_removes_both_levels(store: SqlStore) -> None:
    await open_conversation(store)
    await store.purge("c", [1])
    [entry] = await store.read_range("c", kinds=["compaction"])
    assert "berth" not in entry.raw
