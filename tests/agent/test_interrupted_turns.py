"""Turns that are stopped, cancelled, closed or killed: the log stays valid, keeps what was said, and goes on."""

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
from hypothesis import given
from hypothesis import strategies as st
from staging import (
    QUICK,
    Break,
    Props,
    StagedModel,
    answerable,
    approvals,
    calling,
    check_events,
    check_log,
    check_next_request,
    collected,
    conversation_on,
    engine_on,
    letters,
    steps,
)
from teller import CONVERSATION, WINDOW

from quire.agent.loop import turn
from quire.agent.turn_limits import TurnLimits
from quire.engine import Conversation, Engine, Request
from quire.errors import ModelUnavailable
from quire.llm import model_named
from quire.log import SqlStore
from quire.model import Entry, Message, TextPart, ThinkingPart
from quire.model.turns import ReplyKept, Text, ToolAnswered, TurnEnded, TurnEvent
from quire.settings import Settings
from quire.testing.llama import Address
from quire.testing.scripted import Step

LIMITS = TurnLimits(tool_seconds=0.2, stop_seconds=0.05)
SCRIPT: tuple[Step, ...] = (
    calling("good:1", "hangs:2", "guarded:3", "forbidden:4", text="Let me look."),
    Message(role="assistant", parts=(ThinkingPart(text="Well, well."), TextPart(text="It is not there."))),
)
KILLS = 30
SEED = 7


def acting(conversation: Conversation, script: tuple[Step | Break, ...] = SCRIPT, **more: object):
    return turn(
        conversation,
        "where is it?",
        model=StagedModel(*script),
        runners=[Props()],
        approvals=approvals(),
        limits=LIMITS,
        **more,  # type: ignore[arg-type]
    )


async def close(conversation: Conversation, after: int) -> list[TurnEvent]:
    """Leaves a turn after so many events."""
    told: list[TurnEvent] = []
    async with aclosing(acting(conversation)) as events:
        async for event in events:
            told.append(event)
            if len(told) == after:
                break
    return told


async def cancel_waiting(conversation: Conversation, after: int) -> list[TurnEvent]:
    """Cancels whoever listens to a turn while they wait for the next event."""
    told: list[TurnEvent] = []

    async def listen() -> None:
        async with aclosing(acting(conversation)) as events:
            async for event in events:
                told.append(event)
                if len(told) == after:
                    asyncio.get_running_loop().call_soon(listener.cancel)

    listener = asyncio.create_task(listen())
    with suppress(asyncio.CancelledError):
        await listener
    return told


async def cancel_handling(conversation: Conversation, after: int) -> list[TurnEvent]:
    """Cancels them, twice, while they are busy with an event."""
    told: list[TurnEvent] = []

    async def listen() -> None:
        async with aclosing(acting(conversation)) as events:
            async for event in events:
                told.append(event)
                if len(told) == after:
                    asyncio.get_running_loop().call_soon(listener.cancel)
                    asyncio.get_running_loop().call_later(0.001, listener.cancel)
                    await asyncio.sleep(60)

    listener = asyncio.create_task(listen())
    with suppress(asyncio.CancelledError):
        await listener
    return told


async def stop(conversation: Conversation, after: int) -> list[TurnEvent]:
    """Asks a turn to stop, and listens to its end."""
    told: list[TurnEvent] = []
    stopping = asyncio.Event()
    async for event in acting(conversation, stop=stopping):
        told.append(event)
        if len(told) == after:
            stopping.set()
            # The one who reads on gives the stop no time to be seen otherwise.
            await asyncio.sleep(0.001)
    check_events(told)
    return told


@pytest.mark.parametrize("interrupt", [close, cancel_waiting, cancel_handling, stop])
async def test_wherever_a_turn_is_interrupted_the_log_is_valid_and_goes_on(interrupt):
    async with SqlStore.open("sqlite://") as store:
        engine = engine_on(store)
        whole = await collected(acting(await engine.conversation("whole")))
        assert letters(whole) == "SQPTTTRCCCCAABBBBPTTTTTTRE"
        for after in range(1, len(whole)):
            conversation = await engine.conversation(f"{interrupt.__name__} {after}")
            told = await interrupt(conversation, after)
            assert len(told) >= after
            kept = await conversation.messages()
            assert kept[0].message.text == "where is it?"
            assert [entry.role for entry in kept].count("user") == 1
            check_words_kept(told, kept)
            await check_log(conversation)
            again = await collected(turn(conversation, "again?", model=StagedModel("Yes, again.")))
            assert isinstance(again[-1], TurnEnded)
            assert again[-1].reason == "answered"


