"""The turn loop: the order of its events, the log after it, and every kind of error."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turn_fixtures import (
    FAST_TURN_LIMITS,
    TOOL_NAMES,
    BrokenReply,
    FakeToolRunner,
    FaultyModel,
    check_events,
    check_log,
    collect_events,
    encode_events,
    is_answerable,
    make_approvals,
    make_conversation,
    make_engine,
    make_tool_call_reply,
    model_steps,
)

from quire.agent.approvals import Allow, AllowAlways, ApprovalDecision, Approvals
from quire.agent.limits import TurnLimits
from quire.agent.turn import run_turn
from quire.context.builtin_tool_schemas import build_builtin_tools
from quire.engine import Conversation
from quire.errors import (
    ContextOverflow,
    ModelContextOverflow,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelUnavailable,
    QuireError,
    SpendCapReached,
)
from quire.llm import ModelChunk, Prompt, Reply, TextDelta
from quire.model import Compaction, Message, ToolCallPart, Usage
from quire.model.agents import AgentTool
from quire.model.entry_metadata import sum_usage
from quire.model.events import (
    ApprovalRequested,
    QuestionRecorded,
    ReplyRecorded,
    RequestPrepared,
    RetryScheduled,
    TextChunk,
    ToolCompleted,
    TurnEnded,
    TurnEvent,
    TurnFailed,
)
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptStep

E = TypeVar("E")


def select_events(events: Sequence[TurnEvent], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def get_turn_ended(events: Sequence[TurnEvent]) -> TurnEnded:
    assert isinstance(events[-1], TurnEnded), events[-1]
    return events[-1]


def get_turn_error(events: Sequence[TurnEvent]) -> QuireError:
    assert isinstance(events[-1], TurnFailed), events[-1]
    return events[-1].error


async def test_a_question_is_answered(store: SqlStore):
    conversation = await make_conversation(store)
    events = await collect_events(run_turn(conversation, "hello", model=FaultyModel("It is noon.")))
    assert encode_events(events) == "SQPTTTRE"
    assert "".join(event.text for event in select_events(events, TextChunk)) == "It is noon."
    [question, reply] = await conversation.messages()
    assert select_events(events, QuestionRecorded)[0].entry == question
    assert select_events(events, ReplyRecorded)[0].entry == reply
    assert get_turn_ended(events).reason == "answered"
    assert (await conversation.replay(reply.seq)).matches
    assert (await conversation.why(question.seq, reply_seq=reply.seq)).reason == "newest"


async def test_tools_are_run_and_the_model_goes_on_from_their_results(store: SqlStore):
    conversation, model = (
        await make_conversation(store),
        FaultyModel(make_tool_call_reply("good:1", text="I look."), "Found."),
    )
    events = await collect_events(run_turn(conversation, "look", model=model, runners=[FakeToolRunner()]))
    assert encode_events(events) == "SQPTTRCBPTRE"
    assert [message.role for message in model.prompts[1].messages] == ["user", "assistant", "tool"]
    assert model.prompts[1].messages[-1].tool_results[0].text == "good of 1"
    assert model.prompts[0].system == "Be brief."
    assert {tool.name for tool in model.prompts[0].tools} == set(TOOL_NAMES)
    assert [event.step for event in select_events(events, RequestPrepared)] == [1, 2]
    replies = [entry.seq for entry in await conversation.messages() if entry.role == "assistant"]
    assert [(await conversation.replay(seq)).matches for seq in replies] == [True, True]
    await check_log(conversation)


async def test_the_question_is_in_the_log_before_the_model_is_called(store: SqlStore):
    conversation = await make_conversation(store)
    logged_texts: list[list[str]] = []

    class LogReadingModel(FaultyModel):
        async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
            logged_texts.append([entry.message.text for entry in await conversation.messages()])
            async for chunk in super().stream(prompt):
                yield chunk

    await collect_events(run_turn(conversation, "hello", model=LogReadingModel("hi")))
    assert logged_texts == [["hello"]]


async def test_calls_of_one_reply_run_side_by_side_and_their_results_are_in_the_order_of_the_calls(store: SqlStore):
    """Each waits for the one after it, so running them sequentially would deadlock."""
    conversation = await make_conversation(store)
    done = {str(number): asyncio.Event() for number in range(4)}
    done["3"].set()

    class ChainedRunner(FakeToolRunner):
        async def run(self, call: ToolCallPart) -> Message:
            await done[str(int(call.id) + 1)].wait()
            await asyncio.sleep(0.05)
            done[call.id].set()
            return Message.tool(call.id, f"result {call.id}")

    model = FaultyModel(make_tool_call_reply("good:0", "good:1", "good:2"), "done")
    limits = TurnLimits(tool_seconds=20)
    events = await collect_events(run_turn(conversation, "go", model=model, runners=[ChainedRunner()], limits=limits))
    assert [event.call.id for event in select_events(events, ToolCompleted)] == ["2", "1", "0"]
    results = [entry.message.tool_results for entry in await conversation.messages() if entry.role == "tool"]
    assert [[result.text for result in each] for each in results] == [["result 0"], ["result 1"], ["result 2"]]
    check_events(events)
    await check_log(conversation)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("bad", "bad failed: ValueError: no such luck"),
        ("hangs", "hangs gave no result within 0.05 s"),
        ("deaf", "deaf gave no result within 0.05 s"),
        ("quits", "quits failed: CancelledError"),
        ("odd", "odd gave no valid result"),
        ("forbidden", "the user denied it. Reason: Not today."),
        ("nowhere", "There is no tool 'nowhere'; available tools: good, bad"),
        ("history_search", "There is no tool 'history_search'"),
    ],
)
async def test_a_tool_without_a_result_gives_an_error_to_read_and_the_turn_continues(name: str, error: str):
    async with SqlStore.open("sqlite://") as store:
        conversation, runner = await make_conversation(store), FakeToolRunner()
        model = FaultyModel(make_tool_call_reply(f"{name}:x", "good:y"), "well")
        events = await collect_events(
            run_turn(
                conversation, "go", model=model, runners=[runner], approvals=make_approvals(), limits=FAST_TURN_LIMITS
            )
        )
        assert runner.cancelled_ids == (["x"] if name == "hangs" else [])
        [failed] = [event.result for event in select_events(events, ToolCompleted) if event.result.is_error]
        assert error in failed.text
        assert failed.call_id == "x"
        assert get_turn_ended(events).reason == "answered"
        check_events(events)
        await check_log(conversation)


async def test_only_tools_that_the_model_was_offered_are_run(store: SqlStore):
    """A runner may know more tools than the session has."""

    class HandlesAllRunner(FakeToolRunner):
        def handles(self, call: ToolCallPart) -> bool:
            return True

    conversation, runner = await make_conversation(store), HandlesAllRunner()
    model = FaultyModel(make_tool_call_reply("erase_everything:1"), "well")
    events = await collect_events(run_turn(conversation, "go", model=model, runners=[runner]))
    assert select_events(events, ToolCompleted)[0].result.is_error
    assert runner.started_ids == []


async def test_quires_own_tools_need_no_runner(store: SqlStore):
    engine = make_engine(store)
    tools = [AgentTool(definition=each) for each in build_builtin_tools(has_vault=False, has_memory=False)]
    conversation = await engine.with_changes(agent=engine.agent.with_tools(*tools)).conversation("c")
    await conversation.append("the code is 0451", Message.assistant("noted"))
    call = ToolCallPart(id="1", name="history_read", arguments='{"first": 1}')
    model = FaultyModel(Message(role="assistant", parts=(call,)), "0451")
    events = await collect_events(run_turn(conversation, "what was it?", model=model))
    [answered] = select_events(events, ToolCompleted)
    assert "the code is 0451" in answered.result.text


async def test_documents_that_tools_read_are_recorded_with_the_reply_after_them(store: SqlStore, tmp_path: Path):
    (tmp_path / "Mill.md").write_text("A mill grinds grain.")
    engine = make_engine(store)
    tools = [AgentTool(definition=each) for each in build_builtin_tools(has_vault=True, has_memory=False)]
    variant = engine.with_changes(vault=tmp_path, agent=engine.agent.with_tools(*tools))
    conversation = await variant.conversation("c")
    call = ToolCallPart(id="1", name="read_document", arguments='{"path": "Mill.md"}')
    model = FaultyModel(Message(role="assistant", parts=(call,)), "grain", "welcome")
    await collect_events(run_turn(conversation, "what does it grind?", model=model))
    await collect_events(run_turn(conversation, "thanks", model=model))
    replies = [entry for entry in await conversation.messages() if entry.role == "assistant"]
    paths = [[each.path for each in entry.metadata.references or ()] for entry in replies]
    assert paths == [[], ["Mill.md"], []]


async def test_approval_is_requested_after_all_earlier_events_were_handled(store: SqlStore):
    conversation, handled = await make_conversation(store), list[TurnEvent]()
    requests: list[tuple[str, str]] = []

    async def ask(call: ToolCallPart) -> ApprovalDecision:
        requests.append((call.id, encode_events(handled)))
        return Allow()

    model = FaultyModel(make_tool_call_reply("guarded:1", "good:2", "guarded:3", text="Now."), "done")
    async for event in run_turn(conversation, "go", model=model, runners=[FakeToolRunner()], approvals=Approvals(ask)):
        await asyncio.sleep(0.002)
        handled.append(event)
    assert requests[0] == ("1", "SQPTRCCCA")
    assert requests[1][0] == "3"
    assert requests[1][1].endswith("A")
    assert [event.call.id for event in select_events(handled, ApprovalRequested)] == ["1", "3"]
    check_events(handled)


async def test_what_is_always_allowed_needs_one_approval(store: SqlStore):
    conversation, approved_ids = await make_conversation(store), list[str]()

    async def ask(call: ToolCallPart) -> ApprovalDecision:
        approved_ids.append(call.id)
        return AllowAlways()

    approvals, runner = Approvals(ask), FakeToolRunner()
    model = FaultyModel(make_tool_call_reply("guarded:1", "guarded:2"), make_tool_call_reply("guarded:3"), "done")
    events = await collect_events(run_turn(conversation, "go", model=model, runners=[runner], approvals=approvals))
    assert (approved_ids, runner.started_ids) == (["1"], ["1", "2", "3"])
    assert len(select_events(events, ApprovalRequested)) == 1
    assert approvals.always_allowed == {"guarded"}
    again = FaultyModel(make_tool_call_reply("guarded:4"), "done")
    await collect_events(run_turn(conversation, "again", model=again, runners=[runner], approvals=approvals))
    assert (approved_ids, runner.started_ids[-1]) == (["1"], "4")


async def test_without_an_approval_callback_what_needs_approval_is_not_run(store: SqlStore):
    conversation, runner = await make_conversation(store), FakeToolRunner()
    model = FaultyModel(make_tool_call_reply("guarded:1"), "well")
    events = await collect_events(run_turn(conversation, "go", model=model, runners=[runner]))
    assert runner.started_ids == []
    assert "no way to request one" in select_events(events, ToolCompleted)[0].result.text


async def test_a_runner_that_cannot_say_whether_it_needs_approval_needs_it(store: SqlStore):
    class BrokenRuleRunner(FakeToolRunner):
        def needs_approval(self, call: ToolCallPart) -> bool:
            raise RuntimeError("who am I?")

    conversation, runner = await make_conversation(store), BrokenRuleRunner()
    await collect_events(
        run_turn(conversation, "go", model=FaultyModel(make_tool_call_reply("good:1"), "well"), runners=[runner])
    )
    assert runner.started_ids == []


async def test_an_error_of_the_approval_callback_ends_the_turn_with_every_call_answered(store: SqlStore):
    async def ask(call: ToolCallPart) -> ApprovalDecision:
        raise ZeroDivisionError

    conversation = await make_conversation(store)
    model = FaultyModel(make_tool_call_reply("good:1", "guarded:2", "guarded:3"))
    with pytest.raises(ZeroDivisionError):
        await collect_events(
            run_turn(conversation, "go", model=model, runners=[FakeToolRunner()], approvals=Approvals(ask))
        )
    await check_log(conversation)


async def test_a_turn_has_at_most_max_steps_replies(store: SqlStore):
    conversation, model = (
        await make_conversation(store),
        FaultyModel(make_tool_call_reply("good:1"), make_tool_call_reply("good:2"), "done"),
    )
    limits = TurnLimits(max_steps=2)
    events = await collect_events(run_turn(conversation, "go", model=model, runners=[FakeToolRunner()], limits=limits))
    assert (get_turn_ended(events).reason, get_turn_ended(events).steps) == ("max_steps", 2)
    check_events(events)
    await check_log(conversation)
    events = await collect_events(run_turn(conversation, model=model, limits=limits))
    assert encode_events(events) == "SPTRE"
    assert (await conversation.messages())[-1].message.text == "done"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(Message.assistant("half an ans"), None, "length"), "truncated"),
        (Reply(Message.assistant("half an ans"), None, "max_tokens"), "truncated"),
        (Reply(Message.assistant("half an ans"), None, "model_context_window_exceeded"), "truncated"),
        (Reply(Message.assistant("half an ans"), None, "MAX_TOKENS"), "truncated"),
        (Reply(Message(role="assistant", parts=()), None, "stop"), "empty"),
        (Reply(Message.assistant(" "), None, "stop"), "empty"),
        ("whole", "answered"),
    ],
)
async def test_a_turn_says_how_it_ended(store: SqlStore, reply: ScriptStep, reason: str):
    conversation = await make_conversation(store)
    events = await collect_events(run_turn(conversation, "go", model=FaultyModel(reply)))
    assert get_turn_ended(events).reason == reason
    await check_log(conversation)


class TestUsage:
    async def test_it_is_what_the_provider_reports_in_sum(self, store: SqlStore):
        conversation = await make_conversation(store)
        first = Usage(model="m", input_tokens=100, output_tokens=5, cache_read_tokens=40)
        second = Usage(model="m", input_tokens=120, output_tokens=7, cache_write_tokens=3)
        model = FaultyModel(
            Reply(make_tool_call_reply("good:1"), first, "tool_calls"), Reply(Message.assistant("x"), second, "stop")
        )
        events = await collect_events(run_turn(conversation, "go", model=model, runners=[FakeToolRunner()]))
        assert get_turn_ended(events).usage == Usage(
            model="m", input_tokens=220, output_tokens=12, cache_read_tokens=40, cache_write_tokens=3
        )
        recorded = [entry.metadata.usage for entry in await conversation.messages() if entry.role == "assistant"]
        assert recorded == [first, second]

    async def test_where_nothing_is_reported_it_is_an_estimate_and_says_so(self, store: SqlStore):
        conversation = await make_conversation(store)
        model = FaultyModel(Reply(Message.assistant("It is noon."), None, "stop"))
        events = await collect_events(run_turn(conversation, "hello", model=model))
        usage = get_turn_ended(events).usage
        assert usage.estimated
        assert usage.input_tokens == select_events(events, RequestPrepared)[0].tokens
        assert 4 <= usage.output_tokens <= 10
        assert (await conversation.messages())[-1].metadata.usage == usage
        assert await store.get_calibration("gpt-4o") is None

    def test_a_sum_with_an_estimate_in_it_is_one(self):
        reported, guessed = Usage(model="a", input_tokens=1), Usage(model="b", input_tokens=2, estimated=True)
        assert sum_usage([reported, guessed]) == Usage(input_tokens=3, estimated=True)
        assert sum_usage([reported, reported]).estimated is None
        assert sum_usage([]) == Usage()

    async def test_what_is_spent_stops_the_next_call(self, store: SqlStore):
        conversation = await make_conversation(
            store, max_spend=0.0115, models={"*": {"input_price": 100.0, "output_price": 100.0}}
        )
        model = FaultyModel(make_tool_call_reply("good:1"), "never")
        events = await collect_events(run_turn(conversation, "go", model=model, runners=[FakeToolRunner()]))
        assert isinstance(get_turn_error(events), SpendCapReached)
        assert model.remaining_replies == 1
        await check_after_spend_cap(events, conversation)


async def check_after_spend_cap(events: Sequence[TurnEvent], conversation: Conversation) -> None:
    check_events(events)
    await check_log(Conversation(conversation.engine.with_changes(max_spend=None), conversation.id))


class TestErrors:
    @pytest.mark.parametrize("error", [ModelRefused("no"), ModelUnavailable("gone"), ModelError("odd")])
    async def test_an_error_at_the_start_ends_the_turn_and_the_question_stays(self, store: SqlStore, error: ModelError):
        conversation, model = await make_conversation(store), FaultyModel(error, "back again")
        events = await collect_events(run_turn(conversation, "hello", model=model))
        assert encode_events(events) == "SQPF"
        assert get_turn_error(events) is error
        assert [entry.message.text for entry in await conversation.messages()] == ["hello"]
        await check_log(conversation)
        events = await collect_events(run_turn(conversation, model=model))
        assert get_turn_ended(events).reason == "answered"

    async def test_what_arrived_before_an_error_is_recorded_as_incomplete(self, store: SqlStore):
        conversation, error = await make_conversation(store), ModelUnavailable("gone")
        model = FaultyModel(BrokenReply("one two three four", 2, error))
        events = await collect_events(run_turn(conversation, "hello", model=model))
        assert encode_events(events) == "SQPTTRF"
        reply = (await conversation.messages())[-1]
        assert reply.message.text == "one two"
        assert reply.metadata.incomplete
        assert reply.metadata.usage is not None
        assert reply.metadata.usage.estimated
        assert select_events(events, ReplyRecorded)[0].incomplete
        assert (await conversation.replay(reply.seq)).matches
        await check_log(conversation)

    async def test_a_stream_that_ends_without_a_reply_is_incomplete(self, store: SqlStore):
        class NoReplyModel(FaultyModel):
            async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
                yield TextDelta("well")

        conversation = await make_conversation(store)
        events = await collect_events(run_turn(conversation, "hello", model=NoReplyModel()))
        assert encode_events(events) == "SQPTRF"
        assert isinstance(get_turn_error(events), ModelUnavailable)
        assert (await conversation.messages())[-1].metadata.incomplete

    async def test_a_reply_that_was_complete_before_an_error_is_recorded_as_complete(self, store: SqlStore):
        class FailsAfterReplyModel(FaultyModel):
            async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
                async for chunk in super().stream(prompt):
                    yield chunk
                raise ModelUnavailable("the connection broke after the reply")

        conversation, runner = await make_conversation(store), FakeToolRunner()
        events = await collect_events(
            run_turn(
                conversation, "hello", model=FailsAfterReplyModel(make_tool_call_reply("good:1")), runners=[runner]
            )
        )
        assert encode_events(events) == "SQPRCBF"
        assert (await conversation.messages())[1].metadata.incomplete is None
        assert runner.started_ids == []
        await check_log(conversation)

    async def test_a_finished_reply_is_not_marked(self, store: SqlStore):
        conversation = await make_conversation(store)
        await collect_events(run_turn(conversation, "hello", model=FaultyModel("hi")))
        assert (await conversation.messages())[-1].metadata.incomplete is None

    async def test_a_rate_limited_call_is_retried_with_backoff(self, store: SqlStore):
        conversation = await make_conversation(store)
        model = FaultyModel(ModelRateLimited(retry_after=0.05), ModelRateLimited(), "at last")
        limits = TurnLimits(initial_backoff_seconds=0.01)
        started_at = asyncio.get_running_loop().time()
        events = await collect_events(run_turn(conversation, "hello", model=model, limits=limits))
        assert encode_events(events) == "SQPWPWPTTRE"
        assert [event.delay_seconds for event in select_events(events, RetryScheduled)] == [0.05, 0.02]
        assert asyncio.get_running_loop().time() - started_at >= 0.07

    async def test_it_is_not_retried_for_ever_nor_after_text_arrived(self, store: SqlStore):
        conversation, limits = (
            await make_conversation(store),
            TurnLimits(initial_backoff_seconds=0, max_retries=2, max_backoff_seconds=1),
        )
        model = FaultyModel(*[ModelRateLimited()] * 9)
        assert isinstance(
            get_turn_error(await collect_events(run_turn(conversation, "a", model=model, limits=limits))),
            ModelRateLimited,
        )
        assert len(model.prompts) == 3
        model = FaultyModel(ModelRateLimited(retry_after=2), "never")
        assert isinstance(
            get_turn_error(await collect_events(run_turn(conversation, "b", model=model, limits=limits))),
            ModelRateLimited,
        )
        model = FaultyModel(BrokenReply("one two three", 1, ModelRateLimited()), "never")
        events = await collect_events(run_turn(conversation, "c", model=model, limits=limits))
        assert encode_events(events) == "SQPTRF"
        assert model.remaining_replies == 1

    async def test_an_overflow_that_only_the_provider_sees_leads_to_one_compaction(self, store: SqlStore):
        # Without recall, which would fill the space that the provider does not have.
        conversation = await make_conversation(store, strategy="summarize")
        for number in range(12):
            await conversation.append(f"question {number} " * 30, Message.assistant(f"answer {number} " * 30))
        model = FaultyModel("It fits.", window=1_800)
        events = await collect_events(run_turn(conversation, "hello", model=model))
        assert encode_events(events) == "SQPPTTRE"
        first, second = select_events(events, RequestPrepared)
        assert first.compactions == ()
        assert [entry.body.trigger for entry in second.compactions if isinstance(entry.body, Compaction)] == [
            "overflow"
        ]
        assert second.tokens < 1_800 < first.tokens
        assert model.prompts[-1].messages[-1].text == "hello"
        assert len(await conversation.messages()) == 26
        reply = (await conversation.messages())[-1]
        assert (await conversation.replay(reply.seq)).matches

    async def test_a_second_overflow_ends_the_turn(self, store: SqlStore):
        conversation = await make_conversation(store)
        for number in range(12):
            await conversation.append(f"question {number} " * 30, Message.assistant(f"answer {number} " * 30))
        model = FaultyModel(ModelContextOverflow("too long"), ModelContextOverflow("still too long"), "never")
        events = await collect_events(run_turn(conversation, "hello", model=model))
        assert encode_events(events) == "SQPPF"
        assert str(get_turn_error(events)) == "still too long"
        assert (await store.get_branch("c")).state.compaction_count == 1

    async def test_an_overflow_with_nothing_to_compact_is_not_tried_again(self, store: SqlStore):
        conversation, model = await make_conversation(store), FaultyModel(ModelContextOverflow("too long"), "never")
        events = await collect_events(run_turn(conversation, "hello", model=model))
        assert encode_events(events) == "SQPF"
        assert model.remaining_replies == 1

    async def test_off_means_off_when_the_provider_says_overflow(self, store: SqlStore):
        conversation = await make_conversation(store, context_management_enabled=False)
        for number in range(5):
            await conversation.append(f"question {number} " * 30, Message.assistant(f"answer {number} " * 30))
        events = await collect_events(
            run_turn(conversation, "hello", model=FaultyModel(ModelContextOverflow("too long")))
        )
        assert str(get_turn_error(events)) == "too long"
        assert (await store.get_branch("c")).state.compaction_count == 0

    async def test_an_overflow_in_the_midst_of_a_tool_loop_keeps_the_question_and_the_loop(self, store: SqlStore):
        conversation = await make_conversation(store)
        for number in range(12):
            await conversation.append(f"question {number} " * 30, Message.assistant(f"answer {number} " * 30))
        model = FaultyModel(make_tool_call_reply("good:1"), ModelContextOverflow("too long"), "done")
        events = await collect_events(run_turn(conversation, "hello", model=model, runners=[FakeToolRunner()]))
        assert encode_events(events) == "SQPRCBPPTRE"
        assert [message.role for message in model.prompts[-1].messages[-3:]] == ["user", "assistant", "tool"]
        assert model.prompts[-1].messages[-3].text == "hello"
        assert get_turn_ended(events).reason == "answered"

    async def test_a_question_that_cannot_be_sent_is_recorded(self, store: SqlStore):
        conversation = await make_conversation(store, context_management_enabled=False, context_limit=1_000)
        await conversation.append("why " * 2_000, Message.assistant("so"))
        events = await collect_events(run_turn(conversation, "and now?", model=FaultyModel("never")))
        assert encode_events(events) == "SQF"
        assert isinstance(get_turn_error(events), ContextOverflow)
        assert (await conversation.messages())[-1].message.text == "and now?"

    async def test_there_must_be_something_to_answer(self, store: SqlStore):
        conversation = await make_conversation(store)
        events = await collect_events(run_turn(conversation, model=FaultyModel("never")))
        assert encode_events(events) == "SF"


async def test_a_history_that_outgrows_its_window_within_a_turn_is_compacted_before_the_next_call(store: SqlStore):
    conversation = await make_conversation(store, context_limit=2_000)
    for number in range(8):
        await conversation.append(f"question {number} " * 20, Message.assistant(f"answer {number} " * 20))

    class LongResultRunner(FakeToolRunner):
        async def run(self, call: ToolCallPart) -> Message:
            return Message.tool(call.id, f"result {call.id} " * 60)

    model = FaultyModel(*(make_tool_call_reply(f"good:{number}") for number in range(6)), "done", window=2_000)
    events = await collect_events(
        run_turn(conversation, "go", model=model, runners=[LongResultRunner()], limits=TurnLimits(max_steps=9))
    )
    assert get_turn_ended(events).reason == "answered"
    assert any(event.compactions for event in select_events(events, RequestPrepared)[1:])
    assert all(event.tokens <= 2_000 - 512 for event in select_events(events, RequestPrepared))
    await check_log(conversation)


@pytest.mark.every_database
async def test_someone_else_speaks_during_a_turn_and_nothing_is_lost(store: SqlStore):
    conversation = await make_conversation(store)

    class AppendingRunner(FakeToolRunner):
        async def run(self, call: ToolCallPart) -> Message:
            await conversation.append("by the way")
            return Message.tool(call.id, "result")

    model = FaultyModel(make_tool_call_reply("good:1"), "done")
    events = await collect_events(run_turn(conversation, "go", model=model, runners=[AppendingRunner()]))
    assert get_turn_ended(events).reason == "answered"
    texts = [entry.message.text for entry in await conversation.messages()]
    assert texts == ["go", "", "by the way", "", "done"]
    assert await store.verify_conversation("c") == []


@given(st.lists(st.lists(model_steps(), min_size=1, max_size=4), min_size=1, max_size=3), st.booleans())
async def test_whatever_happens_events_are_in_order_and_the_log_is_valid(
    scripts: list[list[ScriptStep | BrokenReply]], resume: bool
):
    async with SqlStore.open("sqlite://") as store:
        conversation = await make_conversation(store)
        for number, script in enumerate(scripts):
            model, runner = FaultyModel(*script, *["the end"] * 8), FakeToolRunner()
            question = None if resume and await is_answerable(conversation) else f"question {number}"
            events = await collect_events(
                run_turn(
                    conversation,
                    question,
                    model=model,
                    runners=[runner],
                    approvals=make_approvals(),
                    limits=FAST_TURN_LIMITS,
                )
            )
            check_events(events)
            assert isinstance(events[-1], TurnEnded | TurnFailed)
            replies = select_events(events, ReplyRecorded)
            assert events[-1].steps == len(replies)
            assert events[-1].usage == sum_usage([event.usage for event in replies])
            await check_log(conversation)
            await check_events_match_log(conversation, events)


async def check_events_match_log(conversation: Conversation, events: Sequence[TurnEvent]) -> None:
    """The texts and results in the events are those in the log."""
    entries = {entry.seq: entry for entry in await conversation.messages()}
    text_so_far = ""
    for event in events:
        match event:
            case TextChunk(text=text):
                text_so_far += text
            case ReplyRecorded(entry=entry, incomplete=incomplete):
                assert entries[entry.seq] == entry
                assert entry.message.text == text_so_far
                assert bool(entry.metadata.incomplete) == incomplete
                text_so_far = ""
            case QuestionRecorded(entry=entry):
                assert entries[entry.seq] == entry
            case _:
                pass
    emitted = [event.result for event in select_events(events, ToolCompleted)]
    logged = [result for entry in entries.values() for result in entry.message.tool_results]
    assert all(result in logged for result in emitted)
