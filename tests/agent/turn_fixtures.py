"""Fixtures for turns: a model that can fail within a reply, tools that behave as they are named, and checks of the
invariants of every turn's events and of the log after it."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import NamedTuple

from hypothesis import strategies as st

from quire.agent.approvals import Allow, ApprovalDecision, Approvals, Deny
from quire.agent.limits import TurnLimits
from quire.engine import Conversation, Engine, EngineConfig
from quire.errors import ModelContextOverflow, ModelRateLimited, ModelRefused, ModelUnavailable
from quire.llm import ModelChunk, Prompt, Reply
from quire.model import Message, TextPart, ThinkingPart, ToolCallPart, ToolDefinition, events
from quire.model.events import ReplyRecorded, ToolCalled, ToolCompleted, TurnEvent
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel, ScriptStep
from quire.wire import wire_format_for

FAST_TURN_LIMITS = TurnLimits(tool_seconds=0.05, stop_grace_seconds=0.01, initial_backoff_seconds=0.0, max_steps=4)
TOOL_NAMES = ("good", "bad", "hangs", "deaf", "guarded", "forbidden", "odd", "quits")


class BrokenReply(NamedTuple):
    """A reply that fails with an error after `after_chunks` chunks."""

    reply: ScriptStep
    after_chunks: int
    error: Exception


class FaultyModel(ScriptedModel):
    def __init__(self, *script: ScriptStep | BrokenReply, window: int | None = None) -> None:
        super().__init__(*(step.reply if isinstance(step, BrokenReply) else step for step in script), window=window)
        self._broken_replies = {index: step for index, step in enumerate(script) if isinstance(step, BrokenReply)}

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        position, chunk_count = self._position, 0
        async for chunk in super().stream(prompt):
            broken = self._broken_replies.get(position)
            if broken is not None and chunk_count >= broken.after_chunks:
                raise broken.error
            chunk_count += 1
            yield chunk


class FakeToolRunner:
    """Runs tools, each of which behaves as its name says."""

    def __init__(self, *, uncancellable_seconds: float = 0.3) -> None:
        self._uncancellable_seconds = uncancellable_seconds
        self.started_ids: list[str] = []
        self.cancelled_ids: list[str] = []

    def handles(self, call: ToolCallPart) -> bool:
        return call.name in TOOL_NAMES

    def needs_approval(self, call: ToolCallPart) -> bool:
        return call.name in ("guarded", "forbidden")

    async def run(self, call: ToolCallPart) -> Message:
        self.started_ids.append(call.id)
        match call.name:
            case "bad":
                raise ValueError("no such luck")
            case "hangs":
                await self._hang(call)
            case "deaf":
                await sleep_uncancellable(self._uncancellable_seconds)
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
            self.cancelled_ids.append(call.id)
            raise


async def sleep_uncancellable(seconds: float) -> None:
    """Sleeps and ignores cancellation."""
    end = asyncio.get_running_loop().time() + seconds
    while (left := end - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


async def decide_approval(call: ToolCallPart) -> ApprovalDecision:
    return Deny("Not today.") if call.name == "forbidden" else Allow()


def make_approvals() -> Approvals:
    return Approvals(decide_approval)


def make_tool_call_reply(*calls: str, text: str = "") -> Message:
    """Makes a reply that calls tools; each call is written as `name:id`."""
    text_parts = (TextPart(text=text),) if text else ()
    names_and_ids = [call.partition(":") for call in calls]
    return Message(
        role="assistant",
        parts=(
            *text_parts,
            *(ToolCallPart(id=id_ or name, name=name, arguments='{"a": "b"}') for name, _, id_ in names_and_ids),
        ),
    )


def make_engine(store: SqlStore, **settings: object) -> Engine:
    engine_settings = Settings.model_validate({"model": "gpt-4o", "context_limit": 4_000} | settings)
    schema = {"type": "object", "properties": {}}
    tools = [ToolDefinition(name=name, description=f"Is {name}.", parameters=schema) for name in TOOL_NAMES]
    return Engine(store, EngineConfig.create(engine_settings, instructions="Be brief.", tools=tools))


async def make_conversation(store: SqlStore, id: str = "c", **settings: object) -> Conversation:
    return await make_engine(store, **settings).conversation(id)


async def collect_events(turn: AsyncGenerator[TurnEvent, None]) -> list[TurnEvent]:
    return [event async for event in turn]


_EVENT_LETTERS: dict[type[TurnEvent], str] = {
    events.TurnStarted: "S",
    events.QuestionRecorded: "Q",
    events.RequestPrepared: "P",
    events.RetryScheduled: "W",
    events.ThinkingChunk: "T",
    events.TextChunk: "T",
    events.ReplyRecorded: "R",
    events.ToolCalled: "C",
    events.ApprovalRequested: "A",
    events.ToolCompleted: "B",
    events.TurnEnded: "E",
    events.TurnFailed: "F",
}
_REQUEST_PATTERN = "(?:PW?)*P"
_TOOL_CALLS_PATTERN = "(?:C+[AB]*B)"
EVENT_GRAMMAR = re.compile(
    f"SQ?(?:{_REQUEST_PATTERN}T*R{_TOOL_CALLS_PATTERN})*(?:{_REQUEST_PATTERN}W?T*(?:R{_TOOL_CALLS_PATTERN}?)?)?[EF]"
)


def encode_events(turn_events: Sequence[TurnEvent]) -> str:
    return "".join(_EVENT_LETTERS[type(event)] for event in turn_events)


def check_events(turn_events: Sequence[TurnEvent]) -> None:
    """Checks the order of a turn's events: the grammar, and that each call of a reply is announced once and then
    completed once."""
    assert EVENT_GRAMMAR.fullmatch(encode_events(turn_events)), encode_events(turn_events)
    replies = [index for index, event in enumerate(turn_events) if isinstance(event, ReplyRecorded)]
    for start, end in pairwise([*replies, len(turn_events)]):
        reply, after = turn_events[start], turn_events[start:end]
        assert isinstance(reply, ReplyRecorded)
        calls = reply.entry.message.tool_calls
        assert [event.call for event in after if isinstance(event, ToolCalled)] == list(calls)
        completed = [event for event in after if isinstance(event, ToolCompleted)]
        assert sorted(event.call.id for event in completed) == sorted(call.id for call in calls)
        assert all(event.result.call_id == event.call.id for event in completed)


async def check_log(conversation: Conversation) -> None:
    """Every call in the log has one result, right after it and in the order of the calls; the hash chain is valid; and
    the next request is valid in both wire formats."""
    messages = [entry.message for entry in await conversation.messages()]
    index = 0
    while index < len(messages):
        calls = [call.id for call in messages[index].tool_calls]
        results = [each.tool_results for each in messages[index + 1 : index + 1 + len(calls)]]
        assert [result.call_id for parts in results for result in parts] == calls
        index += 1 + len(calls)
        assert index >= len(messages) or messages[index].role != "tool"
    assert await conversation.engine.store.verify_conversation(conversation.id) == []
    await check_next_request(conversation)


async def check_next_request(conversation: Conversation) -> None:
    for message in [None, "and then?"] if await is_answerable(conversation) else ["and then?"]:
        request = await conversation.prepare(message)
        assert wire_format_for("chat").check(request.to_chat()) == []
        assert wire_format_for("messages").check(request.to_messages()) == []
        assert wire_format_for("responses").check(request.to_responses()) == []


async def is_answerable(conversation: Conversation) -> bool:
    """Whether the log ends with a message that needs an answer."""
    entries = await conversation.messages()
    return bool(entries) and entries[-1].role in ("user", "tool")


MODEL_ERRORS = [ModelRefused("no"), ModelUnavailable("gone"), ModelRateLimited(), ModelContextOverflow("long")]
REPLY_TEXTS = st.sampled_from(["", "one", "one two three", "  "])


@st.composite
def reply_messages(draw: st.DrawFn) -> Message:
    parts: list[TextPart | ThinkingPart | ToolCallPart] = []
    if draw(st.booleans()):
        parts.append(ThinkingPart(text="well, well"))
    parts.append(TextPart(text=draw(REPLY_TEXTS)))
    for name in draw(st.lists(st.sampled_from([*TOOL_NAMES, "nowhere", "history_search"]), max_size=3)):
        arguments = draw(st.sampled_from(["{}", '{"a": 1}', "", "{", "no json"]))
        parts.append(ToolCallPart(id=draw(st.sampled_from("abcdef")), name=name, arguments=arguments))
    return Message(role="assistant", parts=tuple(parts))


@st.composite
def model_steps(draw: st.DrawFn) -> ScriptStep | BrokenReply:
    match draw(st.sampled_from(["reply", "reply", "reply", "error", "break", "silent"])):
        case "error":
            return draw(st.sampled_from(MODEL_ERRORS))
        case "break":
            return BrokenReply(draw(reply_messages()), draw(st.integers(0, 8)), draw(st.sampled_from(MODEL_ERRORS)))
        case "silent":
            return Reply(Message(role="assistant", parts=()), None, None)
        case _:
            return draw(reply_messages())