def check_words_kept(told: list[TurnEvent], kept: list[Entry]) -> None:
    """All that was seen of the newest reply is in it, and it is marked unless it was whole."""
    after_kept = max((place for place, event in enumerate(told) if isinstance(event, ReplyKept)), default=-1)
    seen = "".join(event.text for event in told[after_kept + 1 :] if isinstance(event, Text))
    replies = [entry for entry in kept if entry.role == "assistant"]
    if seen:
        assert replies[-1].message.text.startswith(seen)
    assert all(entry.notes.unfinished or entry.message in SCRIPT for entry in replies)
    whole = [event.entry for event in told if isinstance(event, ReplyKept) and not event.unfinished]
    assert [entry for entry in replies if not entry.notes.unfinished][: len(whole)] == whole


async def test_a_stopped_turn_says_so_and_how_every_call_ended(store: SqlStore):
    conversation = await conversation_on(store)
    told = await stop(conversation, after=13)
    assert isinstance(told[-1], TurnEnded)
    assert told[-1].reason == "stopped"
    ends = {event.call.id: event.result.text for event in told if isinstance(event, ToolAnswered)}
    assert ends["1"] == "good of 1"
    assert "was stopped before it gave a result" in ends["2"]
    assert "was not run" in ends["4"]


async def test_a_reply_that_is_broken_off_is_kept_and_marked(store: SqlStore):
    conversation = await conversation_on(store)
    await stop(conversation, after=5)
    [question, reply] = (await conversation.messages())[:2]
    assert (question.notes.unfinished, reply.notes.unfinished) == (None, True)
    assert reply.message.text == "Let me"
    assert reply.notes.usage is not None
    assert reply.notes.usage.estimated
    assert (await conversation.replay(reply.seq)).matches


async def test_of_an_unfinished_reply_only_whole_calls_are_kept_and_none_is_run(store: SqlStore):
    conversation, props = await conversation_on(store), Props()
    broken = Break(calling("good:1", "good:2", text="Now."), 4, ModelUnavailable("gone"))
    told = await collected(turn(conversation, "go", model=StagedModel(broken), runners=[props]))
    reply = (await conversation.messages())[1]
    assert reply.message == calling("good:1", text="Now.")
    assert "was not run" in (await conversation.messages())[2].message.tool_results[0].text
    assert props.ran == []
    check_events(told)
    await check_log(conversation)


async def test_after_thinking_that_was_not_sealed_no_call_is_kept(store: SqlStore):
    conversation = await conversation_on(store)
    thinking = ThinkingPart(text="Hm.", signature="sealed")
    reply = Message(role="assistant", parts=(thinking, *calling("good:1", text="Now.").parts))
    await collected(turn(conversation, "go", model=StagedModel(Break(reply, 4, ModelUnavailable("gone")))))
    kept = (await conversation.messages())[-1]
    assert kept.message.parts == (ThinkingPart(text="Hm."), TextPart(text="Now."))
    await check_log(conversation)


async def test_a_call_that_was_cut_short_alone_leaves_nothing_to_keep(store: SqlStore):
    conversation = await conversation_on(store)
    await collected(turn(conversation, "go", model=StagedModel(Break(calling("good:1"), 1, ModelUnavailable("gone")))))
    assert [entry.role for entry in await conversation.messages()] == ["user"]
    await check_log(conversation)


class Sluggish(Conversation):
    """A host whose every write takes a while, as on a busy database."""

    async def prepare(self, message: Message | str | None = None, **more: object) -> Request:
        await asyncio.sleep(0.01)
        return await super().prepare(message, **more)

    async def keep(self, request: Request) -> tuple[list[Entry], Request]:
        await asyncio.sleep(0.01)
        kept = await super().keep(request)
        await asyncio.sleep(0.01)
        return kept

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


