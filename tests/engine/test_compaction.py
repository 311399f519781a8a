"""Compaction loses nothing and never blocks: whatever the summary call does, the log is valid and the next turn
works."""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.sizes import IS_FULL_SIZE
from quire.compaction.execution import max_summary_tokens
from quire.compaction.summarizer import Summarizer
from quire.engine import Conversation, Engine, EngineConfig
from quire.errors import (
    ContextOverflow,
    IllegalCut,
    InvalidRequest,
    ModelRateLimited,
    ModelRefused,
    ModelRequestRejected,
    ModelUnavailable,
    SpendCapReached,
    StaleCompaction,
)
from quire.model import Compaction, Message, Span, ToolCallPart
from quire.model.context_events import (
    CompactionFailed,
    CompactionStarted,
    ContextCompacted,
    ContextEvent,
    ContextUsageUpdated,
)
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import DelayedReply, ScriptedModel
from quire.view.strategies import DiscardStrategy, register_strategy
from quire.wire import Reply, tokens

GOOD_SUMMARY = "Task: talk about rivers [#1].\nFacts: the mill stands at kilometre 12 [#3]."
LONG_TEXT = " ".join(f"At kilometre {number} the river turns by {number * 7 % 360} degrees." for number in range(400))


def make_engine(store: SqlStore, model: ScriptedModel | None = None, **settings: object) -> Engine:
    merged = Settings.model_validate(
        {"model": "gpt-4o", "context_limit": 2_000, "context_background_threshold": None} | settings
    )
    window = model.window if model is not None and model.window else 2_000
    counter = tokens.counter_for("gpt-4o")
    summarizer = Summarizer(model=model, window=window, counter=counter, timeout=0.3) if model is not None else None
    return Engine(store, EngineConfig.create(merged, instructions="Be brief.", summarizer=summarizer))


async def append_turns(conversation: Conversation, turns: int, *, words: int = 40) -> None:
    for turn in range(turns):
        await conversation.append(f"question {turn}: " + "why " * words, Message.assistant("so " * words))


async def record_turns(conversation: Conversation, turns: int) -> None:
    for _ in range(turns):
        request = await conversation.prepare("why " * 40)
        await conversation.record("so " * 40, request=request)


def summary_failures() -> dict[str, tuple[Any, str]]:
    """What the summary call does, and the failure reason that is recorded."""
    return {
        "times out": (DelayedReply(5, GOOD_SUMMARY), "timed_out"),
        "is rate limited": (ModelRateLimited("slow down"), "rate_limited"),
        "refuses": (ModelRefused("no"), "refused"),
        "is unavailable": (ModelUnavailable("gone"), "unavailable"),
        "is invalid": (ModelRequestRejected("no such model"), "invalid"),
        "returns nothing": ("", "empty"),
        "returns blanks": (" \n ", "empty"),
        "is cut off": (Reply(Message.assistant(GOOD_SUMMARY), None, "length"), "truncated"),
        "is longer than allowed": (LONG_TEXT, "too_long"),
        "is malformed": ("@@@@ #### 1111 ---- " * 30, "malformed"),
    }


@pytest.mark.parametrize("fault", summary_failures())
async def test_a_failed_summary_changes_nothing_and_the_next_turn_works(store: SqlStore, fault: str):
    step, reason = summary_failures()[fault]
    model = ScriptedModel(step, repeat=True)
    engine = make_engine(store, model)
    events: list[ContextEvent] = []
    engine.subscribe(events.append)
    conversation = await engine.conversation("c")
    await append_turns(conversation, 20)
    before = [entry for entry in await store.read_range("c") if entry.kind == "message"]
    request = await conversation.prepare("and now?")
    assert request.tokens <= 2_000 - 512
    assert [entry for entry in await store.read_range("c") if entry.kind == "message"] == before
    assert [event.reason for event in events if isinstance(event, CompactionFailed)] == [reason]
    window = await store.read_window("c")
    body = window.compaction.body
    assert body.failures == (reason,)
    assert body.model is None
    assert "[#" in body.summary
    await conversation.record("this.", request=request)
    assert (await conversation.prepare("again?")).tokens <= 2_000 - 512
    assert await store.verify_conversation("c") == []


