"""Turns that are stopped, cancelled, closed or killed: the log stays valid and the conversation continues."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from crash_worker import CONVERSATION_ID, WINDOW
from hypothesis import given
from hypothesis import strategies as st
from turn_fixtures import (
    FAST_TURN_LIMITS,
    BrokenReply,
    FakeToolRunner,
    FaultyModel,
    check_events,
    check_log,
    check_next_request,
    collect_events,
    encode_events,
    is_answerable,
    make_approvals,
    make_conversation,
    make_engine,
    make_tool_call_reply,
    model_steps,
)

from infra.llama import LocalModelAddress
from infra.sizes import IS_FULL_SIZE
from quire.agent.limits import TurnLimits
from quire.agent.turn import run_turn
from quire.engine import Conversation, Engine, EngineConfig, Request
from quire.errors import ModelUnavailable
from quire.llm import get_model
from quire.model import Entry, Message, TextPart, ThinkingPart
from quire.model.events import ReplyRecorded, TextChunk, ToolCompleted, TurnEnded, TurnEvent
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptStep

SHORT_LIMITS = TurnLimits(tool_seconds=0.2, stop_grace_seconds=0.05)
SCRIPT: tuple[ScriptStep, ...] = (
    make_tool_call_reply("good:1", "hangs:2", "guarded:3", "forbidden:4", text="Let me look."),
    Message(role="assistant", parts=(ThinkingPart(text="Well, well."), TextPart(text="It is not there."))),
)
KILL_COUNT = 30 if IS_FULL_SIZE else 10
SEED = 7


def start_turn(conversation: Conversation, script: tuple[ScriptStep | BrokenReply, ...] = SCRIPT, **more: object):
    return run_turn(
        conversation,
        "where is it?",
        model=FaultyModel(*script),
        runners=[FakeToolRunner()],
        approvals=make_approvals(),
        limits=SHORT_LIMITS,
        **more,  # type: ignore[arg-type]
    )


async def close_after(conversation: Conversation, after: int) -> list[TurnEvent]:
    """Closes a turn after `after` events."""
    received: list[TurnEvent] = []
    async with aclosing(start_turn(conversation)) as events:
        async for event in events:
            received.append(event)
            if len(received) == after:
                break
    return received


async def cancel_while_waiting(conversation: Conversation, after: int) -> list[TurnEvent]:
    """Cancels the consumer of a turn while it waits for the next event."""
    received: list[TurnEvent] = []

    async def listen() -> None:
        async with aclosing(start_turn(conversation)) as events:
            async for event in events:
                received.append(event)
                if len(received) == after:
                    asyncio.get_running_loop().call_soon(listener.cancel)

    listener = asyncio.create_task(listen())
    with suppress(asyncio.CancelledError):
        await listener
    return received


async def cancel_while_handling(conversation: Conversation, after: int) -> list[TurnEvent]:
    """Cancels the consumer twice while it handles an event."""
    received: list[TurnEvent] = []

    async def listen() -> None:
        async with aclosing(start_turn(conversation)) as events:
            async for event in events:
                received.append(event)
                if len(received) == after:
                    asyncio.get_running_loop().call_soon(listener.cancel)
                    asyncio.get_running_loop().call_later(0.001, listener.cancel)
                    await asyncio.sleep(60)

    listener = asyncio.create_task(listen())
    with suppress(asyncio.CancelledError):
        await listener
    return received


async def stop_after(conversation: Conversation, after: int) -> list[TurnEvent]:
    """Sets the stop event of a turn and consumes its last events."""
    received: list[TurnEvent] = []
    stopping = asyncio.Event()
    async for event in start_turn(conversation, stop=stopping):
        received.append(event)
        if len(received) == after:
            stopping.set()
            # Without a pause the consumer gives the stopper no time to run.
            await asyncio.sleep(0.001)
    check_events(received)
    return received


@pytest.mark.parametrize("interrupt", [close_after, cancel_while_waiting, cancel_while_handling, stop_after])
async def test_wherever_a_turn_is_interrupted_the_log_is_valid_and_continues(interrupt):
    async with SqlStore.open("sqlite://") as store:
        engine = make_engine(store)
        whole = await collect_events(start_turn(await engine.conversation("whole")))
        assert encode_events(whole) == "SQPTTTRCCCCAABBBBPTTTTTTRE"
        for after in range(1, len(whole), 1 if IS_FULL_SIZE else 4):
            conversation = await engine.conversation(f"{interrupt.__name__} {after}")
            received = await interrupt(conversation, after)
            assert len(received) >= after
            entries = await conversation.messages()
            assert entries[0].message.text == "where is it?"
            assert [entry.role for entry in entries].count("user") == 1
            check_text_recorded(received, entries)
            await check_log(conversation)
            again = await collect_events(run_turn(conversation, "again?", model=FaultyModel("Yes, again.")))
            assert isinstance(again[-1], TurnEnded)
            assert again[-1].reason == "answered"


def check_text_recorded(received: list[TurnEvent], entries: list[Entry]) -> None:
    """The newest reply contains all text received of it, and is marked incomplete unless it was complete."""
    last_recorded = max((index for index, event in enumerate(received) if isinstance(event, ReplyRecorded)), default=-1)
    text = "".join(event.text for event in received[last_recorded + 1 :] if isinstance(event, TextChunk))
    replies = [entry for entry in entries if entry.role == "assistant"]
    if text:
        assert replies[-1].message.text.startswith(text)
    assert all(entry.metadata.incomplete or entry.message in SCRIPT for entry in replies)
    complete = [event.entry for event in received if isinstance(event, ReplyRecorded) and not event.incomplete]
    assert [entry for entry in replies if not entry.metadata.incomplete][: len(complete)] == complete


async def test_a_stopped_turn_says_so_and_how_every_call_ended(store: SqlStore):
    conversation = await make_conversation(store)
    events = await stop_after(conversation, after=13)
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].reason == "stopped"
    ends = {event.call.id: event.result.text for event in events if isinstance(event, ToolCompleted)}
    assert ends["1"] == "good of 1"
    assert "was cancelled before it gave a result" in ends["2"]
    assert "was not run" in ends["4"]


async def test_an_interrupted_reply_is_recorded_and_marked(store: SqlStore):
    conversation = await make_conversation(store)
    await stop_after(conversation, after=5)
    [question, reply] = (await conversation.messages())[:2]
    assert (question.metadata.incomplete, reply.metadata.incomplete) == (None, True)
    assert reply.message.text == "Let me"
    assert reply.metadata.usage is not None
    assert reply.metadata.usage.estimated
    assert (await conversation.replay(reply.seq)).matches


async def test_of_an_incomplete_reply_only_complete_calls_are_recorded_and_none_is_run(store: SqlStore):
    conversation, runner = await make_conversation(store), FakeToolRunner()
    broken = BrokenReply(make_tool_call_reply("good:1", "good:2", text="Now."), 4, ModelUnavailable("gone"))
    events = await collect_events(run_turn(conversation, "go", model=FaultyModel(broken), runners=[runner]))
    reply = (await conversation.messages())[1]
    assert reply.message == make_tool_call_reply("good:1", text="Now.")
    assert "was not run" in (await conversation.messages())[2].message.tool_results[0].text
    assert runner.started_ids == []
    check_events(events)
    await check_log(conversation)


async def test_after_unsigned_thinking_no_call_is_recorded(store: SqlStore):
    conversation = await make_conversation(store)
    thinking = ThinkingPart(text="Hm.", signature="sealed")
    reply = Message(role="assistant", parts=(thinking, *make_tool_call_reply("good:1", text="Now.").parts))
    await collect_events(
        run_turn(conversation, "go", model=FaultyModel(BrokenReply(reply, 4, ModelUnavailable("gone"))))
    )
    reply_entry = (await conversation.messages())[-1]
    assert reply_entry.message.parts == (ThinkingPart(text="Hm."), TextPart(text="Now."))
    await check_log(conversation)


async def test_an_incomplete_call_alone_is_not_recorded(store: SqlStore):
    conversation = await make_conversation(store)
    await collect_events(
        run_turn(
            conversation,
            "go",
            model=FaultyModel(BrokenReply(make_tool_call_reply("good:1"), 1, ModelUnavailable("gone"))),
        )
    )
    assert [entry.role for entry in await conversation.messages()] == ["user"]
    await check_log(conversation)


class SlowConversation(Conversation):
    """A host whose calls are slow, as on a busy database."""

    async def prepare(self, message: Message | str | None = None, **more: object) -> Request:
        await asyncio.sleep(0.01)
        return await super().prepare(message, **more)

    async def record_question(self, request: Request) -> tuple[list[Entry], Request]:
        await asyncio.sleep(0.01)
        recorded = await super().record_question(request)
        await asyncio.sleep(0.01)
        return recorded

    async def record(self, response: object, **more: object) -> Entry:
        await asyncio.sleep(0.01)
        entry = await super().record(response, **more)  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        return entry

    async def append(self, *messages: Message | str) -> list[Entry]:
        await asyncio.sleep(0.01)
        entries = await super().append(*messages)
        await asyncio.sleep(0.01)
        return entries


async def test_cancelled_at_any_time_nothing_is_recorded_twice_or_by_halves():
    """Cancels at every 6 ms of a turn on a slow database, at full size; otherwise at every 18 ms."""
    async with SqlStore.open("sqlite://") as store:
        engine = make_engine(store)
        script = (make_tool_call_reply("good:1", "good:2", text="Now."), "Done.")
        for moment in range(0, 30, 1 if IS_FULL_SIZE else 3):
            await engine.conversation(f"{moment}")
            conversation = SlowConversation(engine, f"{moment}")
            listener = asyncio.create_task(collect_events(start_turn(conversation, script)))
            await asyncio.sleep(0.006 * moment)
            listener.cancel()
            await asyncio.sleep(0.003)
            listener.cancel()
            with suppress(asyncio.CancelledError):
                await listener
            messages = [entry.message for entry in await conversation.messages()]
            assert messages[0] == Message.user("where is it?")
            texts = [message.text for message in messages if message.role != "tool"]
            assert len(texts) == len(set(texts))
            await check_log(await engine.conversation(f"{moment}"))


async def test_closed_while_it_is_stopping_a_turn_still_records_the_partial_reply():
    async with SqlStore.open("sqlite://") as store:
        engine = make_engine(store)
        await engine.conversation("c")
        conversation, stopping, chunk_count = SlowConversation(engine, "c"), asyncio.Event(), 0
        async with aclosing(start_turn(conversation, stop=stopping)) as events:
            async for event in events:
                chunk_count += isinstance(event, TextChunk)
                if chunk_count == 2:
                    stopping.set()
                    # By then the turn is recording the reply.
                    await asyncio.sleep(0.005)
                    break
        reply = (await conversation.messages())[-1]
        assert (reply.message.text, reply.metadata.incomplete) == ("Let me", True)


async def test_cancelled_before_its_first_step_a_turn_records_the_question(store: SqlStore):
    conversation = await make_conversation(store)
    listener = asyncio.create_task(collect_events(start_turn(conversation)))
    await asyncio.sleep(0)
    listener.cancel()
    with suppress(asyncio.CancelledError):
        await listener
    assert [entry.message.text for entry in await conversation.messages()] == ["where is it?"]


async def test_a_tool_that_will_not_be_stopped_does_not_keep_a_turn_from_ending(store: SqlStore):
    conversation, stopping = await make_conversation(store), asyncio.Event()
    limits = TurnLimits(stop_grace_seconds=0.02)
    runner = FakeToolRunner(uncancellable_seconds=1.5)
    events = run_turn(
        conversation,
        "go",
        model=FaultyModel(make_tool_call_reply("deaf:1")),
        runners=[runner],
        limits=limits,
        stop=stopping,
    )
    started_at = time.monotonic()
    async for event in events:
        if encode_events([event]) == "C":
            asyncio.get_running_loop().call_later(0.02, stopping.set)
    assert time.monotonic() - started_at < 1.4
    await check_log(conversation)
    # Give the tool time to end before the test does.
    await asyncio.sleep(0.3)


async def test_a_turn_stopped_before_it_begins_records_the_question_and_calls_no_model(store: SqlStore):
    conversation, stopping, model = await make_conversation(store), asyncio.Event(), FaultyModel("never")
    stopping.set()
    events = await collect_events(run_turn(conversation, "hello", model=model, stop=stopping))
    assert encode_events(events) == "SQE"
    assert model.prompts == []


@given(st.lists(model_steps(), min_size=1, max_size=3), st.integers(1, 25), st.sampled_from(["stop", "close"]))
async def test_whatever_happens_a_turn_can_be_interrupted(
    script: list[ScriptStep | BrokenReply], after: int, manner: str
):
    async with SqlStore.open("sqlite://") as store:
        conversation, stopping = await make_conversation(store), asyncio.Event()
        model = FaultyModel(*script, *["the end"] * 8)
        received: list[TurnEvent] = []
        events = run_turn(
            conversation,
            "go",
            model=model,
            runners=[FakeToolRunner()],
            approvals=make_approvals(),
            limits=FAST_TURN_LIMITS,
            stop=stopping,
        )
        async with aclosing(events):
            async for event in events:
                received.append(event)
                if len(received) == after and manner == "close":
                    break
                if len(received) == after:
                    stopping.set()
                    await asyncio.sleep(0)
        if manner == "stop":
            check_events(received)
        await check_log(conversation)


@pytest.mark.nightly
@pytest.mark.real_model
async def test_a_real_reply_is_cancelled_halfway_and_the_conversation_continues(
    store: SqlStore, local_model: LocalModelAddress
):
    settings = Settings(model=local_model.name, context_limit=local_model.context)
    conversation = await Engine(
        store, EngineConfig.create(settings, instructions="You tell long stories.")
    ).conversation("c")
    model = get_model(local_model.name, base_url=local_model.url)
    words: list[str] = []

    async def listen() -> None:
        async with aclosing(run_turn(conversation, "Tell me of a mill by a river.", model=model)) as events:
            async for event in events:
                if isinstance(event, TextChunk):
                    words.append(event.text)
                if len(words) == 5:
                    asyncio.get_running_loop().call_soon(listener.cancel)

    listener = asyncio.create_task(listen())
    with suppress(asyncio.CancelledError):
        await listener
    reply = (await conversation.messages())[-1]
    assert reply.metadata.incomplete
    assert reply.message.text.startswith("".join(words))
    assert 5 <= len(words) <= 50
    await check_log(conversation)
    events = await collect_events(
        run_turn(conversation, "And then?", model=model, limits=TurnLimits(max_reply_tokens=12))
    )
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].reason in ("answered", "truncated")
    assert events[-1].usage.estimated is None
    assert events[-1].usage.input_tokens > 20
    assert [entry.role for entry in await conversation.messages()] == ["user", "assistant", "user", "assistant"]


class KilledTurn(NamedTuple):
    """Output of a killed process."""

    encoded_events: str
    recorded_seqs: list[int]
    exit_code: int


@contextmanager
def run_crash_worker() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).with_name("crash_worker.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def run_and_kill(
    process: subprocess.Popen[str], url: str, *, after: int, delay: float, by: signal.Signals
) -> KilledTurn:
    """Runs a turn and sends the signal `delay` seconds after `after` events."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{url}\n")
    process.stdin.flush()
    word, pid = process.stdout.readline().split()
    assert word == "pid"
    output: list[tuple[str, int]] = []
    is_killed = False
    while True:
        if len(output) == after and not is_killed:
            time.sleep(delay)
            os.kill(int(pid), by)
            is_killed = True
        word, number = process.stdout.readline().split()
        if word == "gone":
            return KilledTurn("".join(letter for letter, _ in output), [seq for _, seq in output if seq], int(number))
        output.append((word, int(number)))


