"""A turn of any length: one question, many tool calls, windows much smaller than the turn."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import product

import pytest

import quire
from infra.long_turn import QUESTION, READ_TOOL, Step, make_steps, measure_shared
from infra.sizes import IS_FULL_SIZE
from quire.engine import Conversation
from quire.engine.request import Request
from quire.model import Entry, Message, ThinkingPart
from quire.view.compaction_plan import NEWEST_BATCH_SHARE

STEPS = 1_000 if IS_FULL_SIZE else 60
CAPTAINS = ("Ilvermore", "Bassenthwaite", "Pellworm", "Crowcombe", "Thistlestead", "Wexley")
"""Each name is in one tool result only, so that its rarity must lead to that result."""
MODELS = ("gpt-4.1", "claude-sonnet-4-5")
MIN_MEAN_SHARES = {6_000: 0.50, 32_000: 0.85, 200_000: 0.95}
"""By window: mean part of each request that the next one repeats."""
CASES = list(product(MODELS, MIN_MEAN_SHARES))[:: 1 if IS_FULL_SIZE else 4]
"""In CI the smallest window of one model, and a larger one of the other."""


@dataclass(frozen=True)
class SentRequest:
    request: Request
    body: bytes
    previous: Step | None


@pytest.fixture
async def store(tmp_path):
    return f"sqlite:///{tmp_path}/turn.db"


def encode(request: Request) -> bytes:
    """The request as it is sent: instructions and tools, then messages."""
    rendered = request.assembly.rendered
    return repr((rendered.system, rendered.tools)).encode() + b"".join(each.encoded for each in rendered.messages)


async def run_turn(conversation: Conversation, steps: int, **changes) -> AsyncIterator[SentRequest]:
    question, previous = QUESTION, None
    for step in make_steps(steps, **changes):
        request = await conversation.prepare(question)
        yield SentRequest(request, encode(request), previous)
        await conversation.record(step.reply, request=request)
        await conversation.append(*step.results)
        question, previous = None, step


def list_messages(sent: SentRequest) -> list[Message]:
    return [each.message for each in sent.request.assembly.rendered.messages]


def is_newest_whole(sent: SentRequest) -> bool:
    return sent.previous is None or tuple(list_messages(sent)[-len(sent.previous.results) :]) == sent.previous.results


def fits_share(sent: SentRequest) -> bool:
    assembly = sent.request.assembly
    room = assembly.budget.max_input_tokens - assembly.counted_input.required_tokens
    counter = assembly.message_counter
    results = sent.previous.results if sent.previous is not None else ()
    reply = [sent.previous.reply] if sent.previous is not None else []
    return sum(counter.count(each) for each in (*reply, *results)) <= NEWEST_BATCH_SHARE * room


@pytest.mark.parametrize(("model", "window"), CASES)
async def test_every_request_of_a_long_turn_fits_and_extends_the_one_before(store: str, model: str, window: int):
    shares: list[float] = []
    before: bytes | None = None
    replies: list[Entry] = []
    compactions: list[Entry] = []
    async with quire.open(store, model=model, context_limit=window, tools=[READ_TOOL]) as engine:
        conversation = await engine.conversation("turn")
        async for sent in run_turn(conversation, STEPS):
            assert sent.request.tokens <= window - engine.settings.reserved_response_tokens
            assert Message.user(QUESTION) in list_messages(sent)
            assert is_newest_whole(sent) or not fits_share(sent)
            if before is not None:
                share = measure_shared(before, sent.body)
                assert share == 1 or sent.request.compactions, "only a compaction changes what was sent before"
                shares.append(share)
            before = sent.body
            compactions += sent.request.compactions
        messages = await conversation.messages()
        replies = [entry for entry in messages if entry.role == "assistant"]
        for reply in replies[:: max(1, STEPS // 10)]:
            assert (await conversation.replay(reply.seq)).matches
        assert await engine.store.verify_conversation("turn") == []
    results = {entry.seq for entry in messages if entry.role == "tool"}
    for body in (each.body for each in compactions):
        assert body.covers is None or body.covers.last + 1 not in results, "a cut separates a call from its results"
    assert len(replies) == STEPS
    assert sum(shares) / len(shares) >= MIN_MEAN_SHARES[window]


async def test_a_step_can_be_undone_edited_explained_and_compared(store: str):
    async with quire.open(store, model="gpt-4o", context_limit=6_000, tools=[READ_TOOL]) as engine:
        conversation = await engine.conversation("turn")
        bodies: list[bytes] = []
        compactions: list[Entry] = []
        async for sent in run_turn(conversation, 40):
            bodies.append(sent.body)
            compactions += sent.request.compactions
        folds = [each for each in compactions if each.body.question is not None]
        assert folds, "the turn was cut inside itself"
        question = (await conversation.messages())[0]
        assert folds[-1].body.question == question.seq
        assert question.seq in folds[-1].body.covers
        replies = [entry for entry in await conversation.messages() if entry.role == "assistant"]
        last = replies[-1].seq
        assert (await conversation.why(question.seq, reply_seq=last)).reason == "question"
        assert (await conversation.why(replies[0].seq, reply_seq=last)).reason in (
            "archived",
            "recalled",
            "over_budget",
        )
        reasons = {row.reason for row in (await conversation.manifest(last)).included}
        assert reasons >= {"question", "summary"}
        assert await conversation.diff(replies[0].seq, last)
        active = (await engine.store.read_window("turn")).compaction
        await conversation.edit_summary("The audit is half done [#3].")
        edited = (await engine.store.read_window("turn")).compaction.body
        assert edited.summary == "The audit is half done [#3]."
        assert (edited.question, edited.cleared_through) == (active.body.question, active.body.cleared_through)
        await conversation.undo_compaction()
        assert (await engine.store.read_window("turn")).compaction == active


async def test_stubs_say_what_was_called_and_where_it_is(store: str):
    async with quire.open(store, model="gpt-4o", context_limit=6_000, tools=[READ_TOOL]) as engine:
        conversation = await engine.conversation("turn")
        request = None
        async for sent in run_turn(conversation, 6):
            request = sent.request
        stubs = [each for each in request.to_chat()["messages"] if str(each.get("content")).startswith("[cleared: ")]
        assert stubs
        stored = {entry.seq: entry for entry in await conversation.messages()}
        for stub in stubs:
            text = stub["content"]
            number = int(text.rsplit("#", 1)[1].rstrip("]"))
            [result] = stored[number].message.tool_results
            assert result.call_id == stub["tool_call_id"]
            assert 'read_module({"path": "m' in text
            assert f"{len(result.content[0].text):,} characters" in text


async def test_the_newest_step_has_its_thinking_and_cleared_ones_have_none(store: str):
    async with quire.open(store, model="claude-sonnet-4-5", context_limit=6_000, tools=[READ_TOOL]) as engine:
        conversation = await engine.conversation("turn")
        async for sent in run_turn(conversation, 30):
            messages = list_messages(sent)
            if sent.previous is None:
                continue
            newest = next(message for message in reversed(messages) if message.role == "assistant")
            assert newest == sent.previous.reply
            stubbed = {
                result.call_id
                for message in messages
                for result in message.tool_results
                if result.content[0].text.startswith("[cleared: ")
            }
            for message in messages:
                if any(call.id in stubbed for call in message.tool_calls):
                    assert not any(isinstance(part, ThinkingPart) for part in message.parts)
                else:
                    thinking = [part for part in message.parts if isinstance(part, ThinkingPart)]
                    assert all(part.signature for part in thinking)


async def test_a_pinned_result_is_never_cleared(store: str):
    async with quire.open(store, model="gpt-4o", context_limit=6_000, tools=[READ_TOOL]) as engine:
        conversation = await engine.conversation("turn")
        pinned: Entry | None = None
        async for sent in run_turn(conversation, 30):
            if pinned is not None:
                assert pinned.message in list_messages(sent)
            elif sent.previous is not None:
                results = [entry for entry in await conversation.messages() if entry.role == "tool"]
                pinned = min(results, key=lambda entry: entry.tokens)
                await conversation.pin(pinned.seq)


async def test_the_next_question_finds_what_the_turn_archived(store: str):
    facts = [f"{name} lives at Gannet Row {12 * (number + 1)}." for number, name in enumerate(CAPTAINS)]
    async with quire.open(store, model="gpt-4o", context_limit=6_000, tools=[READ_TOOL]) as engine:
        conversation = await engine.conversation("turn")
        async for _ in run_turn(conversation, 40, facts=facts):
            pass
        await conversation.record("Done.", request=await conversation.prepare())
        await engine.wait_for_background()
        for number, name in enumerate(CAPTAINS):
            request = await conversation.prepare(f"Where does {name} live?")
            assert f"Gannet Row {12 * (number + 1)}" in str(request.to_chat()["messages"])