async def test_cancelled_at_any_time_nothing_is_kept_twice_or_by_halves():
    """Every few milliseconds of a turn on a slow database."""
    async with SqlStore.open("sqlite://") as store:
        engine = engine_on(store)
        script = (calling("good:1", "good:2", text="Now."), "Done.")
        for moment in range(30):
            await engine.conversation(f"{moment}")
            conversation = Sluggish(engine, f"{moment}")
            listener = asyncio.create_task(collected(acting(conversation, script)))
            await asyncio.sleep(0.006 * moment)
            listener.cancel()
            await asyncio.sleep(0.003)
            listener.cancel()
            with suppress(asyncio.CancelledError):
                await listener
            kept = [entry.message for entry in await conversation.messages()]
            assert kept[0] == Message.user("where is it?")
            texts = [message.text for message in kept if message.role != "tool"]
            assert len(texts) == len(set(texts))
            await check_log(await engine.conversation(f"{moment}"))


async def test_closed_while_it_is_stopping_a_turn_still_keeps_what_was_said():
    async with SqlStore.open("sqlite://") as store:
        engine = engine_on(store)
        await engine.conversation("c")
        conversation, stopping, heard = Sluggish(engine, "c"), asyncio.Event(), 0
        async with aclosing(acting(conversation, stop=stopping)) as events:
            async for event in events:
                heard += isinstance(event, Text)
                if heard == 2:
                    stopping.set()
                    # By then it is keeping the reply.
                    await asyncio.sleep(0.005)
                    break
        reply = (await conversation.messages())[-1]
        assert (reply.message.text, reply.notes.unfinished) == ("Let me", True)


async def test_cancelled_before_its_first_step_a_turn_keeps_the_question(store: SqlStore):
    conversation = await conversation_on(store)
    listener = asyncio.create_task(collected(acting(conversation)))
    await asyncio.sleep(0)
    listener.cancel()
    with suppress(asyncio.CancelledError):
        await listener
    assert [entry.message.text for entry in await conversation.messages()] == ["where is it?"]


async def test_a_tool_that_will_not_be_stopped_does_not_keep_a_turn_from_ending(store: SqlStore):
    conversation, stopping = await conversation_on(store), asyncio.Event()
    limits = TurnLimits(stop_seconds=0.02)
    props = Props(deaf_seconds=1.5)
    events = turn(
        conversation, "go", model=StagedModel(calling("deaf:1")), runners=[props], limits=limits, stop=stopping
    )
    began = time.monotonic()
    async for event in events:
        if letters([event]) == "C":
            asyncio.get_running_loop().call_later(0.02, stopping.set)
    assert time.monotonic() - began < 1.4
    await check_log(conversation)
    # It ends by itself before the test does.
    await asyncio.sleep(0.3)


async def test_a_turn_stopped_before_it_begins_keeps_the_question_and_asks_nobody(store: SqlStore):
    conversation, stopping, model = await conversation_on(store), asyncio.Event(), StagedModel("never")
    stopping.set()
    told = await collected(turn(conversation, "hello", model=model, stop=stopping))
    assert letters(told) == "SQE"
    assert model.prompts == []


@given(st.lists(steps(), min_size=1, max_size=3), st.integers(1, 25), st.sampled_from(["stop", "close"]))
async def test_whatever_happens_a_turn_can_be_interrupted(script: list[Step | Break], after: int, manner: str):
    async with SqlStore.open("sqlite://") as store:
        conversation, stopping = await conversation_on(store), asyncio.Event()
        model = StagedModel(*script, *["the end"] * 8)
        told: list[TurnEvent] = []
        events = turn(
            conversation, "go", model=model, runners=[Props()], approvals=approvals(), limits=QUICK, stop=stopping
        )
        async with aclosing(events):
            async for event in events:
                told.append(event)
                if len(told) == after and manner == "close":
                    break
                if len(told) == after:
                    stopping.set()
                    await asyncio.sleep(0)
        if manner == "stop":
            check_events(told)
        await check_log(conversation)


