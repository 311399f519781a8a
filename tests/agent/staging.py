"""A stage for turns: a model that can break off in the midst of a reply, tools that behave as they are named, and what
must hold of every turn's events and of the log after it."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import NamedTuple

from hypothesis import strategies as st

from quire.agent.approvals import Allow, Approvals, Deny, Verdict
from quire.agent.turn_limits import TurnLimits
from quire.engine import Conversation, Engine
from quire.errors import ModelOverflow, ModelRefused, ModelThrottled, ModelUnavailable
from quire.llm import Chunk, Prompt, Reply
from quire.log import SqlStore
from quire.model import Message, TextPart, ThinkingPart, ToolCallPart, ToolDefinition
from quire.model import turns as events
from quire.model.turns import ReplyKept, ToolAnswered, ToolCalled, TurnEvent
from quire.settings import Settings
from quire.testing.scripted import ScriptedModel, Step
from quire.view.shapes import shape_for

QUICK = TurnLimits(tool_seconds=0.05, stop_seconds=0.01, first_wait=0.0, steps=4)
TOOLS = ("good", "bad", "hangs", "deaf", "guarded", "forbidden", "odd", "quits")


class Break(NamedTuple):
    """A reply that ends with an error after so many chunks."""

    reply: Step
    after: int
    error: Exception


class StagedModel(ScriptedModel):
    def __init__(self, *script: Step | Break, window: int | None = None) -> None:
        super().__init__(*(step.reply if isinstance(step, Break) else step for step in script), window=window)
        self._breaks = {place: step for place, step in enumerate(script) if isinstance(step, Break)}

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        place, seen = self._next, 0
        async for chunk in super().stream(prompt):
            breaks = self._breaks.get(place)
            if breaks is not None and seen >= breaks.after:
                raise breaks.error
            seen += 1
            yield chunk


class Props:
    """Runs tools, each in the way of its name."""

    def __init__(self, *, deaf_seconds: float = 0.3) -> None:
        self._deaf_seconds = deaf_seconds
        self.ran: list[str] = []
        self.cancelled: list[str] = []

    def handles(self, call: ToolCallPart) -> bool:
        return call.name in TOOLS

    def needs_approval(self, call: ToolCallPart) -> bool:
        return call.name in ("guarded", "forbidden")

    async def run(self, call: ToolCallPart) -> Message:
        self.ran.append(call.id)
        match call.name:
            case "bad":
                raise ValueError("no such luck")
            case "hangs":
                await self._hang(call)
            case "deaf":
                await deaf_sleep(self._deaf_seconds)
            case "quits":
                raise asyncio.CancelledError
            case "odd":
                return Message.user("I am no result")
            case _:
                await asyncio.sleep(0)
        return Message.tool(call.id, f"{call.name} of {call.id}")

    async def _hang(self, call: ToolCallPart) -> None:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            self.cancelled.append(call.id)
            raise


async def deaf_sleep(seconds: float) -> None:
    """A sleep that no cancellation ends."""
    end = asyncio.get_running_loop().time() + seconds
    while (left := end - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


async def doorman(call: ToolCallPart) -> Verdict:
    return Deny("Not today.") if call.name == "forbidden" else Allow()


def approvals() -> Approvals:
    return Approvals(doorman)


def calling(*named: str, text: str = "") -> Message:
    """A reply that calls tools, given as `name:id`."""
    said = (TextPart(text=text),) if text else ()
    calls = [each.partition(":") for each in named]
    return Message(
        role="assistant",
        parts=(*said, *(ToolCallPart(id=id_ or name, name=name, arguments='{"a": "b"}') for name, _, id_ in calls)),
    )


def engine_on(store: SqlStore, **settings: object) -> Engine:
    chosen = Settings.model_validate({"model": "gpt-4o", "context_limit": 4_000} | settings)
    schema = {"type": "object", "properties": {}}
    tools = [ToolDefinition(name=name, description=f"Is {name}.", parameters=schema) for name in TOOLS]
    return Engine(store, settings=chosen, instructions="Be brief.", tools=tools)


async def conversation_on(store: SqlStore, id: str = "c", **settings: object) -> Conversation:
    return await engine_on(store, **settings).conversation(id)


async def collected(turn: AsyncGenerator[TurnEvent, None]) -> list[TurnEvent]:
    return [event async for event in turn]


_LETTERS: dict[type[TurnEvent], str] = {
    events.TurnStarted: "S",
    events.QuestionKept: "Q",
    events.RequestPrepared: "P",
    events.Retrying: "W",
    events.Thinking: "T",
    events.Text: "T",
    events.ReplyKept: "R",
    events.ToolCalled: "C",
    events.ApprovalAsked: "A",
    events.ToolAnswered: "B",
    events.TurnEnded: "E",
    events.TurnFailed: "F",
}
_ASK = "(?:PW?)*P"
_CALLS = "(?:C+[AB]*B)"
GRAMMAR = re.compile(f"SQ?(?:{_ASK}T*R{_CALLS})*(?:{_ASK}W?T*(?:R{_CALLS}?)?)?[EF]")


def letters(told: Sequence[TurnEvent]) -> str:
    return "".join(_LETTERS[type(event)] for event in told)


def check_events(told: Sequence[TurnEvent]) -> None:
    """The order of a turn's events: the grammar, and each call of a reply told once and answered once after that."""
    assert GRAMMAR.fullmatch(letters(told)), letters(told)
    replies = [place for place, event in enumerate(told) if isinstance(event, ReplyKept)]
    for start, end in pairwise([*replies, len(told)]):
        reply, after = told[start], told[start:end]
        assert isinstance(reply, ReplyKept)
        calls = reply.entry.message.tool_calls
        assert [event.call for event in after if isinstance(event, ToolCalled)] == list(calls)
        answered = [event for event in after if isinstance(event, ToolAnswered)]
        assert sorted(event.call.id for event in answered) == sorted(call.id for call in calls)
        assert all(event.result.call_id == event.call.id for event in answered)


