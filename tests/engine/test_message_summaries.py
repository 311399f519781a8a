"""A huge message that stays in the view: its beginning, its end, and between them a summary by the model."""

import json
import random

import pytest

from quire.engine import Conversation, Engine, EngineConfig
from quire.errors import ModelUnavailable
from quire.llm import Prompt, Reply
from quire.model import Compaction, Message, Usage
from quire.model.context_events import CompactionFailed, ContextEvent
from quire.model.messages import PURGED_TEXT
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel
from quire.wire.tokens import counter_for

MESSAGE_SUMMARY = "The list names 900 ships and their harbours; the Gannet lies in Gullhaven [#3]."
RUNNING_SUMMARY = "## Task\nThe user asks about ships [#1]."


def make_huge_text() -> str:
    chance = random.Random(3)
    ships = " ".join(f"Ship {number} lies in harbour {chance.randrange(10_000)}." for number in range(900))
    return f"Here is my list of ships. {ships} Tell me where the Gannet lies."


def answer(prompt: object) -> str:
    system = getattr(prompt, "system", "") or ""
    return MESSAGE_SUMMARY if "one long message" in system else RUNNING_SUMMARY


def make_engine(store: SqlStore, model: ScriptedModel | None, **changes: object) -> Engine:
    values = {"model": "gpt-4o", "context_limit": 4_000, "context_background_threshold": None, "strategy": "summarize"}
    values |= {"min_recent_messages_to_keep": 4}
    config = EngineConfig.create(Settings.model_validate({**values, **changes}), summarizer=model)
    return Engine(store, config)


async def fill(conversation: Conversation) -> None:
    """A short turn, then a huge message that the newest turns keep in the view."""
    await conversation.append("Hello.", Message.assistant("Hello, what is it?"))
    await conversation.append(make_huge_text(), Message.assistant("I have read it."))


async def read_compaction(conversation: Conversation) -> Compaction:
    entry = (await conversation.engine.store.read_window(conversation.id)).compaction
    assert entry is not None
    assert isinstance(entry.body, Compaction)
    return entry.body


def find_huge(payload: dict[str, object]) -> str:
    return next(text for each in payload["messages"] if "Here is my list" in (text := json.dumps(each)))  # type: ignore[attr-defined]


async def test_a_huge_message_is_summarized_with_its_number_and_replays(store: SqlStore) -> None:
    model = ScriptedModel(answer, repeat=True, name="gpt-4o-mini")
    conversation = await make_engine(store, model).conversation("c")
    await fill(conversation)
    request = await conversation.prepare("So where is she?")
    sent = find_huge(request.to_chat())
    assert MESSAGE_SUMMARY in sent
    assert "read #3; in summary: " in sent
    assert sent.count("Ship") < 200
    assert "Tell me where the Gannet lies." in sent
    body = await read_compaction(conversation)
    assert [(each.message, each.summary) for each in body.truncations or ()] == [(3, MESSAGE_SUMMARY)]
    await conversation.record("In Gullhaven.", request=request)
    assert (await conversation.replay((await conversation.messages())[-1].seq)).matches
    calls = len(model.prompts)
    await conversation.append(*(each for _ in range(4) for each in ("Go on.", Message.assistant("Aye. " * 30))))
    again = await conversation.prepare("And now?")
    assert MESSAGE_SUMMARY in find_huge(again.to_chat())
    assert len(model.prompts) == calls, "the summary is carried, not written twice"


async def test_its_summary_reads_the_whole_message_and_is_charged(store: SqlStore) -> None:
    model = ScriptedModel(answer, repeat=True, name="gpt-4o-mini")
    conversation = await make_engine(store, model).conversation("c")
    await fill(conversation)
    await conversation.prepare("So where is she?")
    text = "".join(prompt.messages[-1].text for prompt in model.prompts if "one long message" in (prompt.system or ""))
    assert all(f"Ship {number} lies" in text for number in range(900))
    input_tokens = counter_for("gpt-4o-mini").count(text)
    assert await conversation.cost() > input_tokens * 0.15 / 1e6, "its calls are charged"


