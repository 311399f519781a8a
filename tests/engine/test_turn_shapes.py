"""A turn of any shape is sent: wide batches, long results, long arguments, pins and pictures, in small windows.

Random turns in three formats. Each request is valid and within the window, the newest results are whole if they fit,
and a new question is answered in every state. `QUIRE_FULL_SIZE=1` runs 5,000 turns.
"""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import quire
from infra.sizes import IS_FULL_SIZE
from quire import Message, ToolCallPart
from quire.engine import Conversation, Engine
from quire.ledger.replay import replay
from quire.model import ImagePart, TextPart, ToolResultPart
from quire.model.policy import WireFormatName
from quire.view.assembly import ViewAssembly

TURNS = 5_000 if IS_FULL_SIZE else 30
MODELS: dict[WireFormatName, str] = {"chat": "gpt-4o", "messages": "claude-sonnet-4-5", "responses": "gpt-4o"}
WINDOWS = (2_000, 6_000, 32_000, 200_000)[:: 1 if IS_FULL_SIZE else 2]
TURNS_PER_CONVERSATION = 20
WORDS = ["road", "dry", "weather", "held", "the", "tide", "turned", "at", "noon", "and", "the", "bar", "was", "calm"]
PICTURE = ImagePart(
    media_type="image/png",
    url="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
)


@dataclass
class Tally:
    """What a run has seen: requests, and the free share of the window in those that shortened something."""

    requests: int = 0
    free_shares: list[float] = field(default_factory=list[float])
    narrowed: int = 0


