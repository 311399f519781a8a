"""The turn loop: what happens in which order, what the log holds after it, and what becomes of all that goes wrong."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from staging import (
    QUICK,
    TOOLS,
    Break,
    Props,
    StagedModel,
    answerable,
    approvals,
    calling,
    check_events,
    check_log,
    collected,
    conversation_on,
    engine_on,
    letters,
    steps,
)

from quire.agent.approvals import Allow, AllowAlways, Approvals, Verdict
from quire.agent.loop import turn
from quire.agent.turn_limits import TurnLimits
from quire.context.reach import definitions
from quire.engine import Conversation
from quire.errors import (
    ContextOverflow,
    ModelError,
    ModelOverflow,
    ModelRefused,
    ModelThrottled,
    ModelUnavailable,
    QuireError,
    SpendCapReached,
)
from quire.llm import Chunk, Prompt, Reply, TextDelta
from quire.log import SqlStore
from quire.model import Compaction, Message, ToolCallPart, Usage
from quire.model.agents import OfferedTool
from quire.model.turns import (
    ApprovalAsked,
    QuestionKept,
    ReplyKept,
    RequestPrepared,
    Retrying,
    Text,
    ToolAnswered,
    TurnEnded,
    TurnEvent,
    TurnFailed,
    total_usage,
)
from quire.testing.scripted import Step

E = TypeVar("E")


def only(told: Sequence[TurnEvent], kind: type[E]) -> list[E]:
    return [event for event in told if isinstance(event, kind)]


def ending(told: Sequence[TurnEvent]) -> TurnEnded:
    assert isinstance(told[-1], TurnEnded), told[-1]
    return told[-1]


def failure(told: Sequence[TurnEvent]) -> QuireError:
    assert isinstance(told[-1], TurnFailed), told[-1]
    return told[-1].error


async def test_a_question_is_answered(store: SqlStore):
    conversation = await conversation_on(store)
    told = await collected(turn(conversation, "hello", model=StagedModel("It is noon.")))
    assert letters(told) == "SQPTTTRE"
    assert "".join(event.text for event in only(told, Text)) == "It is noon."
    [question, reply] = await conversation.messages()
    assert only(told, QuestionKept)[0].entry == question
    assert only(told, ReplyKept)[0].entry == reply
    assert ending(told).reason == "answered"
    assert (await conversation.replay(reply.seq)).matches
    assert (await conversation.why(question.seq, reply=reply.seq)).reason == "newest"


async def test_tools_are_run_and_the_model_goes_on_from_their_results(store: SqlStore):
    conversation, model = await conversation_on(store), StagedModel(calling("good:1", text="I look."), "Found.")
    told = await collected(turn(conversation, "look", model=model, runners=[Props()]))
    assert letters(told) == "SQPTTRCBPTRE"
    assert [message.role for message in model.prompts[1].messages] == ["user", "assistant", "tool"]
    assert model.prompts[1].messages[-1].tool_results[0].text == "good of 1"
    assert model.prompts[0].system == "Be brief."
    assert {tool.name for tool in model.prompts[0].tools} == set(TOOLS)
    assert [event.step for event in only(told, RequestPrepared)] == [1, 2]
    replies = [entry.seq for entry in await conversation.messages() if entry.role == "assistant"]
    assert [(await conversation.replay(seq)).matches for seq in replies] == [True, True]
    await check_log(conversation)


async def test_the_question_is_in_the_log_before_the_model_is_asked(store: SqlStore):
    conversation = await conversation_on(store)
    kept: list[list[str]] = []

    class Nosy(StagedModel):
        async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
            kept.append([entry.message.text for entry in await conversation.messages()])
            async for chunk in super().stream(prompt):
                yield chunk

    await collected(turn(conversation, "hello", model=Nosy("hi")))
    assert kept == [["hello"]]


async def test_calls_of_one_reply_run_side_by_side_and_their_results_stand_in_the_order_of_the_calls(store: SqlStore):
    """Each waits for the one after it, so that one by one they would wait for ever."""
    conversation = await conversation_on(store)
    done = {str(number): asyncio.Event() for number in range(4)}
    done["3"].set()

    class Chained(Props):
        async def run(self, call: ToolCallPart) -> Message:
            await done[str(int(call.id) + 1)].wait()
            await asyncio.sleep(0.05)
            done[call.id].set()
            return Message.tool(call.id, f"result {call.id}")

    model = StagedModel(calling("good:0", "good:1", "good:2"), "done")
    limits = TurnLimits(tool_seconds=20)
    told = await collected(turn(conversation, "go", model=model, runners=[Chained()], limits=limits))
    assert [event.call.id for event in only(told, ToolAnswered)] == ["2", "1", "0"]
    results = [entry.message.tool_results for entry in await conversation.messages() if entry.role == "tool"]
    assert [[result.text for result in each] for each in results] == [["result 0"], ["result 1"], ["result 2"]]
    check_events(told)
    await check_log(conversation)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bad", "bad failed: ValueError: no such luck"),
        ("hangs", "hangs gave no result within 0.05 s"),
        ("deaf", "deaf gave no result within 0.05 s"),
        ("quits", "quits failed: CancelledError"),
        ("odd", "odd gave no result that can be read"),
        ("forbidden", "the user did not allow it. They say: Not today."),
        ("nowhere", "There is no tool 'nowhere' here; there are good, bad"),
        ("history_search", "There is no tool 'history_search' here"),
    ],
)
async def test_a_tool_that_gives_nothing_gives_an_error_to_read_and_the_turn_goes_on(name: str, said: str):
    async with SqlStore.open("sqlite://") as store:
        conversation, props = await conversation_on(store), Props()
        model = StagedModel(calling(f"{name}:x", "good:y"), "well")
        told = await collected(
            turn(conversation, "go", model=model, runners=[props], approvals=approvals(), limits=QUICK)
        )
        assert props.cancelled == (["x"] if name == "hangs" else [])
        [failed] = [event.result for event in only(told, ToolAnswered) if event.result.is_error]
        assert said in failed.text
        assert failed.call_id == "x"
        assert ending(told).reason == "answered"
        check_events(told)
        await check_log(conversation)


async def test_only_tools_that_the_model_was_told_of_are_run(store: SqlStore):
    """A runner may know more tools than the session has."""

    class Eager(Props):
        def handles(self, call: ToolCallPart) -> bool:
            return True

    conversation, eager = await conversation_on(store), Eager()
    model = StagedModel(calling("erase_everything:1"), "well")
    told = await collected(turn(conversation, "go", model=model, runners=[eager]))
    assert only(told, ToolAnswered)[0].result.is_error
    assert eager.ran == []


async def test_quires_own_tools_need_no_runner(store: SqlStore):
    engine = engine_on(store)
    engine.agent = engine.agent.offering(
        *(OfferedTool(definition=each) for each in definitions(documents=False, memory=False))
    )
    conversation = await engine.conversation("c")
    await conversation.append("the code is 0451", Message.assistant("noted"))
    call = ToolCallPart(id="1", name="history_read", arguments='{"first": 1}')
    model = StagedModel(Message(role="assistant", parts=(call,)), "0451")
    told = await collected(turn(conversation, "what was it?", model=model))
    [answered] = only(told, ToolAnswered)
    assert "the code is 0451" in answered.result.text


async def test_approval_is_asked_after_all_that_led_to_it_was_shown(store: SqlStore):
    conversation, shown = await conversation_on(store), list[TurnEvent]()
    asked: list[tuple[str, str]] = []

    async def ask(call: ToolCallPart) -> Verdict:
        asked.append((call.id, letters(shown)))
        return Allow()

    model = StagedModel(calling("guarded:1", "good:2", "guarded:3", text="Now."), "done")
    async for event in turn(conversation, "go", model=model, runners=[Props()], approvals=Approvals(ask)):
        await asyncio.sleep(0.002)
        shown.append(event)
    assert asked[0] == ("1", "SQPTRCCCA")
    assert asked[1][0] == "3"
    assert asked[1][1].endswith("A")
    assert [event.call.id for event in only(shown, ApprovalAsked)] == ["1", "3"]
    check_events(shown)


async def test_what_is_allowed_always_is_asked_once(store: SqlStore):
    conversation, asked = await conversation_on(store), list[str]()

    async def ask(call: ToolCallPart) -> Verdict:
        asked.append(call.id)
        return AllowAlways()

    leave, props = Approvals(ask), Props()
    model = StagedModel(calling("guarded:1", "guarded:2"), calling("guarded:3"), "done")
    told = await collected(turn(conversation, "go", model=model, runners=[props], approvals=leave))
    assert (asked, props.ran) == (["1"], ["1", "2", "3"])
    assert len(only(told, ApprovalAsked)) == 1
    assert leave.always == {"guarded"}
    again = StagedModel(calling("guarded:4"), "done")
    await collected(turn(conversation, "again", model=again, runners=[props], approvals=leave))
    assert (asked, props.ran[-1]) == (["1"], "4")


async def test_with_nobody_to_ask_what_needs_approval_is_not_run(store: SqlStore):
    conversation, props = await conversation_on(store), Props()
    model = StagedModel(calling("guarded:1"), "well")
    told = await collected(turn(conversation, "go", model=model, runners=[props]))
    assert props.ran == []
    assert "nobody is here to ask" in only(told, ToolAnswered)[0].result.text


async def test_a_runner_that_cannot_say_whether_it_needs_approval_needs_it(store: SqlStore):
    class Confused(Props):
        def needs_approval(self, call: ToolCallPart) -> bool:
            raise RuntimeError("who am I?")

    conversation, confused = await conversation_on(store), Confused()
    await collected(turn(conversation, "go", model=StagedModel(calling("good:1"), "well"), runners=[confused]))
    assert confused.ran == []


async def test_an_error_of_whoever_is_asked_ends_the_turn_with_every_call_answered(store: SqlStore):
    async def ask(call: ToolCallPart) -> Verdict:
        raise ZeroDivisionError

    conversation = await conversation_on(store)
    model = StagedModel(calling("good:1", "guarded:2", "guarded:3"))
    with pytest.raises(ZeroDivisionError):
        await collected(turn(conversation, "go", model=model, runners=[Props()], approvals=Approvals(ask)))
    await check_log(conversation)


async def test_a_turn_has_so_many_replies_and_no_more(store: SqlStore):
    conversation, model = await conversation_on(store), StagedModel(calling("good:1"), calling("good:2"), "done")
    limits = TurnLimits(steps=2)
    told = await collected(turn(conversation, "go", model=model, runners=[Props()], limits=limits))
    assert (ending(told).reason, ending(told).steps) == ("steps", 2)
    check_events(told)
    await check_log(conversation)
    told = await collected(turn(conversation, model=model, limits=limits))
    assert letters(told) == "SPTRE"
    assert (await conversation.messages())[-1].message.text == "done"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(Message.assistant("half an ans"), None, "length"), "truncated"),
        (Reply(Message.assistant("half an ans"), None, "max_tokens"), "truncated"),
        (Reply(Message(role="assistant", parts=()), None, "stop"), "empty"),
        (Reply(Message.assistant(" "), None, "stop"), "empty"),
        ("whole", "answered"),
    ],
)
async def test_a_turn_says_how_it_ended(store: SqlStore, reply: Step, reason: str):
    conversation = await conversation_on(store)
    told = await collected(turn(conversation, "go", model=StagedModel(reply)))
    assert ending(told).reason == reason
    await check_log(conversation)


class TestUsage:
    async def test_it_is_what_the_provider_reports_in_sum(self, store: SqlStore):
        conversation = await conversation_on(store)
        first = Usage(model="m", input_tokens=100, output_tokens=5, cache_read_tokens=40)
        second = Usage(model="m", input_tokens=120, output_tokens=7, cache_write_tokens=3)
        model = StagedModel(
            Reply(calling("good:1"), first, "tool_calls"), Reply(Message.assistant("x"), second, "stop")
        )
        told = await collected(turn(conversation, "go", model=model, runners=[Props()]))
        assert ending(told).usage == Usage(
            model="m", input_tokens=220, output_tokens=12, cache_read_tokens=40, cache_write_tokens=3
        )
        kept = [entry.notes.usage for entry in await conversation.messages() if entry.role == "assistant"]
        assert kept == [first, second]

    async def test_where_nothing_is_reported_it_is_an_estimate_and_says_so(self, store: SqlStore):
        conversation = await conversation_on(store)
        model = StagedModel(Reply(Message.assistant("It is noon."), None, "stop"))
        told = await collected(turn(conversation, "hello", model=model))
        usage = ending(told).usage
        assert usage.estimated
        assert usage.input_tokens == only(told, RequestPrepared)[0].tokens
        assert 4 <= usage.output_tokens <= 10
        assert (await conversation.messages())[-1].notes.usage == usage
        assert await store.calibration("gpt-4o") is None

    def test_a_sum_with_an_estimate_in_it_is_one(self):
        told, guessed = Usage(model="a", input_tokens=1), Usage(model="b", input_tokens=2, estimated=True)
        assert total_usage([told, guessed]) == Usage(input_tokens=3, estimated=True)
        assert total_usage([told, told]).estimated is None
        assert total_usage([]) == Usage()

    async def test_what_is_spent_stops_the_next_call(self, store: SqlStore):
        conversation = await conversation_on(store, max_spend=0.001, input_price=100.0, output_price=100.0)
        model = StagedModel(calling("good:1"), "never")
        told = await collected(turn(conversation, "go", model=model, runners=[Props()]))
        assert isinstance(failure(told), SpendCapReached)
        assert model.unused == 1
        await check_events_and_log_but_for_spending(told, conversation)


async def check_events_and_log_but_for_spending(told: Sequence[TurnEvent], conversation: Conversation) -> None:
    check_events(told)
    conversation.engine.use(max_spend=None)
    await check_log(conversation)


class TestErrors:
    @pytest.mark.parametrize("error", [ModelRefused("no"), ModelUnavailable("gone"), ModelError("odd")])
    async def test_an_error_at_the_start_ends_the_turn_and_the_question_stays(self, store: SqlStore, error: ModelError):
        conversation, model = await conversation_on(store), StagedModel(error, "back again")
        told = await collected(turn(conversation, "hello", model=model))
        assert letters(told) == "SQPF"
        assert failure(told) is error
        assert [entry.message.text for entry in await conversation.messages()] == ["hello"]
        await check_log(conversation)
        told = await collected(turn(conversation, model=model))
        assert ending(told).reason == "answered"

    async def test_what_came_before_an_error_is_kept_as_unfinished(self, store: SqlStore):
        conversation, error = await conversation_on(store), ModelUnavailable("gone")
        model = StagedModel(Break("one two three four", 2, error))
        told = await collected(turn(conversation, "hello", model=model))
        assert letters(told) == "SQPTTRF"
        reply = (await conversation.messages())[-1]
        assert reply.message.text == "one two"
        assert reply.notes.unfinished
        assert reply.notes.usage is not None
        assert reply.notes.usage.estimated
        assert only(told, ReplyKept)[0].unfinished
        assert (await conversation.replay(reply.seq)).matches
        await check_log(conversation)

    async def test_a_stream_that_ends_without_a_reply_has_broken_off(self, store: SqlStore):
        class Vague(StagedModel):
            async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
                yield TextDelta("well")

        conversation = await conversation_on(store)
        told = await collected(turn(conversation, "hello", model=Vague()))
        assert letters(told) == "SQPTRF"
        assert isinstance(failure(told), ModelUnavailable)
        assert (await conversation.messages())[-1].notes.unfinished

    async def test_a_reply_that_was_whole_before_an_error_is_kept_as_whole(self, store: SqlStore):
        class Clumsy(StagedModel):
            async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
                async for chunk in super().stream(prompt):
                    yield chunk
                raise ModelUnavailable("the line broke when all was said")

        conversation, props = await conversation_on(store), Props()
        told = await collected(turn(conversation, "hello", model=Clumsy(calling("good:1")), runners=[props]))
        assert letters(told) == "SQPRCBF"
        assert (await conversation.messages())[1].notes.unfinished is None
        assert props.ran == []
        await check_log(conversation)

    async def test_a_finished_reply_is_not_marked(self, store: SqlStore):
        conversation = await conversation_on(store)
        await collected(turn(conversation, "hello", model=StagedModel("hi")))
        assert (await conversation.messages())[-1].notes.unfinished is None

    async def test_a_throttled_call_is_repeated_after_a_while(self, store: SqlStore):
        conversation = await conversation_on(store)
        model = StagedModel(ModelThrottled(retry_after=0.05), ModelThrottled(), "at last")
        limits = TurnLimits(first_wait=0.01)
        began = asyncio.get_running_loop().time()
        told = await collected(turn(conversation, "hello", model=model, limits=limits))
        assert letters(told) == "SQPWPWPTTRE"
        assert [event.seconds for event in only(told, Retrying)] == [0.05, 0.02]
        assert asyncio.get_running_loop().time() - began >= 0.07

    async def test_it_is_not_repeated_for_ever_nor_after_words_were_said(self, store: SqlStore):
        conversation, limits = await conversation_on(store), TurnLimits(first_wait=0, retries=2, longest_wait=1)
        model = StagedModel(*[ModelThrottled()] * 9)
        assert isinstance(failure(await collected(turn(conversation, "a", model=model, limits=limits))), ModelThrottled)
        assert len(model.prompts) == 3
        model = StagedModel(ModelThrottled(retry_after=2), "never")
        assert isinstance(failure(await collected(turn(conversation, "b", model=model, limits=limits))), ModelThrottled)
        model = StagedModel(Break("one two three", 1, ModelThrottled()), "never")
        told = await collected(turn(conversation, "c", model=model, limits=limits))
        assert letters(told) == "SQPTRF"
        assert model.unused == 1

    async def test_an_overflow_that_only_the_provider_sees_leads_to_one_compaction(self, store: SqlStore):
        # Without recall, which would fill the room that the provider does not have.
        conversation = await conversation_on(store, strategy="summarize")
        for number in range(12):
            await conversation.append(f"question {number} " * 30, Message.assistant(f"answer {number} " * 30))
        model = StagedModel("It fits.", window=1_800)
        told = await collected(turn(conversation, "hello", model=model))
        assert letters(told) == "SQPPTTRE"
        first, second = only(told, RequestPrepared)
        assert first.compacted == ()
        assert [entry.body.trigger for entry in second.compacted if isinstance(entry.body, Compaction)] == ["overflow"]
        assert second.tokens < 1_800 < first.tokens
        assert model.prompts[-1].messages[-1].text == "hello"
        assert len(await conversation.messages()) == 26
        reply = (await conversation.messages())[-1]
        assert (await conversation.replay(reply.seq)).matches

    async def test_a_second_overflow_ends_the_turn(self, store: SqlStore):
        conversation = await conversation_on(store)
        for number in range(12):
            await conversation.append(f"question {number} " * 30, Message.assistant(f"answer {number} " * 30))
        model = StagedModel(ModelOverflow("too long"), ModelOverflow("still too long"), "never")
        told = await collected(turn(conversation, "hello", model=model))
        assert letters(told) == "SQPPF"
        assert str(failure(told)) == "still too long"
        assert (await store.branch("c")).state.compactions == 1

    async def test_an_overflow_with_nothing_to_compact_is_not_tried_again(self, store: SqlStore):
        conversation, model = await conversation_on(store), StagedModel(ModelOverflow("too long"), "never")
        told = await collected(turn(conversation, "hello", model=model))
        assert letters(told) == "SQPF"
        assert model.unused == 1

    async def test_off_means_off_when_the_provider_says_overflow(self, store: SqlStore):
        conversation = await conversation_on(store, context_management_enabled=False)
        for number in range(5):
            await conversation.append(f"question {number} " * 30, Message.assistant(f"answer {number} " * 30))
        told = await collected(turn(conversation, "hello", model=StagedModel(ModelOverflow("too long"))))
        assert str(failure(told)) == "too long"
        assert (await store.branch("c")).state.compactions == 0

    async def test_an_overflow_in_the_midst_of_a_tool_loop_keeps_the_question_and_the_loop(self, store: SqlStore):
        conversation = await conversation_on(store)
        for number in range(12):
            await conversation.append(f"question {number} " * 30, Message.assistant(f"answer {number} " * 30))
        model = StagedModel(calling("good:1"), ModelOverflow("too long"), "done")
        told = await collected(turn(conversation, "hello", model=model, runners=[Props()]))
        assert letters(told) == "SQPRCBPPTRE"
        assert [message.role for message in model.prompts[-1].messages[-3:]] == ["user", "assistant", "tool"]
        assert model.prompts[-1].messages[-3].text == "hello"
        assert ending(told).reason == "answered"

    async def test_a_question_that_cannot_be_sent_is_kept(self, store: SqlStore):
        conversation = await conversation_on(store, context_management_enabled=False, context_limit=1_000)
        await conversation.append("why " * 2_000, Message.assistant("so"))
        told = await collected(turn(conversation, "and now?", model=StagedModel("never")))
        assert letters(told) == "SQF"
        assert isinstance(failure(told), ContextOverflow)
        assert (await conversation.messages())[-1].message.text == "and now?"

    async def test_there_must_be_something_to_answer(self, store: SqlStore):
        conversation = await conversation_on(store)
        told = await collected(turn(conversation, model=StagedModel("never")))
        assert letters(told) == "SF"


async def test_a_history_that_outgrows_its_window_within_a_turn_is_compacted_before_the_next_call(store: SqlStore):
    conversation = await conversation_on(store, context_limit=2_000)
    for number in range(8):
        await conversation.append(f"question {number} " * 20, Message.assistant(f"answer {number} " * 20))

    class Wordy(Props):
        async def run(self, call: ToolCallPart) -> Message:
            return Message.tool(call.id, f"result {call.id} " * 60)

    model = StagedModel(*(calling(f"good:{number}") for number in range(6)), "done", window=2_000)
    told = await collected(turn(conversation, "go", model=model, runners=[Wordy()], limits=TurnLimits(steps=9)))
    assert ending(told).reason == "answered"
    assert any(event.compacted for event in only(told, RequestPrepared)[1:])
    assert all(event.tokens <= 2_000 - 512 for event in only(told, RequestPrepared))
    await check_log(conversation)


async def test_someone_else_speaks_during_a_turn_and_nothing_is_lost(store: SqlStore):
    conversation = await conversation_on(store)

    class Talkative(Props):
        async def run(self, call: ToolCallPart) -> Message:
            await conversation.append("by the way")
            return Message.tool(call.id, "result")

    model = StagedModel(calling("good:1"), "done")
    told = await collected(turn(conversation, "go", model=model, runners=[Talkative()]))
    assert ending(told).reason == "answered"
    texts = [entry.message.text for entry in await conversation.messages()]
    assert texts == ["go", "", "by the way", "", "done"]
    assert await store.verify("c") == []


@given(st.lists(st.lists(steps(), min_size=1, max_size=4), min_size=1, max_size=3), st.booleans())
async def test_whatever_happens_events_are_in_order_and_the_log_is_valid(
    scripts: list[list[Step | Break]], resume: bool
):
    async with SqlStore.open("sqlite://") as store:
        conversation = await conversation_on(store)
        for number, script in enumerate(scripts):
            model, props = StagedModel(*script, *["the end"] * 8), Props()
            asked = None if resume and await answerable(conversation) else f"question {number}"
            told = await collected(
                turn(conversation, asked, model=model, runners=[props], approvals=approvals(), limits=QUICK)
            )
            check_events(told)
            assert isinstance(told[-1], TurnEnded | TurnFailed)
            kept = only(told, ReplyKept)
            assert told[-1].steps == len(kept)
            assert told[-1].usage == total_usage([event.usage for event in kept])
            await check_log(conversation)
            await check_told(conversation, told)


async def check_told(conversation: Conversation, told: Sequence[TurnEvent]) -> None:
    """What the events say is what the log holds: the words, and the results."""
    kept = {entry.seq: entry for entry in await conversation.messages()}
    spoken = ""
    for event in told:
        match event:
            case Text(text=text):
                spoken += text
            case ReplyKept(entry=entry, unfinished=unfinished):
                assert kept[entry.seq] == entry
                assert entry.message.text == spoken
                assert bool(entry.notes.unfinished) == unfinished
                spoken = ""
            case QuestionKept(entry=entry):
                assert kept[entry.seq] == entry
            case _:
                pass
    answered = [event.result for event in only(told, ToolAnswered)]
    stored = [result for entry in kept.values() for result in entry.message.tool_results]
    assert all(result in stored for result in answered)
