"""Hand-overs of stored conversations: what is read, the summarizer and its failures, secrets, branches."""

import pytest

from quire.engine import Engine, EngineConfig
from quire.engine.handover import MAX_HANDOVER_TOKENS, MAX_READ_MESSAGES, write_handover
from quire.errors import BranchNotFound, ConversationNotFound, InvalidRequest, ModelUnavailable
from quire.llm import Model
from quire.log.types import ConversationOrigin
from quire.model import Message
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

SECRET = "ghp_" + "a1B2c3D4e5F6" * 3
SUMMARY = "## Progress\nTwo Rotterdam valves are ordered [#2]."


def make_engine(store: SqlStore, summarizer: Model | None = None, **settings: object) -> Engine:
    values = {"model": "gpt-4o", "context_limit": 8_000, **settings}
    return Engine(store, EngineConfig.create(Settings.model_validate(values), summarizer=summarizer))


async def fill(engine: Engine, *messages: Message | str) -> None:
    origin = ConversationOrigin(client="codex", project="/mill")
    await engine.store.create_conversation("c", title="The gate", origin=origin)
    await (await engine.conversation("c")).append(*messages)


async def test_a_hand_over_without_a_model(store: SqlStore):
    engine = make_engine(store)
    await fill(engine, "Which valve?", Message.assistant("We decided on the Rotterdam valve."))
    handover = await write_handover(engine, "c")
    assert (handover.title, handover.source, handover.project) == ("The gate", "codex", "/mill")
    assert (handover.messages, handover.model) == (2, None)
    assert handover.sources == (1, 2)
    assert handover.tokens == engine.message_counter.token_counter.count(handover.text) <= handover.max_tokens
    assert await write_handover(engine, "c") == handover


async def test_a_named_summarizer_writes_the_state_and_is_paid(store: SqlStore):
    model = ScriptedModel(SUMMARY, name="gpt-4o-mini", repeat=True)
    engine = make_engine(store, model)
    await fill(engine, f"Order valves with {SECRET}.", Message.assistant("Ordered two Rotterdam valves."))
    handover = await write_handover(engine, "c")
    assert handover.model == "gpt-4o-mini"
    assert "Two Rotterdam valves are ordered [#2]." in handover.text
    assert SECRET not in str(model.prompts)
    assert await engine.store.spending.get_cost("c") > 0
    assert (await engine.store.get_branch("c")).head_seq == 2, "the branch is unchanged"
    extract = await write_handover(engine, "c", calls_model=False)
    assert extract.model is None
    assert len(model.prompts) == 1


async def test_the_model_that_answers_is_not_called(store: SqlStore):
    model = ScriptedModel(SUMMARY, repeat=True)
    engine = Engine(store, EngineConfig.create(Settings(context_limit=8_000), summarizer=lambda name: model))
    await fill(engine, "Which valve?")
    assert (await write_handover(engine, "c")).model is None
    assert model.prompts == []


@pytest.mark.parametrize("reply", [ModelUnavailable("down"), "", "x " * 20_000])
async def test_a_failed_summary_gives_an_extract(store: SqlStore, reply: str | Exception):
    engine = make_engine(store, ScriptedModel(reply, repeat=True))
    await fill(engine, "Which valve?", Message.assistant("We decided on the Rotterdam valve."))
    handover = await write_handover(engine, "c")
    assert handover.model is None
    assert "We decided on the Rotterdam valve [#2]" in handover.text


async def test_a_spent_cap_gives_an_extract(store: SqlStore):
    model = ScriptedModel(SUMMARY, name="gpt-4o-mini", repeat=True)
    engine = make_engine(store, model, max_spend=0.001)
    await fill(engine, "Which valve?")
    await engine.store.spending.add_cost("c", 1.0)
    assert (await write_handover(engine, "c")).model is None
    assert model.prompts == []


async def test_secrets_are_masked(store: SqlStore):
    engine = make_engine(store)
    await fill(engine, f"The token is {SECRET}", Message.assistant(f"We decided to use {SECRET}."))
    await engine.store.rename_conversation("c", f"About {SECRET}")
    masked = await write_handover(engine, "c")
    assert SECRET not in masked.model_dump_json()
    assert "masked GitHub token" in masked.text


async def test_a_compacted_conversation_has_its_summary(store: SqlStore):
    engine = make_engine(store)
    await fill(engine, *(f"Sensor {number} reads {number * 17} mm at quay {number}." for number in range(200)))
    conversation = await engine.conversation("c")
    compaction = await conversation.compact()
    assert compaction is not None
    text = (await write_handover(engine, "c")).text
    assert "Sensor 0 reads 0 mm at quay 0" in text
    assert "A compaction summarized" in text


async def test_a_branch_is_handed_over(store: SqlStore):
    engine = make_engine(store)
    await fill(engine, "Which valve?", Message.assistant("The brass one."))
    branch = await store.fork("c", at=1)
    await store.append("c", Message.assistant("The Rotterdam one."), branch=branch.number)
    text = (await write_handover(engine, "c", branch=branch.number)).text
    assert "Rotterdam" in text
    assert "brass" not in text
    assert "- branch: 1" in text


async def test_purged_and_empty_conversations(store: SqlStore):
    engine = make_engine(store)
    await fill(engine, "The zeppelin lands at noon.", Message.assistant("Noted."))
    await store.purge("c", [1])
    assert "zeppelin" not in (await write_handover(engine, "c")).text
    await store.create_conversation("empty")
    assert (await write_handover(engine, "empty")).sources == ()


async def test_bounds(store: SqlStore):
    engine = make_engine(store)
    await fill(engine, *(f"Message {number}" for number in range(MAX_READ_MESSAGES + 5)))
    text = (await write_handover(engine, "c")).text
    assert "- First request: Message 0 [#1]" in text
    assert "Messages before #6 are in the log" in text
    for wrong in (199, MAX_HANDOVER_TOKENS + 1, -1):
        with pytest.raises(InvalidRequest, match="has 200 to 50,000 tokens"):
            await write_handover(engine, "c", max_tokens=wrong)
    with pytest.raises(ConversationNotFound):
        await write_handover(engine, "unknown")
    with pytest.raises(BranchNotFound):
        await write_handover(engine, "c", branch=9)