async def test_a_real_reply_is_cancelled_in_its_midst_and_the_conversation_goes_on(
    store: SqlStore, local_model: Address
):
    settings = Settings(model=local_model.name, context_limit=local_model.context)
    conversation = await Engine(store, settings=settings, instructions="You tell long stories.").conversation("c")
    model = model_named(local_model.name, base_url=local_model.url)
    words: list[str] = []

    async def listen() -> None:
        async with aclosing(turn(conversation, "Tell me of a mill by a river.", model=model)) as events:
            async for event in events:
                if isinstance(event, Text):
                    words.append(event.text)
                if len(words) == 5:
                    asyncio.get_running_loop().call_soon(listener.cancel)

    listener = asyncio.create_task(listen())
    with suppress(asyncio.CancelledError):
        await listener
    reply = (await conversation.messages())[-1]
    assert reply.notes.unfinished
    assert reply.message.text.startswith("".join(words))
    assert 5 <= len(words) <= 50
    await check_log(conversation)
    told = await collected(turn(conversation, "And then?", model=model, limits=TurnLimits(reply_tokens=12)))
    assert isinstance(told[-1], TurnEnded)
    assert told[-1].reason in ("answered", "truncated")
    assert told[-1].usage.estimated is None
    assert told[-1].usage.input_tokens > 20
    assert [entry.role for entry in await conversation.messages()] == ["user", "assistant", "user", "assistant"]


class Told(NamedTuple):
    """What a killed process had said."""

    letters: str
    kept: list[int]
    exit: int


@contextmanager
def forker() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).with_name("teller.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def kill(process: subprocess.Popen[str], url: str, *, after: int, delay: float, by: signal.Signals) -> Told:
    """Runs a turn and sends a signal so many seconds after so many events."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{url}\n")
    process.stdin.flush()
    word, pid = process.stdout.readline().split()
    assert word == "pid"
    said: list[tuple[str, int]] = []
    sent = False
    while True:
        if len(said) == after and not sent:
            time.sleep(delay)
            os.kill(int(pid), by)
            sent = True
        word, number = process.stdout.readline().split()
        if word == "gone":
            return Told("".join(letter for letter, _ in said), [seq for _, seq in said if seq], int(number))
        said.append((word, int(number)))


@pytest.mark.slow
async def test_killed_at_any_moment_a_turn_leaves_a_log_that_goes_on(tmp_path: Path):
    url, chance = f"sqlite:///{tmp_path}/quire.db", random.Random(SEED)
    ends: list[str] = []
    with forker() as process:
        for number in range(KILLS):
            told = kill(process, url, after=chance.randint(0, 40), delay=chance.uniform(0, 0.01), by=signal.SIGKILL)
            assert told.exit == -signal.SIGKILL
            ends.append(told.letters[-1:])
            async with SqlStore.open(url) as store:
                conversation = await conversation_on(store, CONVERSATION, context_limit=WINDOW)
                kept = [entry.seq for entry in await conversation.messages()]
                assert set(told.kept) <= set(kept)
                assert await store.verify(CONVERSATION) == []
                if kept:
                    await check_next_request(conversation)
                await go_on(conversation, resume=number % 2 == 0)
    # The moments are spread: before anything, in the midst of words, at a reply, at tools.
    assert {"T"} < set(ends)
    assert len(set(ends)) >= 4


async def go_on(conversation: Conversation, *, resume: bool) -> None:
    question = None if resume and await answerable(conversation) else "Did you find it?"
    model = StagedModel(calling("good:1", "bad:2", text="I look again."), "No.", window=WINDOW)
    told = await collected(turn(conversation, question, model=model, runners=[Props()]))
    assert isinstance(told[-1], TurnEnded), told[-1]
    assert told[-1].reason == "answered"
    check_events(told)


async def test_ctrl_c_keeps_what_had_been_said(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/quire.db"
    with forker() as process:
        told = kill(process, url, after=6, delay=0.0, by=signal.SIGINT)
    assert told.exit == 0
    assert set(told.letters[3:]) == {"T"}
    async with SqlStore.open(url) as store:
        conversation = await conversation_on(store, CONVERSATION, context_limit=WINDOW)
        reply = (await conversation.messages())[-1]
        assert reply.notes.unfinished
        assert reply.message.text.startswith("I look in")
        await check_log(conversation)
