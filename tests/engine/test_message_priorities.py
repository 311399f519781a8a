"""Priorities in a conversation: preserved through compactions, explained, replayed, undone, edited, purged."""

import pytest

from quire import Message
from quire.engine import Conversation, Engine, EngineConfig
from quire.errors import EntryNotFound, InvalidRequest
from quire.model import Compaction, ToolCallPart
from quire.settings import Settings
from quire.store import SqlStore

CRITICAL = "The code of the safe is 0451."
IMPORTANT = "The ferry leaves at nine."


def make_engine(store: SqlStore, **settings: object) -> Engine:
    merged = Settings.model_validate({"model": "gpt-4o", "context_limit": 2_000, "recall_tokens": 0} | settings)
    return Engine(store, EngineConfig.create(merged, instructions="Be brief."))


async def record_turns(conversation: Conversation, turns: int) -> int:
    """Records turns, and returns the number of the last reply."""
    reply = 0
    for turn in range(turns):
        request = await conversation.prepare(f"question {turn}: " + "why " * 30)
        reply = (await conversation.record(f"answer {turn}: " + "so " * 30, request=request)).seq
    return reply


async def list_texts(conversation: Conversation) -> list[str]:
    request = await conversation.prepare("and now?")
    return [each.get("content") for each in request.to_chat()["messages"]]


async def active_compaction(store: SqlStore) -> Compaction:
    window = await store.read_window("c")
    assert window.compaction is not None
    body = window.compaction.body
    assert isinstance(body, Compaction)
    return body


