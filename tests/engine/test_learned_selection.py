"""Selections learn: an item that was chosen and never used loses rank, one that was added by hand gains. The manifest
says why."""

from quire.context.item_use import MIN_CHOSEN_REQUESTS, UNUSED_FACTOR, find_used_items, learn_rank
from quire.engine import Conversation, Engine, EngineConfig
from quire.model import Decision, Message, ToolCallPart, ToolDefinition
from quire.model.agents import Agent, Reference, Rule, ToolServer
from quire.settings import Settings
from quire.store import SqlStore
from quire.view.inputs import ContextBlock

TIDES = Reference(
    name="tides",
    description="Tides of the harbour: high water and low water.",
    text="High water at Vigo is at 06:12, low water at 12:25, and the lock opens two hours before.",
    include="agent",
)
LIGHTS = Rule(
    name="lights", description="Lights of the harbour at night.", text="Name lights by colour.", include="agent"
)
AGENT = Agent(name="pilot", rules=(LIGHTS,), references=(TIDES,))
QUESTION = "When is high water in the harbour, and how are the tides?"


def make_engine(store: SqlStore, agent: Agent = AGENT) -> Engine:
    settings = Settings.model_validate({"model": "gpt-4o", "context_limit": 16_000, "context_tools": False})
    return Engine(store, EngineConfig.create(settings, agent=agent))


async def ask(conversation: Conversation, reply: Message | str, *, question: str = QUESTION) -> int:
    request = await conversation.prepare(question)
    seq = (await conversation.record(reply, request=request)).seq
    await conversation.engine.runtime.jobs.wait()
    return seq


async def preview_row(engine: Engine, name: str) -> Decision:
    """The decision on an item for the question in a new conversation."""
    manifest = await (await engine.conversation()).preview(QUESTION)
    return next(row for row in manifest.decisions if row.name == name)


async def test_an_item_that_no_reply_uses_loses_rank_until_one_does(store: SqlStore):
    engine = make_engine(store)
    conversation = await engine.conversation("c")
    before = await preview_row(engine, "tides")
    assert (before.included, before.learned) == (True, None)
    for _ in range(MIN_CHOSEN_REQUESTS):
        reply = await ask(conversation, "I do not know.")
        row = await conversation.why("tides", reply_seq=reply)
        assert (row.included, row.used) == (True, False)
    after = await preview_row(engine, "tides")
    assert after.learned == learn_rank(chosen=MIN_CHOSEN_REQUESTS, used=0, added=0)
    assert after.score == round((before.score or 0) * UNUSED_FACTOR, 4)
    reply = await ask(conversation, "The lock opens; Vigo at 06:12.")
    row = await conversation.why("tides", reply_seq=reply)
    assert row.used
    assert row.learned == after.learned
    assert (await conversation.replay(reply)).matches
    assert await preview_row(engine, "tides") == before


async def test_an_item_that_was_added_by_hand_gains_rank_in_other_conversations(store: SqlStore):
    engine = make_engine(store)
    before = await preview_row(engine, "lights")
    conversation = await engine.conversation("c")
    await conversation.add_item("lights")
    for _ in range(2):
        await ask(conversation, "I do not know.")
    after = await preview_row(engine, "lights")
    assert after.learned is not None
    assert (after.learned.factor, after.learned.added) == (1.1, 2)
    assert before.score
    assert after.score == round(before.score * 1.1, 4)


async def test_a_preview_and_the_request_after_it_have_the_same_ranks(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    for _ in range(MIN_CHOSEN_REQUESTS + 1):
        await ask(conversation, "I do not know.")
    preview = await conversation.preview(QUESTION)
    request = await conversation.prepare(QUESTION)
    assert [row.learned for row in preview.decisions] == [row.learned for row in request.manifest.decisions]
    assert any(row.learned for row in preview.decisions)


async def test_a_tool_that_is_never_called_loses_rank_for_the_next_conversation(store: SqlStore):
    about = "High water and low water: the tides of a harbour."
    tool = ToolDefinition(name="water_level", description=about, parameters={"type": "object", "properties": {}})
    server = ToolServer(name="port", command="port", include="agent")
    engine = make_engine(store, Agent(name="pilot", servers=(server,), tools=(server.make_tool(tool),)))
    conversation = await engine.conversation("c")
    for _ in range(MIN_CHOSEN_REQUESTS):
        await ask(conversation, "I do not know.")
    assert (await preview_row(engine, "port__water_level")).learned == learn_rank(
        chosen=MIN_CHOSEN_REQUESTS, used=0, added=0
    )
    call = Message(role="assistant", parts=(ToolCallPart(id="1", name="port__water_level"),))
    await ask(conversation, call)
    await conversation.append(Message.tool("1", "2 m"))
    request = await conversation.prepare()
    await conversation.record("2 m.", request=request)
    await engine.runtime.jobs.wait()
    assert (await preview_row(engine, "port__water_level")).learned is None


def test_a_reply_uses_a_text_whose_own_words_it_repeats():
    def is_used(reply: str, question: str = "When is high water?") -> bool | None:
        row = Decision(slot="recall", kind="reference", included=True, reason="agent", name="tides")
        block = ContextBlock(slot="recall", kind="reference", name="tides", text=TIDES.text or "", reason="agent")
        [marked] = find_used_items([row], [block], question=question, reply=Message.assistant(reply))
        return marked.used

    assert is_used("The lock at Vigo opens at 04:12.")
    assert is_used("See the note on Tides.")
    assert not is_used("High water is when the water is high.")
    assert not is_used("The lock at Vigo opens at 04:12.", "When opens the lock at Vigo, in hours?")
