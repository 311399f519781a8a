"""`compact_when = "ask"`: until the user agrees, requests fit without a new compaction."""

from quire.engine import Conversation, Engine, EngineConfig
from quire.model import Message
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

SUMMARY = "## Task\nMany questions were put [#1]."


async def open_conversation(store: SqlStore, model: ScriptedModel, compact_when: str) -> Conversation:
    settings = Settings.model_validate({"model": "gpt-4o", "context_limit": 3_000, "compact_when": compact_when})
    engine = Engine(store, EngineConfig.create(settings, summarizer=model))
    return await engine.conversation(compact_when)


async def run_turns(conversation: Conversation, turns: int) -> None:
    for number in range(turns):
        request = await conversation.prepare(f"Question {number}: " + "why " * 60)
        assert request.tokens <= conversation.engine.policy.max_input_tokens
        await conversation.record(Message.assistant("so " * 60), request=request)
        await conversation.engine.wait_for_background()


async def test_nothing_is_compacted_before_the_user_agrees(store: SqlStore) -> None:
    model = ScriptedModel(SUMMARY, repeat=True, name="gpt-4o-mini")
    conversation = await open_conversation(store, model, "ask")
    await run_turns(conversation, 40)
    usage = await conversation.usage()
    assert usage.proposes_compaction
    assert usage.total_tokens > usage.trigger_tokens
    assert await store.read_range("ask", kinds=["compaction"]) == []
    assert model.prompts == []
    request = await conversation.prepare("And now?")
    assert request.compactions == ()
    assert any(row.reason == "over_budget" for row in request.manifest.excluded)
    entry = await conversation.compact()
    assert entry is not None
    assert not (await conversation.usage()).proposes_compaction
    assert model.prompts


async def test_by_default_it_is_compacted_when_needed(store: SqlStore) -> None:
    model = ScriptedModel(SUMMARY, repeat=True, name="gpt-4o-mini")
    conversation = await open_conversation(store, model, "needed")
    await run_turns(conversation, 40)
    assert not (await conversation.usage()).proposes_compaction
    assert await store.read_range("needed", kinds=["compaction"])


async def test_the_background_job_does_not_compact_either(store: SqlStore) -> None:
    conversation = await open_conversation(store, ScriptedModel(name="gpt-4o-mini"), "ask")
    await run_turns(conversation, 40)
    assert await conversation.compact(trigger="background") is None