async def check_log(conversation: Conversation) -> None:
    """Every call in the log has its one result, right after it and in the order of the calls; the chain holds; and
    the next request is valid in both providers' shapes."""
    messages = [entry.message for entry in await conversation.messages()]
    place = 0
    while place < len(messages):
        calls = [call.id for call in messages[place].tool_calls]
        answers = [each.tool_results for each in messages[place + 1 : place + 1 + len(calls)]]
        assert [result.call_id for results in answers for result in results] == calls
        place += 1 + len(calls)
        assert place >= len(messages) or messages[place].role != "tool"
    assert await conversation.engine.store.verify(conversation.id) == []
    await check_next_request(conversation)


async def check_next_request(conversation: Conversation) -> None:
    for message in [None, "and then?"] if await answerable(conversation) else ["and then?"]:
        request = await conversation.prepare(message)
        assert shape_for("openai").check(request.to_openai()) == []
        assert shape_for("anthropic").check(request.to_anthropic()) == []


async def answerable(conversation: Conversation) -> bool:
    """Whether there is something to answer in the log as it is."""
    kept = await conversation.messages()
    return bool(kept) and kept[-1].role in ("user", "tool")


ERRORS = [ModelRefused("no"), ModelUnavailable("gone"), ModelThrottled(), ModelOverflow("long")]
TEXTS = st.sampled_from(["", "one", "one two three", "  "])


@st.composite
def replies(draw: st.DrawFn) -> Message:
    parts: list[TextPart | ThinkingPart | ToolCallPart] = []
    if draw(st.booleans()):
        parts.append(ThinkingPart(text="well, well"))
    parts.append(TextPart(text=draw(TEXTS)))
    for name in draw(st.lists(st.sampled_from([*TOOLS, "nowhere", "history_search"]), max_size=3)):
        arguments = draw(st.sampled_from(["{}", '{"a": 1}', "", "{", "no json"]))
        parts.append(ToolCallPart(id=draw(st.sampled_from("abcdef")), name=name, arguments=arguments))
    return Message(role="assistant", parts=tuple(parts))


@st.composite
def steps(draw: st.DrawFn) -> Step | Break:
    match draw(st.sampled_from(["reply", "reply", "reply", "error", "break", "silent"])):
        case "error":
            return draw(st.sampled_from(ERRORS))
        case "break":
            return Break(draw(replies()), draw(st.integers(0, 8)), draw(st.sampled_from(ERRORS)))
        case "silent":
            return Reply(Message(role="assistant", parts=()), None, None)
        case _:
            return draw(replies())