def write_text(dice: random.Random, max_chars: int) -> str:
    """A text of up to so many characters; short ones are as frequent as long ones."""
    chars = int(max_chars ** dice.random()) if max_chars and dice.random() > 0.1 else 0
    words = " ".join(dice.choice(WORDS) for _ in range(min(chars // 4, 2_000) + 1))
    return (words * (chars // len(words) + 1))[:chars]


def make_calls(dice: random.Random, width: int) -> Message:
    calls = [
        ToolCallPart(id=f"c{dice.getrandbits(60)}-{number}", name="run", arguments=json.dumps({"text": text}))
        for number in range(width)
        for text in [write_text(dice, 50_000 // width)]
    ]
    return Message(role="assistant", parts=(*([TextPart(text=write_text(dice, 500) or "Let me look.")]), *calls))


def make_results(dice: random.Random, call: Message, *, together: bool) -> list[Message]:
    """The results as messages of their own, or in one message as Anthropic's clients send them."""
    max_chars = 200_000 // len(call.tool_calls)
    parts = [
        ToolResultPart(
            call_id=each.id,
            content=(TextPart(text=write_text(dice, max_chars)), *([PICTURE] if dice.random() < 0.02 else [])),
        )
        for each in call.tool_calls
    ]
    return [Message(role="tool", parts=tuple(parts))] if together else [Message(role="tool", parts=(p,)) for p in parts]


def choose_width(dice: random.Random) -> int:
    return 1 if dice.random() < 0.4 else int(800 ** dice.random())


def list_texts(messages: list[Message]) -> list[str]:
    """The texts of tool results."""
    parts = [piece for each in messages for result in each.tool_results for piece in result.content]
    return [piece.text for piece in parts if isinstance(piece, TextPart)]


def check_request(request: Any, engine: Engine, tally: Tally, *, results: list[Message]) -> None:
    """The payload passes the format's own rules and fits; nothing small is cut while there is room for it."""
    payload = request.assembly.rendered.to_payload()
    assert request.assembly.rendered.wire_format.check(payload) == []
    assert request.tokens <= request.manifest.max_input_tokens
    tally.requests += 1
    assembly = request.assembly
    assert isinstance(assembly, ViewAssembly)
    if not results:
        return
    written = list_texts(results)
    newest = assembly.selection.newest[-1]
    sent = set(list_texts([each.message for each in newest.messages]))
    is_whole = all(text in sent for text in written if text)
    free = request.manifest.max_input_tokens - request.tokens
    if not is_whole:
        tally.free_shares.append(free / request.manifest.max_input_tokens)
        tally.narrowed += assembly.selection.max_results is not None
        # Whole, they would not have fitted next to the question and what every request needs.
        counter = engine.message_counter
        batch = sum(counter.count(each) for each in results)
        required = assembly.counted_input.required_tokens + newest.messages[0].tokens
        assert required + batch > request.manifest.max_input_tokens * 0.6


async def run_turn(conversation: Conversation, engine: Engine, dice: random.Random, tally: Tally) -> None:
    request = await conversation.prepare(write_text(dice, 3_000) or "Go on.")
    check_request(request, engine, tally, results=[])
    for _ in range(dice.choice((0, 1, 1, 2))):
        call = make_calls(dice, choose_width(dice))
        await conversation.record(call, request=request)
        if dice.random() < 0.05:
            return  # The process died before the results.
        results = make_results(dice, call, together=dice.random() < 0.3)
        request = await conversation.prepare(results)
        check_request(request, engine, tally, results=results)
        if dice.random() < 0.1:
            return
    reply = await conversation.record(write_text(dice, 2_000) or "Done.", request=request)
    if dice.random() < 0.1:
        stored = await conversation.messages()
        chosen = dice.choice(stored)
        if chosen.seq < reply.seq:
            await conversation.pin(chosen.seq)


@pytest.mark.parametrize("wire_format", MODELS)
@pytest.mark.parametrize("window", WINDOWS)
async def test_every_turn_is_sent(tmp_path: Path, window: int, wire_format: WireFormatName):
    dice, tally = random.Random(f"{window} {wire_format}"), Tally()
    turns = max(5, TURNS // (len(MODELS) * len(WINDOWS)))
    for number in range(0, turns, TURNS_PER_CONVERSATION):
        url = f"sqlite:///{tmp_path}/{number}.db"
        async with quire.open(url, model=MODELS[wire_format], wire_format=wire_format, context_limit=window) as engine:
            conversation = await engine.conversation("turns")
            for _ in range(min(TURNS_PER_CONVERSATION, turns - number)):
                await run_turn(conversation, engine, dice, tally)
            question = await conversation.prepare("Never mind: what is 2 + 2?")
            check_request(question, engine, tally, results=[])
            reply = await conversation.record("4.", request=question)
            assert (await conversation.usage()).total_tokens > 0
            manifest = await engine.store.get_manifest("turns", reply.seq)
            assert (await replay(engine.store, manifest, load_blob=None)).matches
    shares = sorted(tally.free_shares)
    deciles = [round(shares[len(shares) * each // 10], 2) for each in range(10)] if shares else []
    print(
        f"{tally.requests} requests, {len(shares)} shortened, {tally.narrowed} with some of the results; free {deciles}"
    )


async def test_a_pin_holds_its_message_and_not_its_siblings(tmp_path: Path):
    async with quire.open(f"sqlite:///{tmp_path}/quire.db", model="gpt-4o", context_limit=16_000) as engine:
        conversation = await engine.conversation("pins")
        request = await conversation.prepare("Read the log.")
        calls = (ToolCallPart(id="a", name="read", arguments="{}"), ToolCallPart(id="b", name="pwd", arguments="{}"))
        await conversation.record(Message(role="assistant", parts=calls), request=request)
        request = await conversation.prepare([Message.tool("a", "Road dry. " * 2_000), Message.tool("b", "/src")])
        await conversation.record("Done.", request=request)
        await conversation.pin(4)
        for number in range(30):
            request = await conversation.prepare(f"Question {number}: " + "weather held " * 200)
            await conversation.record("Yes.", request=request)
        await conversation.compact()
        request = await conversation.prepare("Where are we?")
        rows = [row for row in request.manifest.included if row.reason == "pinned"]
        assert [(row.span.first, row.span.last, row.max_results) for row in rows if row.span] == [(2, 2, 1), (4, 4, 1)]
        reply = await conversation.record("In /src.", request=request)
        assert (await conversation.replay(reply.seq)).matches
        small = await engine.with_changes(context_limit=3_000).conversation("pins")
        assert (await small.prepare("And now?")).tokens < 3_000


async def test_pins_that_leave_no_room_are_excerpts(tmp_path: Path):
    async with quire.open(f"sqlite:///{tmp_path}/quire.db", model="gpt-4o", context_limit=16_000) as engine:
        conversation = await engine.conversation("pins")
        request = await conversation.prepare("weather held " * 3_000)
        await conversation.record("Noted.", request=request)
        await conversation.pin(1)
        await conversation.append("Later.", "And later.")
        await conversation.compact()
        small = await engine.with_changes(context_limit=2_000).conversation("pins")
        request = await small.prepare("And now?")
        [row] = [row for row in request.manifest.included if row.reason == "pinned"]
        assert row.turn_excerpt_chars
        reply = await small.record("Calm.", request=request)
        assert (await small.replay(reply.seq)).matches


@pytest.mark.parametrize("wire_format", MODELS)
async def test_a_list_may_end_with_a_system_message(tmp_path: Path, wire_format: WireFormatName):
    """Agents remind the model of something after the results of its tools."""
    url, model = f"sqlite:///{tmp_path}/quire.db", MODELS[wire_format]
    async with quire.open(url, model=model, wire_format=wire_format, context_limit=4_000) as engine:
        conversation = await engine.conversation("reminder")
        await conversation.append("Do the work.")
        for number in range(20):
            call = ToolCallPart(id=f"t{number}", name="run", arguments="{}")
            result = Message.tool(call.id, f"Result {number}. " + "weather held " * 80)
            await conversation.append(Message(role="assistant", parts=(call,)), result)
        await conversation.append(Message.system("Keep the user updated."))
        request = await conversation.prepare()
        assert request.tokens < 4_000
        assert "Keep the user updated." in json.dumps(request.assembly.rendered.to_payload())
        assert "Result 19." in json.dumps(request.assembly.rendered.to_payload())
        reply = await conversation.record("Half of it is done.", request=request)
        assert (await conversation.replay(reply.seq)).matches