@pytest.mark.every_database
async def test_a_good_summary_is_stored_with_its_sources(store: SqlStore):
    model = ScriptedModel(GOOD_SUMMARY + " And a citation of nothing [#999].", window=4_000)
    engine = make_engine(store, model)
    events: list[ContextEvent] = []
    engine.subscribe(events.append)
    conversation = await engine.conversation("c")
    await append_turns(conversation, 20)
    request = await conversation.prepare("and now?")
    body = (await store.read_window("c")).compaction.body
    assert body.sources == (1, 3)
    assert "999" not in body.summary
    assert (body.trigger, body.model, body.failures) == ("threshold", "scripted", None)
    assert body.tokens_after < body.tokens_before
    assert body.invalidated_tokens > 0
    assert body.savings_per_request > 0
    assert body.usage.input_tokens > 0
    kinds = [type(event) for event in events]
    assert kinds == [CompactionStarted, ContextCompacted, ContextUsageUpdated]
    summaries = [each["content"] for each in request.to_chat()["messages"] if "kilometre 12" in str(each["content"])]
    assert len(summaries) == 1
    assert summaries[0].startswith("<quire:summary ")
    assert model.max_prompt_tokens <= 4_000


async def test_the_previous_summary_is_merged_into_the_next(store: SqlStore):
    model = ScriptedModel(GOOD_SUMMARY, GOOD_SUMMARY + " More [#30].", repeat=True)
    conversation = await make_engine(store, model).conversation("c")
    await append_turns(conversation, 20)
    await conversation.prepare("and now?")
    await append_turns(conversation, 20)
    await conversation.prepare("and then?")
    assert any("kilometre 12" in str(message.text) for message in model.prompts[-1].messages)
    assert (await store.read_window("c")).compaction.body.supersedes is not None


async def test_a_history_of_ten_windows_and_a_message_larger_than_one(store: SqlStore):
    model = ScriptedModel(GOOD_SUMMARY, window=1_200, repeat=True)
    conversation = await make_engine(store, model).conversation("c")
    await append_turns(conversation, 40, words=60)
    await conversation.append("huge: " + "x1 y2 z3 " * 3_000)
    await append_turns(conversation, 10, words=60)
    request = await conversation.prepare("and now?")
    assert request.tokens <= 2_000 - 512
    body = (await store.read_window("c")).compaction.body
    assert body.model == "scripted"
    assert len(model.prompts) >= 10
    assert model.max_prompt_tokens <= 1_200