async def test_a_priority_survives_compactions_and_is_on_the_record(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await conversation.append(CRITICAL, Message.assistant("Noted."), IMPORTANT, Message.assistant("Noted."))
    await conversation.set_priority(1, 9)
    await conversation.set_priority(3, 6)
    reply = await record_turns(conversation, 60)
    state = (await store.get_branch("c")).state
    assert state.compaction_count > 2
    assert (await active_compaction(store)).preserved == (1, 3)
    texts = await list_texts(conversation)
    assert [text for text in texts if text in (CRITICAL, IMPORTANT)] == [CRITICAL, IMPORTANT]
    assert (await conversation.why(1, reply_seq=reply)).reason == "priority"
    assert (await conversation.why(2, reply_seq=reply)).reason == "archived"
    assert (await conversation.replay(reply)).matches
    assert await store.verify_conversation("c") == []


@pytest.mark.parametrize("strategy", ["discard", "summarize", "hybrid"])
async def test_the_preset_gives_every_class_its_share_in_any_strategy(store: SqlStore, strategy: str):
    engine = make_engine(store, strategy=strategy, shares="classes")
    assert engine.policy.shares is not None
    classes = {name: engine.policy.shares[name] for name in ("memory", "critical", "important", "normal")}
    assert classes == {"memory": 0.2, "critical": 0.3, "important": 0.25, "normal": 0.2}
    conversation = await engine.conversation("c")
    # More critical messages than their own share holds; normal ones get no place before them.
    for number in range(20):
        await conversation.append(f"{number}: {CRITICAL} " + "safe " * 30, Message.assistant("Noted."))
        await conversation.set_priority(2 * number + 1 + number, 10)
    reply = await record_turns(conversation, 25)
    body = await active_compaction(store)
    assert body.preserved
    manifest = await conversation.manifest(reply)
    [memory] = [slot.budget for slot in manifest.slots if slot.slot == "memory"]
    assert memory == int(0.2 * manifest.max_input_tokens)
    kept = sum(row.tokens for row in manifest.included if row.reason == "priority")
    assert 0 < kept <= 0.75 * manifest.max_input_tokens
    assert (await conversation.replay(reply)).matches


def test_an_unknown_preset_of_shares_is_refused():
    with pytest.raises(ValueError, match="classes"):
        Settings.model_validate({"shares": "seeds"})


@pytest.mark.parametrize("strategy", ["discard", "summarize"])
async def test_only_hybrid_uses_priorities(store: SqlStore, strategy: str):
    conversation = await make_engine(store, strategy=strategy).conversation("c")
    await conversation.append(CRITICAL, Message.assistant("Noted."))
    await conversation.set_priority(1, 10)
    await record_turns(conversation, 25)
    assert CRITICAL not in await list_texts(conversation)


async def test_a_priority_changes_no_request_before_the_next_compaction(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await conversation.append(CRITICAL, Message.assistant("Noted."))
    await conversation.set_priority(1, 9)
    await record_turns(conversation, 30)
    before = await list_texts(conversation)
    await conversation.set_priority(1, None)
    assert await list_texts(conversation) == before
    await conversation.compact()
    assert (await active_compaction(store)).preserved is None
    assert CRITICAL not in await list_texts(conversation)
    await conversation.undo_compaction()
    assert await list_texts(conversation) == before


async def test_an_edited_summary_carries_over_what_is_preserved(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await conversation.append(CRITICAL, Message.assistant("Noted."))
    await conversation.set_priority(1, 9)
    await record_turns(conversation, 30)
    await conversation.edit_summary("We talked. [#3]")
    texts = await list_texts(conversation)
    assert CRITICAL in texts
    assert any("We talked. [#3]" in text for text in texts)


async def test_a_tool_call_is_preserved_with_all_its_results(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    call = Message(role="assistant", parts=(ToolCallPart(id="x", name="look"), ToolCallPart(id="y", name="look")))
    await conversation.append("look", call, Message.tool("x", "found it"), Message.tool("y", "and this"))
    await conversation.append(Message.assistant("Both."))
    await conversation.set_priority(3, 8)
    reply = await record_turns(conversation, 30)
    assert (await active_compaction(store)).preserved == (2, 3, 4)
    assert {"found it", "and this"} <= set(await list_texts(conversation))
    assert (await conversation.replay(reply)).matches


@pytest.mark.every_database
async def test_a_purged_message_with_a_priority_has_no_text(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await conversation.append(CRITICAL, Message.assistant("Noted."))
    await conversation.set_priority(1, 9)
    await record_turns(conversation, 30)
    await store.purge("c", [1])
    assert "0451" not in str(await list_texts(conversation))
    assert await store.verify_conversation("c") == []


@pytest.mark.every_database
async def test_a_fork_and_an_import_have_the_priorities(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await conversation.append(CRITICAL, Message.assistant("Noted."))
    await conversation.set_priority(1, 9)
    await record_turns(conversation, 30)
    other = await conversation.fork((await store.get_branch("c")).head_seq)
    assert CRITICAL in await list_texts(other)
    lines = [line async for line in store.export_conversation("c")]
    assert any('"kind":"priority"' in line for line in lines)


@pytest.mark.parametrize("priority", [0, 11, -1])
async def test_a_priority_outside_its_range_is_refused(store: SqlStore, priority: int):
    conversation = await make_engine(store).conversation("c")
    await conversation.append("hello")
    with pytest.raises(InvalidRequest, match="from 1 to 10"):
        await conversation.set_priority(1, priority)


async def test_only_a_message_has_a_priority(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await conversation.append("hello")
    await conversation.pin(1)
    with pytest.raises(InvalidRequest, match="not a message"):
        await conversation.set_priority(2, 9)
    with pytest.raises(EntryNotFound):
        await conversation.set_priority(99, 9)


async def test_an_archived_message_takes_no_priority(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await conversation.append(CRITICAL, Message.assistant("Noted."))
    await conversation.set_priority(1, 9)
    await record_turns(conversation, 30)
    with pytest.raises(InvalidRequest, match=r"#2 is archived.*pin it, or undo the compaction"):
        await conversation.set_priority(2, 9)
    await conversation.set_priority(1, 8)  # A preserved message is in the view.
    await conversation.set_priority(2, None)
    await conversation.undo_compaction()
    while (await store.get_branch("c")).state.active_compaction is not None:
        await conversation.undo_compaction()
    await conversation.set_priority(2, 9)
