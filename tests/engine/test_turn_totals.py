"""The answer of a turn of several steps carries the references, usage, cost and compactions of all of them."""

import json
from pathlib import Path

from quire.agent.turn import run_turn
from quire.engine import Conversation, Engine, EngineConfig
from quire.llm import Reply
from quire.model import Message, ToolCallPart, TurnTotals, Usage
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

PRICES = {"*": {"input_price": 1.0, "output_price": 10.0}}


def call_tool(id: str, name: str, **arguments: object) -> Message:
    return Message(role="assistant", parts=(ToolCallPart(id=id, name=name, arguments=json.dumps(arguments)),))


def make_engine(store: SqlStore, **settings: object) -> Engine:
    vault = settings.pop("vault", None)
    values = {"model": "gpt-4o", "context_limit": 16_000, "models": PRICES, **settings}
    return Engine(store, EngineConfig.create(Settings.model_validate(values), vault=vault))  # type: ignore[arg-type]


def reply_with(message: Message | str, *, input_tokens: int, output_tokens: int) -> Reply:
    built = Message.assistant(message) if isinstance(message, str) else message
    return Reply(built, Usage(model="gpt-4o", input_tokens=input_tokens, output_tokens=output_tokens), "stop")


async def play_turn(conversation: Conversation, question: str, model: ScriptedModel) -> None:
    async for _ in run_turn(conversation, question, model=model):
        pass


async def test_the_answer_has_the_documents_and_totals_of_all_steps(store: SqlStore, tmp_path: Path):
    (tmp_path / "A.md").write_text("# A\n\nAlpha about mills.\n")
    (tmp_path / "B.md").write_text("# B\n\nBeta about wheels.\n")
    engine = make_engine(store, vault=tmp_path, context_tools=True)
    conversation = await engine.conversation("c")
    model = ScriptedModel(
        reply_with(call_tool("1", "read_document", path="A.md"), input_tokens=1_000, output_tokens=10),
        reply_with(call_tool("2", "read_document", path="B.md"), input_tokens=2_000, output_tokens=20),
        reply_with("Mills drive wheels.", input_tokens=3_000, output_tokens=30),
    )
    await play_turn(conversation, "Compare mills and wheels.", model)
    *steps, answer = [entry for entry in await conversation.messages() if entry.role == "assistant"]
    assert [reference.path for reference in answer.metadata.references or ()] == ["A.md", "B.md"]
    totals = answer.metadata.turn
    assert totals is not None
    assert (totals.steps, totals.usage.input_tokens, totals.usage.output_tokens) == (3, 6_000, 60)
    assert totals.cost_usd == (6_000 + 60 * 10) / 1_000_000 == await conversation.cost()
    assert [step.metadata.turn for step in steps] == [None, None]
    assert await store.verify_conversation("c") == []


async def test_the_next_turn_starts_from_zero(store: SqlStore, tmp_path: Path):
    (tmp_path / "A.md").write_text("# A\n\nAlpha about mills.\n")
    conversation = await make_engine(store, vault=tmp_path, context_tools=True).conversation("c")
    model = ScriptedModel(call_tool("1", "read_document", path="A.md"), "Mills.", "You are welcome.")
    await play_turn(conversation, "What is A about?", model)
    await play_turn(conversation, "Thanks.", model)
    answer = (await conversation.messages())[-1]
    assert answer.metadata.references is None
    assert answer.metadata.turn is not None
    assert answer.metadata.turn.steps == 1


async def test_steps_recorded_one_by_one_are_added_up_too(store: SqlStore):
    """As an application's own loop and the gateway record them: each step by its own request."""
    conversation = await make_engine(store).conversation("c")
    request = await conversation.prepare("What is the time?")
    step = reply_with(call_tool("1", "clock"), input_tokens=100, output_tokens=1)
    await conversation.record(step, request=request)
    request = await conversation.prepare([Message.tool("1", "noon")])
    answer = await conversation.record(reply_with("Noon.", input_tokens=200, output_tokens=2), request=request)
    usage = Usage(model="gpt-4o", input_tokens=300, output_tokens=3)
    assert answer.metadata.turn == TurnTotals(steps=2, usage=usage, cost_usd=330 / 1_000_000)


async def test_the_answer_lists_the_compactions_of_its_turn_and_no_others(store: SqlStore):
    conversation = await make_engine(store, context_limit=2_000, strategy="discard").conversation("c")
    listed: list[int] = []
    made: set[int] = set()
    for number in range(12):
        await play_turn(conversation, f"Tell me more {number}. " + "word " * 150, ScriptedModel("so it is " * 50))
        answer = (await conversation.messages())[-1]
        assert answer.metadata.turn is not None
        listed += answer.metadata.turn.compactions or ()
        made = {entry.seq for entry in await store.read_range("c", kinds=["compaction"])}
        assert sorted(listed) == sorted(made)
    assert len(made) > 1


async def test_a_compaction_within_a_turn_is_on_the_answer(store: SqlStore):
    conversation = await make_engine(store, context_limit=4_000, strategy="discard").conversation("c")
    for number in range(5):
        await conversation.append(f"Before {number}. " + "word " * 400, Message.assistant("so it is " * 100))
    calls = [call_tool(str(number), "history_read", first=1, last=2) for number in range(4)]
    await play_turn(conversation, "Read it again.", ScriptedModel(*calls, "Done."))
    answer = (await conversation.messages())[-1]
    assert answer.metadata.turn is not None
    made = [entry.seq for entry in await store.read_range("c", kinds=["compaction"])]
    assert made
    assert list(answer.metadata.turn.compactions or ()) == made