@pytest.mark.slow
async def test_killed_at_any_moment_a_turn_leaves_a_log_that_can_be_continued(tmp_path: Path):
    url, rng = f"sqlite:///{tmp_path}/quire.db", random.Random(SEED)
    ends: list[str] = []
    with run_crash_worker() as process:
        for number in range(KILL_COUNT):
            after, delay = number * 41 // KILL_COUNT, rng.uniform(0, 0.01)
            killed = run_and_kill(process, url, after=after, delay=delay, by=signal.SIGKILL)
            assert killed.exit_code == -signal.SIGKILL
            ends.append(killed.encoded_events[-1:])
            async with SqlStore.open(url) as store:
                conversation = await make_conversation(store, CONVERSATION_ID, context_limit=WINDOW)
                seqs = [entry.seq for entry in await conversation.messages()]
                assert set(killed.recorded_seqs) <= set(seqs)
                assert await store.verify_conversation(CONVERSATION_ID) == []
                if seqs:
                    await check_next_request(conversation)
                await continue_conversation(conversation, resume=number % 2 == 0)
    # The kills are spread: before any event, during text, at a reply, at tools.
    assert {"T"} < set(ends)
    assert len(set(ends)) >= (4 if IS_FULL_SIZE else 3)


async def continue_conversation(conversation: Conversation, *, resume: bool) -> None:
    question = None if resume and await is_answerable(conversation) else "Did you find it?"
    model = FaultyModel(make_tool_call_reply("good:1", "bad:2", text="I look again."), "No.", window=WINDOW)
    events = await collect_events(run_turn(conversation, question, model=model, runners=[FakeToolRunner()]))
    assert isinstance(events[-1], TurnEnded), events[-1]
    assert events[-1].reason == "answered"
    check_events(events)


async def test_ctrl_c_records_the_partial_reply(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/quire.db"
    with run_crash_worker() as process:
        killed = run_and_kill(process, url, after=6, delay=0.0, by=signal.SIGINT)
    assert killed.exit_code == 0
    assert set(killed.encoded_events[3:]) == {"T"}
    async with SqlStore.open(url) as store:
        conversation = await make_conversation(store, CONVERSATION_ID, context_limit=WINDOW)
        reply = (await conversation.messages())[-1]
        assert reply.metadata.incomplete
        assert reply.message.text.startswith("I look in")
        await check_log(conversation)