async def test_without_a_model_or_if_it_fails_the_message_is_excerpted(store: SqlStore) -> None:
    events: list[ContextEvent] = []
    for id_, model in (("none", None), ("fails", ScriptedModel(ModelUnavailable(), repeat=True, name="gpt-4o-mini"))):
        engine = make_engine(store, model)
        engine.subscribe(events.append)
        conversation = await engine.conversation(id_)
        await fill(conversation)
        sent = find_huge((await conversation.prepare("So where is she?")).to_chat())
        assert "characters left out; read #3 " in sent
        assert "in summary" not in sent
    assert any(isinstance(each, CompactionFailed) for each in events)


async def test_a_strategy_without_summaries_calls_no_model(store: SqlStore) -> None:
    model = ScriptedModel(name="gpt-4o-mini")
    conversation = await make_engine(store, model, strategy="discard").conversation("c")
    await fill(conversation)
    assert "in summary" not in find_huge((await conversation.prepare("So where is she?")).to_chat())
    assert model.prompts == []


@pytest.mark.every_database
async def test_a_purge_removes_the_summary_of_a_message(store: SqlStore) -> None:
    model = ScriptedModel(answer, repeat=True, name="gpt-4o-mini")
    conversation = await make_engine(store, model).conversation("c")
    await fill(conversation)
    await conversation.prepare("So where is she?")
    entry = (await store.read_window("c")).compaction
    assert entry is not None
    await store.purge("c", [3])
    [purged] = await store.read_range("c", first=entry.seq, last=entry.seq)
    assert MESSAGE_SUMMARY not in purged.raw
    assert PURGED_TEXT in purged.raw


async def test_a_question_larger_than_the_window_is_summarized_before_it_is_sent(store: SqlStore) -> None:
    model = ScriptedModel(answer, repeat=True, name="gpt-4o-mini")
    conversation = await make_engine(store, model).conversation("c")
    await conversation.append("Hello.", Message.assistant("Hello, what is it?"))
    request = await conversation.prepare(make_huge_text())
    assert "in summary" not in find_huge(request.to_chat())
    entries, request = await conversation.record_question(request)
    assert [entry.seq for entry in entries] == [3]
    sent = find_huge(request.to_chat())
    assert "read #3; in summary: " in sent
    assert MESSAGE_SUMMARY in sent
    assert "Tell me where the Gannet lies." in sent
    assert request.tokens <= conversation.engine.policy.max_input_tokens
    reply = await conversation.record("In Gullhaven.", request=request)
    assert (await conversation.replay(reply.seq)).matches
    assert [entry.seq for entry in request.compactions] == [4]
    await conversation.undo_compaction()
    assert (await conversation.messages())[2].message.text == make_huge_text()


class PaidModel(ScriptedModel):
    """Remembers what each of its replies is billed for."""

    def __init__(self) -> None:
        super().__init__(answer, repeat=True, name="gpt-4o-mini")
        self.usages: list[Usage] = []

    async def complete(self, prompt: Prompt) -> Reply:
        reply = await super().complete(prompt)
        assert reply.usage is not None
        self.usages.append(reply.usage)
        return reply


async def test_the_summary_of_a_message_counts_towards_the_cost(store: SqlStore) -> None:
    model = PaidModel()
    conversation = await make_engine(store, model).conversation("c")
    await fill(conversation)
    await conversation.prepare("So where is she?")
    assert any("one long message" in (prompt.system or "") for prompt in model.prompts)
    config, body = conversation.engine.config, await read_compaction(conversation)
    cost = sum(config.compute_cost(usage, model.name).usd for usage in model.usages)
    assert cost > 0
    assert body.usage is not None
    assert body.usage.input_tokens == sum(usage.input_tokens or 0 for usage in model.usages)
    assert body.cost_usd == pytest.approx(cost)
    assert await conversation.cost() == pytest.approx(cost)
