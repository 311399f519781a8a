"""`send` and `stream`: the library's agent loop, asynchronous and blocking."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

import quire
import quire.sync
from quire.agent.approvals import Allow
from quire.engine import Conversation, Engine, EngineConfig
from quire.errors import InvalidConfiguration, ModelRefused, UnknownPrice
from quire.llm import ModelChunk, Prompt, Reply, TextDelta
from quire.model import Message, ToolCallPart
from quire.model.events import ApprovalRequested, TextChunk, ToolCompleted, TurnEnded
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel


def get_weather(city: str) -> str:
    """Returns the current weather of a city.

    Args:
        city: Name of the city.
    """
    return f"Rain in {city}"


@quire.tool(needs_approval=True)
async def send_mail(to: str) -> str:
    """Sends a mail."""
    return f"sent to {to}"


def call_tool(name: str, **arguments: object) -> Message:
    return Message(role="assistant", parts=(ToolCallPart(id=name, name=name, arguments=json.dumps(arguments)),))


def make_model() -> ScriptedModel:
    return ScriptedModel(call_tool("get_weather", city="Ghent"), "Take an umbrella.")


async def open_conversation(store: SqlStore, **settings: object) -> Conversation:
    values = {"model": "gpt-4o", "context_limit": 16_000, **settings}
    return await Engine(store, EngineConfig.create(Settings.model_validate(values))).conversation("c")


async def test_a_function_is_offered_called_and_its_result_sent(store: SqlStore):
    conversation, model = await open_conversation(store), make_model()
    turn = await conversation.send("Do I need an umbrella?", tools=[get_weather], model=model)
    assert (turn.text, turn.reason, turn.steps, turn.compactions) == ("Take an umbrella.", "answered", 2, ())
    assert turn.cost_usd == pytest.approx(await conversation.cost())
    [offered] = model.prompts[0].tools
    assert (offered.name, offered.description) == ("get_weather", "Returns the current weather of a city.")
    assert "Name of the city." in str(offered.parameters)
    roles = [(entry.role, entry.message.text) for entry in await conversation.messages()]
    assert [role for role, _ in roles] == ["user", "assistant", "tool", "assistant"]
    assert turn.reply is not None
    assert (await conversation.replay(turn.reply.seq)).matches


async def test_events_arrive_in_order_and_closing_stops_the_turn(store: SqlStore):
    conversation, model = await open_conversation(store), make_model()
    async with aclosing(conversation.stream("Umbrella?", tools=[get_weather], model=model)) as events:
        async for event in events:
            if isinstance(event, ToolCompleted):
                break
    assert [entry.role for entry in await conversation.messages()] == ["user", "assistant", "tool"]
    rest = [event async for event in conversation.stream(tools=[get_weather], model=model)]
    assert "".join(event.text for event in rest if isinstance(event, TextChunk)) == "Take an umbrella."
    assert isinstance(rest[-1], TurnEnded)


async def approve_async(call: ToolCallPart) -> bool:
    await asyncio.sleep(0)
    return call.arguments == '{"to": "ann"}'


@pytest.mark.parametrize(
    ("approve", "result"),
    [
        (lambda call: True, "sent to ann"),
        (lambda call: Allow(), "sent to ann"),
        (approve_async, "sent to ann"),
        (lambda call: quire.Deny("Not Ann."), "Reason: Not Ann."),
        (lambda call: False, "the user denied it"),
        (lambda call: "yes", "the user denied it"),
        (None, "no way to request one"),
    ],
)
async def test_a_call_that_needs_approval_runs_only_with_it(
    store: SqlStore, approve: Callable[[ToolCallPart], bool] | None, result: str
):
    conversation = await open_conversation(store)
    model = ScriptedModel(call_tool("send_mail", to="ann"), "Done.")
    events = [
        event async for event in conversation.stream("Mail Ann.", tools=[send_mail], approve=approve, model=model)
    ]
    assert sum(isinstance(event, ApprovalRequested) for event in events) == 1
    [completed] = [event.result for event in events if isinstance(event, ToolCompleted)]
    assert result in completed.text
    assert completed.is_error == ("sent" not in result)


async def test_an_error_in_approve_is_raised_and_the_call_has_a_result(store: SqlStore):
    def approve(call: ToolCallPart) -> bool:
        raise LookupError("no policy")

    conversation = await open_conversation(store)
    model = ScriptedModel(call_tool("send_mail", to="ann"), "Done.")
    with pytest.raises(LookupError, match="no policy"):
        await conversation.send("Mail Ann.", tools=[send_mail], approve=approve, model=model)
    assert [entry.role for entry in await conversation.messages()] == ["user", "assistant", "tool"]


async def test_a_turn_that_reaches_max_steps_is_continued(store: SqlStore):
    conversation, model = await open_conversation(store), make_model()
    turn = await conversation.send("Umbrella?", tools=[get_weather], max_steps=1, model=model)
    assert (turn.reason, turn.steps, turn.text) == ("max_steps", 1, "")
    turn = await conversation.send(tools=[get_weather], model=model)
    assert (turn.reason, turn.steps, turn.text) == ("answered", 2, "Take an umbrella.")


async def test_no_step_begins_once_the_turn_has_cost_its_maximum(store: SqlStore):
    conversation = await open_conversation(store, models={"*": {"input_price": 1.0, "output_price": 1.0}})
    usage = quire.Usage(input_tokens=100_000)
    model = ScriptedModel(Reply(call_tool("get_weather", city="Ghent"), usage, "tool_calls"), repeat=True)
    await conversation.send("Umbrella?", tools=[get_weather], max_steps=3, model=model)
    turn = await conversation.send("And now?", tools=[get_weather], max_cost=0.25, model=model)
    assert (turn.reason, turn.steps, turn.cost_usd) == ("max_cost", 3, pytest.approx(0.3))
    assert await conversation.cost() == pytest.approx(0.6)


async def test_a_limit_of_cost_refuses_a_model_without_a_price(store: SqlStore):
    conversation = await open_conversation(store, model="unknown-7b")
    with pytest.raises(UnknownPrice):
        await conversation.send("Hello", max_cost=1.0, model=ScriptedModel("Hi"))
    assert await conversation.messages() == []


async def test_a_turn_that_fails_raises_its_error_and_the_question_is_in_the_log(store: SqlStore):
    conversation = await open_conversation(store)
    with pytest.raises(ModelRefused, match="no"):
        await conversation.send("Hello", model=ScriptedModel(ModelRefused("no")))
    assert [entry.message.text for entry in await conversation.messages()] == ["Hello"]
    assert (await conversation.send(model=ScriptedModel("Hi"))).text == "Hi"


async def test_two_tools_of_one_name_are_refused(store: SqlStore):
    conversation = await open_conversation(store)
    with pytest.raises(InvalidConfiguration, match="get_weather"):
        await conversation.send("Hello", tools=[get_weather, get_weather], model=ScriptedModel("Hi"))


async def test_a_decorated_function_can_still_be_called():
    assert await send_mail("ann") == "sent to ann"


def test_the_blocking_api_runs_tools_streams_and_continues(tmp_path: Path):
    with quire.sync.open(f"sqlite:///{tmp_path}/quire.db", model="gpt-4o") as engine:
        conversation, model = engine.conversation("c"), make_model()
        turn = conversation.send("Umbrella?", tools=[get_weather], max_steps=1, model=model)
        assert turn.reason == "max_steps"
        events = list(conversation.stream(tools=[get_weather], model=model))
        assert "".join(event.text for event in events if isinstance(event, TextChunk)) == "Take an umbrella."
        model = ScriptedModel(call_tool("send_mail", to="ann"), "Done.")
        for event in conversation.stream("Mail.", tools=[send_mail], approve=lambda call: True, model=model):
            if isinstance(event, ToolCompleted):
                assert event.result.text == "sent to ann"
                break
        assert [entry.role for entry in conversation.messages()][-3:] == ["user", "assistant", "tool"]


class _InterruptingModel(ScriptedModel):
    """Interrupts the program within a reply, as Ctrl-C does."""

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        yield TextDelta("It rai")
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(3_600)


@pytest.mark.usefixtures("default_interrupt")
def test_ctrl_c_stops_the_turn_and_the_partial_reply_is_recorded(tmp_path: Path):
    with quire.sync.open(f"sqlite:///{tmp_path}/quire.db", model="gpt-4o") as engine:
        conversation = engine.conversation("c")
        with pytest.raises(KeyboardInterrupt):
            conversation.send("Umbrella?", model=_InterruptingModel())
        reply = conversation.messages()[-1]
        assert (reply.message.text, reply.metadata.incomplete) == ("It rai", True)


class WatchedSummarizer(ScriptedModel):
    """Writes the same summary each time, after what the test does first."""

    def __init__(self, before: Callable[[], Awaitable[object]]) -> None:
        super().__init__("They walked. [#1]", repeat=True)
        self._before = before

    async def complete(self, prompt: Prompt) -> Reply:
        await self._before()
        return await super().complete(prompt)


async def open_full_conversation(store: SqlStore, summarizer: ScriptedModel, vault: Path | None = None) -> Conversation:
    """A conversation that exceeds its window, so that the next question waits for a summary."""
    settings = Settings(model="gpt-4o", context_limit=2_000)
    engine = Engine(store, EngineConfig.create(settings, vault=vault, summarizer=summarizer))
    conversation = await engine.conversation("c")
    for number in range(40):
        await conversation.append(f"Day {number}: {'rain and wind ' * 12}", Message.assistant(f"Noted, {number}."))
    return conversation


async def test_the_question_is_in_the_log_before_a_summary_is_asked_for(store: SqlStore, tmp_path: Path):
    """The process may end while it waits for the summary."""
    (tmp_path / "Mills.md").write_text("# Mills\n\nA mill grinds grain.\n")
    question, newest = "What is in [[Mills]]?", list[str]()

    async def read_newest() -> None:
        newest.append((await store.read_range("c", kinds=["message"]))[-1].message.text)

    conversation = await open_full_conversation(store, WatchedSummarizer(read_newest), tmp_path)
    result = await conversation.send(question, model=ScriptedModel("Grain."))
    assert newest
    assert set(newest) == {question}
    assert len(result.compactions) == 1
    texts = [entry.message.text for entry in await conversation.messages()]
    assert (texts[-2:], texts.count(question)) == ([question, "Grain."], 1)
    assert result.reply is not None
    rows = (await conversation.manifest(result.reply.seq)).included
    assert [row.name for row in rows if row.kind == "document"] == ["Mills.md"]
    assert (await conversation.replay(result.reply.seq)).matches


async def test_a_turn_that_is_stopped_during_a_summary_has_recorded_its_question_once(store: SqlStore):
    waiting = asyncio.Event()

    async def wait() -> None:
        waiting.set()
        await asyncio.Event().wait()

    conversation = await open_full_conversation(store, WatchedSummarizer(wait))
    turn = asyncio.create_task(conversation.send("And today?", model=ScriptedModel("Rain.")))
    await waiting.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    texts = [entry.message.text for entry in await conversation.messages()]
    assert (texts[-1], texts.count("And today?")) == ("And today?", 1)