async def test_old_tool_outputs_become_stubs_before_anything_is_cut_off(store: SqlStore):
    conversation = await make_engine(store, ScriptedModel()).conversation("c")
    await conversation.append("read it all")
    for number in range(3):
        call = {"id": f"{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        await conversation.prepare() if number == 0 else None
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        parsed = conversation.engine.message_counter.wire_format.parse_reply(
            {"choices": [{"message": message}]}
        ).message
        await conversation.append(parsed, Message.tool(f"{number}", f"output {number} " * 150))
    await conversation.append(Message.assistant("read"), "thanks", Message.assistant("welcome"))
    await append_turns(conversation, 3, words=4)
    request = await conversation.prepare("what did it say?")
    body = (await store.read_window("c")).compaction.body
    assert body.covers is None
    assert body.truncations is None
    results = [each["content"] for each in request.to_chat()["messages"] if each["role"] == "tool"]
    assert results[0] == "[cleared: read({}) returned 1,350 characters; read #3]"
    assert sum(result.startswith("[cleared") for result in results) == body.cleared_results
    assert {row.reason for row in request.manifest.included} >= {"cleared", "recent"}
    reply = await conversation.record("that.", request=request)
    assert (await conversation.replay(reply.seq)).matches
    assert await store.verify_conversation("c") == []


async def test_undo_one_by_one_gives_each_view_back_to_the_byte(store: SqlStore):
    model = ScriptedModel(*(f"Summary {number} of rivers [#1]." for number in range(5)))
    conversation = await make_engine(store, model).conversation("c")
    views = []
    for _ in range(5):
        await append_turns(conversation, 14)
        views.append(await rendered_bytes(conversation))
        assert await conversation.compact() is not None
    for view in reversed(views):
        await conversation.undo_compaction()
        assert (await rendered_bytes(conversation))[: len(view)] == view
    with pytest.raises(InvalidRequest, match="no compaction"):
        await conversation.undo_compaction()


async def test_what_was_undone_is_redone_one_by_one_until_another_compaction(store: SqlStore):
    model = ScriptedModel(*(f"Summary {number} of rivers [#1]." for number in range(4)))
    conversation = await make_engine(store, model).conversation("c")
    views = []
    for _ in range(3):
        await append_turns(conversation, 14)
        assert await conversation.compact() is not None
        views.append(await rendered_bytes(conversation))
    for _ in range(2):
        for _ in range(3):
            await conversation.undo_compaction()
        for view in views:
            await conversation.redo_compaction()
            assert (await rendered_bytes(conversation))[: len(view)] == view
        with pytest.raises(InvalidRequest, match="no undone compaction"):
            await conversation.redo_compaction()
    await conversation.undo_compaction()
    await append_turns(conversation, 14)
    assert await conversation.compact() is not None
    with pytest.raises(InvalidRequest, match="no undone compaction"):
        await conversation.redo_compaction()
    assert await store.verify_conversation("c") == []


async def rendered_bytes(conversation: Conversation) -> tuple[bytes, ...]:
    """The rendered messages of the window, regardless of the budget."""
    window = await conversation.engine.store.read_window(conversation.id)
    counter = conversation.engine.message_counter
    summary = window.compaction.body.summary if window.compaction else ""
    return (summary.encode(), *(counter.render_entry(entry).encoded for entry in window.messages))


async def test_an_edited_summary_shows_and_the_old_one_stays(store: SqlStore):
    conversation = await make_engine(store, ScriptedModel(GOOD_SUMMARY, repeat=True)).conversation("c")
    await append_turns(conversation, 20)
    entry = await conversation.compact(instructions="keep the kilometres")
    assert entry.body.instructions == "keep the kilometres"
    assert "keep the kilometres" in (conversation.engine.summarizer.model.prompts[0].system or "")
    with pytest.raises(InvalidRequest, match="empty"):
        await conversation.edit_summary(" \n")
    await conversation.edit_summary("In short: rivers [#2].")
    texts = str((await conversation.prepare("so?")).to_chat()["messages"])
    assert "In short: rivers" in texts
    assert "kilometre 12" not in texts
    assert (await store.get_entry("c", entry.seq)).body.summary == GOOD_SUMMARY
    await conversation.undo_compaction()
    assert "kilometre 12" in str((await conversation.prepare("so?")).to_chat()["messages"])
    with pytest.raises(InvalidRequest, match="no active summary"):
        await (await make_engine(store).conversation("d")).edit_summary("x")


async def test_a_preview_changes_nothing(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await append_turns(conversation, 10)
    before = await store.get_branch("c")
    plan = await conversation.plan_compaction()
    assert plan is not None
    assert plan.covers.last < 20
    assert await store.get_branch("c") == before


async def test_what_cannot_be_reduced_is_named_without_another_call(store: SqlStore):
    model = ScriptedModel(GOOD_SUMMARY, repeat=True)
    engine = make_engine(store, model)
    engine = engine.with_changes(agent=engine.agent.model_copy(update={"instructions": "obey " * 3_000}))
    conversation = await engine.conversation("c")
    await append_turns(conversation, 20)
    with pytest.raises(ContextOverflow, match="instructions"):
        await conversation.prepare("and now?")
    assert len(model.prompts) <= 2


@pytest.mark.every_database
async def test_two_compactions_race_and_one_wins(store: SqlStore):
    model = ScriptedModel(DelayedReply(0.05, GOOD_SUMMARY), DelayedReply(0.05, GOOD_SUMMARY), GOOD_SUMMARY, repeat=True)
    engine = make_engine(store, model)
    conversations = [await engine.conversation("c") for _ in range(2)]
    await append_turns(conversations[0], 20)
    entries = await asyncio.gather(*(each.compact() for each in conversations))
    assert sum(entry is not None for entry in entries) == 1
    assert (await store.get_branch("c")).state.compaction_count == 1
    with pytest.raises(StaleCompaction):
        await store.append("c", Compaction(number=2, covers=Span(first=1, last=2), supersedes=None))


@pytest.mark.every_database
async def test_another_process_appends_during_a_slow_summary(store: SqlStore, database_url: str):
    script = f"""
import asyncio
from quire.store import SqlStore
from quire.model import Message
async def main():
    async with SqlStore.open({database_url!r}) as store:
        for number in range(100):
            await store.append("c", Message.user(f"meanwhile {{number}}"))
asyncio.run(main())
"""
    writer: list[asyncio.subprocess.Process] = []

    async def write_meanwhile() -> None:
        writer.append(await asyncio.create_subprocess_exec(sys.executable, "-c", script))
        await writer[0].wait()

    class WritingModel(ScriptedModel):
        async def complete(self, prompt: Any) -> Reply:
            await write_meanwhile()
            return Reply(Message.assistant(GOOD_SUMMARY), None, "stop")

    summarizer = Summarizer(model=WritingModel(), window=100_000, timeout=60)
    engine = make_engine(store).with_changes(summarizer=summarizer)
    conversation = await engine.conversation("c")
    await append_turns(conversation, 20)
    entry = await conversation.compact()
    assert entry.seq == 141
    messages = [each for each in await store.read_range("c") if each.kind == "message"]
    assert [each.message.text for each in messages[40:]] == [f"meanwhile {number}" for number in range(100)]
    window = await store.read_window("c")
    assert {each.seq for each in window.messages} >= set(range(41, 141))


async def test_above_the_lower_threshold_it_runs_in_the_background(store: SqlStore):
    model = ScriptedModel(DelayedReply(0.02, GOOD_SUMMARY), repeat=True)
    engine = make_engine(store, model, context_background_threshold=0.5)
    conversation = await engine.conversation("c")
    started: list[ContextEvent] = []
    engine.subscribe(lambda event: started.append(event) if isinstance(event, CompactionStarted) else None)
    for turn in range(25):
        before = len(started)
        request = await conversation.prepare(f"question {turn} " * 10)
        assert len(started) == before, "no request waits for a compaction"
        await conversation.record("answer " * 20, request=request)
        await engine.wait_for_background()
    assert len(started) >= 2
    triggers = {entry.body.trigger for entry in await store.read_range("c", kinds=["compaction"])}
    assert triggers == {"background"}


async def test_off_means_that_the_summarizer_is_not_called(store: SqlStore):
    model = ScriptedModel()
    engine = make_engine(store, model, context_management_enabled=False, context_background_threshold=0.1)
    conversation = await engine.conversation("c")
    with pytest.raises(ContextOverflow):
        await record_turns(conversation, 60)
    await engine.wait_for_background()
    assert model.prompts == []


async def test_a_cap_stops_before_the_next_call_summaries_included(store: SqlStore):
    model = ScriptedModel(GOOD_SUMMARY, repeat=True, name="gpt-4o")
    engine = make_engine(store, model, max_spend=0.02)
    conversation = await engine.conversation("c")
    await append_turns(conversation, 20)
    assert await conversation.compact() is not None
    summary = await store.spending.get_cost("c")
    assert summary > 0
    usage = {"prompt_tokens": 1_000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 800}}
    request = await conversation.prepare("and now?")
    choice = {"message": {"role": "assistant", "content": "so."}, "finish_reason": "stop"}
    await conversation.record({"choices": [choice], "usage": usage}, request=request)
    # gpt-4o, dollars per million tokens: 2.50 for new input, 1.25 for cached input, 10.00 for output.
    assert await store.spending.get_cost("c") == pytest.approx(summary + (200 * 2.5 + 800 * 1.25 + 100 * 10) / 1e6)
    await store.spending.add_cost("c", 0.02)
    for call in (conversation.prepare("more?"), conversation.compact()):
        with pytest.raises(SpendCapReached, match="max_spend"):
            await call


async def test_a_request_that_the_cap_cannot_pay_is_not_given_out(store: SqlStore):
    engine = make_engine(store, ScriptedModel(name="gpt-4o"), max_spend=0.001)
    conversation = await engine.conversation("c")
    await conversation.prepare("and now?")
    with pytest.raises(SpendCapReached, match=r"\$0.0010 is left, and the input .* is estimated at \$0.00"):
        await conversation.prepare("word " * 1_000)
    assert await conversation.cost() == 0


async def test_a_refused_summary_counts_against_the_cap(store: SqlStore):
    engine = make_engine(store, ScriptedModel("", repeat=True, name="gpt-4o"), max_spend=1.0)
    conversation = await engine.conversation("c")
    await append_turns(conversation, 20)
    assert (await conversation.compact()).body.failures == ("empty",)
    assert await store.spending.get_cost("c") > 0


async def test_hooks_come_before_and_after(store: SqlStore):
    engine = make_engine(store, ScriptedModel(GOOD_SUMMARY))
    calls: list[str] = []

    @engine.hooks.before_compaction
    async def before(conversation: str, plan: object) -> bool:
        calls.append("before")
        return len(calls) > 1

    @engine.hooks.after_compaction
    async def after(conversation: str, entry: object) -> None:
        calls.append("after")

    conversation = await engine.conversation("c")
    await append_turns(conversation, 20)
    assert await conversation.compact() is None
    assert await conversation.compact() is not None
    assert calls == ["before", "before", "after"]


async def test_a_process_killed_during_the_summary_leaves_the_log_as_it_was(store: SqlStore, database_url: str):
    conversation = await make_engine(store).conversation("c")
    await append_turns(conversation, 20)
    before = await store.read_range("c")
    script = f"""
import asyncio, os, signal
from quire.compaction.summarizer import Summarizer
from quire.engine import Engine, EngineConfig
from quire.store import SqlStore
from quire.settings import Settings
class Fatal:
    name = "fatal"
    async def complete(self, prompt):
        os.kill(os.getpid(), signal.SIGKILL)
async def main():
    async with SqlStore.open({database_url!r}) as store:
        settings = Settings(model="gpt-4o", context_limit=2_000)
        engine = Engine(store, EngineConfig.create(settings, summarizer=Summarizer(model=Fatal(), window=100_000)))
        await (await engine.conversation("c")).compact()
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    assert await process.wait() == -9
    assert await store.read_range("c") == before
    assert (await conversation.prepare("and now?")).tokens <= 2_000 - 512


@pytest.mark.parametrize("summarizer", ["extractive", "scripted"])
async def test_planted_facts_stay_within_reach(tmp_path: Path, summarizer: str):
    """200 facts over 2,000 messages and five compactions: count those in the view, cited, and in the log."""

    def summarize_codes(prompt: Any) -> str:
        """A summary with every code and its citation, as a good model would write it."""
        text = "\n".join(message.text for message in prompt.messages)
        where: dict[str, tuple[str, str]] = {}
        for vault, code, number in re.findall(r"vault (\d+) opens with (K-\d+) \[#(\d+)\]", text):
            where[vault] = (code, number)
        for number, sentence in re.findall(r"\[#(\d+)\]((?:(?!\[#).)*)", text, re.DOTALL):
            for vault, code in re.findall(r"vault (\d+) opens with (K-\d+)\.", sentence):
                where.setdefault(vault, (code, number))
        return "Facts: " + " ".join(f"vault {vault} opens with {code} [#{n}]" for vault, (code, n) in where.items())

    model = ScriptedModel(summarize_codes, repeat=True) if summarizer == "scripted" else None
    async with SqlStore.open(f"sqlite:///{tmp_path}/quire.db") as store:
        settings = Settings(model="gpt-4o", context_limit=24_000, context_background_threshold=None)
        configured = Summarizer(model=model, window=1_000_000, timeout=60) if model else None
        conversation = await Engine(store, EngineConfig.create(settings, summarizer=configured)).conversation("c")
        values, turns = {}, 1_000 if IS_FULL_SIZE else 250
        for turn in range(turns):
            planted = ""
            if turn % 5 == 0:
                values[turn // 5] = f"K-{7_919 * (turn + 1) % 9_000 + 1_000}"
                planted = f" By the way, vault {turn // 5} opens with {values[turn // 5]}."
            question = f"Tell me more about bend {turn} of the river, and what the water does there.{planted}"
            await conversation.append(question, Message.assistant(f"At bend {turn} the water slows and turns." * 2))
            if (turn + 1) % (turns // 5) == 0:
                assert await conversation.compact() is not None
        request = await conversation.prepare("Which codes do you know?")
        sent = str(request.to_chat()["messages"])
        in_view = [vault for vault, code in values.items() if code in sent]
        body = (await store.read_window("c")).compaction.body
        readable = 0
        for number in body.sources:
            readable += "opens with" in (await store.get_entry("c", number)).message.text
        log = " ".join(entry.message.text for entry in await conversation.messages())
        in_log = sum(f"vault {vault} opens with {code}." in log for vault, code in values.items())
        print(f"\n{summarizer}: {len(in_view)} of {in_log} in the view, {readable} cited and readable")
        assert in_log == turns // 5
        assert len(in_view) >= (0.9 if summarizer == "scripted" else 0.3) * in_log


async def test_a_summary_is_counted_once_when_it_is_written(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    settings = Settings(model="gpt-4o", context_limit=2_000, context_background_threshold=None, context_tools=False)
    conversation = await Engine(store, EngineConfig.create(settings)).conversation("c")
    await append_turns(conversation, 8)
    for change in (conversation.compact(), conversation.edit_summary("Nothing but rivers. [#1]")):
        entry = await change
        assert entry is not None
        [decision] = [row for row in (await conversation.preview()).decisions if row.kind == "summary"]
        assert (entry.tokens, entry.counter) == (decision.tokens, conversation.engine.message_counter.name)
    before = await conversation.preview()
    monkeypatch.setattr(tokens, "_vocabulary_encoder", lambda vocabulary: pytest.fail(f"{vocabulary} is loaded"))
    again = await Engine(store, EngineConfig.create(settings)).conversation("c")
    assert await again.preview() == before


@pytest.mark.parametrize("strategy", ["discard", "summarize", "hybrid"])
async def test_a_compaction_frees_what_the_meter_shows(store: SqlStore, strategy: str):
    conversation = await make_engine(store, strategy=strategy).conversation("c")
    await append_turns(conversation, 12)
    await conversation.pin(3)
    for turns in (0, 8, 6):
        await append_turns(conversation, turns)
        before = (await conversation.usage()).total_tokens
        entry = await conversation.compact()
        assert entry is not None
        assert isinstance(entry.body, Compaction)
        after = (await conversation.usage()).total_tokens
        assert (entry.body.tokens_before, entry.body.tokens_after) == (before, after)
    edited = await conversation.edit_summary("Short.")
    assert isinstance(edited.body, Compaction)
    after = (await conversation.usage()).total_tokens
    assert (edited.body.tokens_before, edited.body.tokens_after) == (entry.body.tokens_after, after)


async def test_a_compaction_inside_a_turn_frees_what_the_meter_shows(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await append_turns(conversation, 4)
    await conversation.append("Look everywhere.")
    for number in range(80):
        call = Message(role="assistant", parts=(ToolCallPart(id=f"c{number}", name="look"),))
        await conversation.append(call, Message.tool(f"c{number}", "Nothing but sand and stones. " * 8))
    before = (await conversation.usage()).total_tokens
    entry = await conversation.compact()
    assert entry is not None
    assert isinstance(entry.body, Compaction)
    assert entry.body.question is not None
    after = (await conversation.usage()).total_tokens
    assert (entry.body.tokens_before, entry.body.tokens_after) == (before, after)


async def test_a_plan_that_writes_no_summary_frees_what_it_says(store: SqlStore):
    conversation = await make_engine(store, strategy="discard").conversation("c")
    await append_turns(conversation, 12)
    await conversation.pin(3)
    for turns in (0, 8):
        await append_turns(conversation, turns)
        plan = await conversation.plan_compaction()
        assert plan is not None
        before = (await conversation.usage()).total_tokens
        await conversation.compact()
        assert before - (await conversation.usage()).total_tokens == plan.freed_tokens


@pytest.mark.parametrize("kept", [2, 6])
async def test_compacting_by_hand_preserves_as_many_messages_as_the_setting_says(store: SqlStore, kept: int):
    engine = make_engine(store, strategy="summarize", recent_messages_to_keep=kept, min_recent_messages_to_keep=2)
    conversation = await engine.conversation("c")
    await append_turns(conversation, 12)
    await conversation.compact()
    window = await store.read_window("c")
    assert len(window.messages) == kept
    assert window.messages[-1].seq == 24


async def test_an_edited_summary_may_not_exceed_its_share_of_the_window(store: SqlStore):
    conversation = await make_engine(store).conversation("c")
    await append_turns(conversation, 12)
    await conversation.compact()
    limit = max_summary_tokens(conversation.engine.policy.target_tokens)
    count = conversation.engine.message_counter.token_counter.count
    longest = "word" + " word" * (limit - 1)
    assert count(longest) == limit
    head = (await store.get_branch("c")).head_seq
    with pytest.raises(InvalidRequest, match=rf"{limit + 1:,} tokens.*{limit:,}"):
        await conversation.edit_summary(f"{longest} word")
    assert (await store.get_branch("c")).head_seq == head
    await conversation.edit_summary(longest)
    assert (await conversation.prepare("And now?")).tokens <= conversation.engine.policy.max_input_tokens


@pytest.mark.parametrize("cut", [-1, 23, 25, 1_000])
async def test_an_illegal_cut_of_a_strategy_is_refused_by_its_name(store: SqlStore, cut: int):
    class Careless(DiscardStrategy):
        name = "careless"

        def choose_cut(self, *_: object, **__: object) -> int:
            return cut

    register_strategy(Careless())
    conversation = await make_engine(store, strategy="careless").conversation("c")
    await append_turns(conversation, 12)
    with pytest.raises(IllegalCut, match=rf"'careless'.*{cut}"):
        await conversation.compact()
    assert (await store.get_branch("c")).state.active_compaction is None


async def test_a_large_message_is_excerpted_even_if_instructions_exceed_the_target(store: SqlStore):
    settings = Settings(model="gpt-4o", context_limit=2_000, min_recent_messages_to_keep=3)
    config = EngineConfig.create(settings, instructions="Be brief and kind. " * 200, summarizer=None)
    conversation = await Engine(store, config).conversation("c")
    await conversation.append("word " * 3_000, Message.assistant("Noted."))
    request = await conversation.prepare("And?")
    first = request.to_chat()["messages"][1]["content"]
    assert "characters left out; read #1" in first
    reply = await conversation.record("Yes.", request=request)
    assert (await conversation.why(1, reply_seq=reply.seq)).reason == "excerpted"
    assert (await conversation.replay(reply.seq)).matches


@pytest.mark.parametrize("strategy", ["discard", "summarize", "hybrid"])
async def test_a_compaction_that_would_free_nothing_is_not_made(store: SqlStore, strategy: str):
    """The summary of a short history, and the tools that read what it replaces, take more tokens than the history."""
    model = ScriptedModel("They spoke of a port. [#1]", repeat=True)
    settings = Settings(model="gpt-4o", strategy=strategy)
    conversation = await Engine(store, EngineConfig.create(settings, summarizer=model)).conversation("c")
    for number in range(2):
        await conversation.append(f"Question {number}?", Message.assistant(f"Answer {number}."))
    before = (await conversation.usage()).total_tokens
    assert await conversation.plan_compaction() is None
    assert await conversation.compact() is None
    assert (await conversation.usage()).total_tokens == before
    assert model.prompts == []


async def test_a_summary_as_long_as_what_it_replaces_is_not_stored(store: SqlStore):
    model = ScriptedModel("They spoke of a port and of the wind. " * 30 + "[#1]", repeat=True, name="gpt-4o")
    settings = Settings(model="gpt-4o", strategy="summarize")
    conversation = await Engine(store, EngineConfig.create(settings, summarizer=model)).conversation("c")
    for number in range(6):
        await conversation.append(f"Question {number}? {'wind ' * 12}", Message.assistant(f"Answer {number}."))
    before = (await conversation.usage()).total_tokens
    assert await conversation.compact() is None
    assert len(model.prompts) == 1
    assert (await conversation.usage()).total_tokens == before
    assert await conversation.cost() > 0
