"""Incomplete replies: the agent and the gateway record the same of the same reply that broke off."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from gateway_fixtures import run_gateway, user_message

from fake_upstream import UpstreamRequest, make_chunk_event, run_fake_upstream
from quire.agent.step import ReplyAccumulator
from quire.agent.turn import run_turn
from quire.engine import Engine, EngineConfig
from quire.errors import ModelUnavailable
from quire.llm import ModelChunk, Prompt, TextDelta, ThinkingDelta, ToolCallDelta
from quire.model import Entry
from quire.settings import Settings
from quire.store import SqlStore
from quire.wire import Reply
from quire.wire.chat.stream import ChatStreamDecoder

RecordReply = Callable[[SqlStore, Sequence[ModelChunk]], Awaitable[Entry]]


@dataclass
class BrokenModel:
    """A model whose connection breaks after these chunks."""

    chunks: Sequence[ModelChunk]
    name: str = "gpt-4o"

    async def complete(self, prompt: Prompt) -> Reply:
        raise NotImplementedError

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        for chunk in self.chunks:
            yield chunk
        raise ModelUnavailable("gone")


async def record_by_agent(store: SqlStore, chunks: Sequence[ModelChunk]) -> Entry:
    conversation = await Engine(store, EngineConfig.create(Settings(model="gpt-4o"))).conversation("agent")
    async for _ in run_turn(conversation, "go", model=BrokenModel(chunks)):
        pass
    return await store.get_entry("agent", 2)


async def record_by_gateway(store: SqlStore, chunks: Sequence[ModelChunk]) -> Entry:
    async def break_off(request: UpstreamRequest) -> None:
        await request.start_sse()
        await request.send_sse(*(make_chunk_event(to_openai_delta(chunk)) for chunk in chunks))
        request.abort_connection()

    async with run_fake_upstream(break_off) as up, run_gateway(store, up.url) as harness:
        await harness.ask(user_message("go"), stream=True, x_quire_conversation="gateway")
    return await store.get_entry("gateway", 2)


def to_openai_delta(chunk: ModelChunk) -> dict[str, Any]:
    match chunk:
        case TextDelta(text=text):
            return {"content": text}
        case ThinkingDelta(text=text):
            return {"reasoning_content": text}
        case ToolCallDelta():
            function = {"name": chunk.name, "arguments": chunk.arguments}
            return {"tool_calls": [{"index": chunk.index, "id": chunk.id, "type": "function", "function": function}]}
        case _:
            raise NotImplementedError


def make_call(arguments: str, *, index: int = 1, id: str | None = "c1", name: str | None = "f") -> ToolCallDelta:
    return ToolCallDelta(index=index, id=id, name=name, arguments=arguments)


@pytest.mark.parametrize("record", [record_by_agent, record_by_gateway])
@pytest.mark.parametrize(
    ("chunks", "recorded_arguments"),
    [
        ([make_call('{"a": 1}')], ['{"a": 1}']),
        ([make_call('{"a"'), make_call(": 1}", id=None, name=None)], ['{"a": 1}']),
        ([make_call("{}"), make_call('{"a"', index=2, id="c2")], ["{}"]),
        ([make_call('{"a": "\ud83e'), make_call('\udd8a"}', id=None, name=None)], ['{"a": "🦊"}']),
        ([make_call('{"a": 1')], []),
        ([make_call("[1]")], []),
        ([make_call("1")], []),
        ([make_call('"{}"')], []),
        ([make_call("null")], []),
        ([make_call("")], []),
        ([make_call("[" * 100_000)], []),
        ([make_call("{}", id=None)], []),
        ([make_call("{}", name=None)], []),
        ([ThinkingDelta("Hm."), make_call("{}")], []),
    ],
)
async def test_agent_and_gateway_record_the_same_calls(
    store: SqlStore, record: RecordReply, chunks: list[ModelChunk], recorded_arguments: list[str]
):
    reply = await record(store, [TextDelta("Let me look."), *chunks])
    assert reply.metadata.incomplete
    assert reply.message.text == "Let me look."
    assert [call.arguments for call in reply.message.tool_calls] == recorded_arguments
    assert reply.metadata.usage is not None
    assert reply.metadata.usage.estimated


async def test_agent_and_gateway_estimate_the_same_usage_of_a_reply(store: SqlStore):
    chunks = [TextDelta("Let me"), TextDelta(" look."), make_call('{"a": 1}')]
    by_gateway = await record_by_gateway(store, chunks)
    by_agent = await record_by_agent(store, chunks)
    assert by_agent.message == by_gateway.message
    assert by_agent.metadata.usage is not None
    assert by_gateway.metadata.usage is not None
    assert by_agent.metadata.usage.output_tokens == by_gateway.metadata.usage.output_tokens > 0


async def test_a_character_split_between_two_events_is_recorded_whole(store: SqlStore):
    for record in (record_by_agent, record_by_gateway):
        reply = await record(store, [TextDelta("A \ud83e"), TextDelta("\udd8a and \ud83e")])
        assert reply.message.text == "A 🦊 and \ufffd"


def accumulate_text(count: int) -> None:
    accumulator = ChatStreamDecoder()
    event = make_chunk_event("x" * 100)
    for _ in range(count):
        accumulator.feed(event)
    assert len(accumulator.build_responses()[0]["choices"][0]["message"]["content"]) == 100 * count


def accumulate_split_event(count: int) -> None:
    accumulator = ChatStreamDecoder()
    event = make_chunk_event("x" * 100 * count)
    for start in range(0, len(event), 100):
        accumulator.feed(event[start : start + 100])
    assert len(accumulator.build_responses()[0]["choices"][0]["message"]["content"]) == 100 * count


def accumulate_chunks(count: int) -> None:
    accumulator = ReplyAccumulator()
    for _ in range(count):
        accumulator.add(TextDelta("x" * 100))
        accumulator.add(make_call("y" * 100))
    assert accumulator.build_incomplete_message() is not None


@pytest.mark.parametrize("accumulate", [accumulate_text, accumulate_split_event, accumulate_chunks])
def test_the_work_per_chunk_does_not_grow_with_the_reply(accumulate: Callable[[int], None]):
    def measure_cpu_seconds(count: int) -> float:
        started_at = time.thread_time()
        accumulate(count)
        return time.thread_time() - started_at

    accumulate(100)
    short = min(measure_cpu_seconds(1_000) for _ in range(3))
    assert measure_cpu_seconds(16_000) < 16 * 4 * short


def test_events_are_found_however_the_stream_is_cut():
    events = [make_chunk_event("a"), make_chunk_event("b").replace(b"\n\n", b"\r\n\r\n"), make_chunk_event("c")]
    stream = b"".join(events)
    for size in range(1, len(stream) + 1):
        accumulator = ChatStreamDecoder()
        passed = b"".join(accumulator.feed(stream[at : at + size]) for at in range(0, len(stream), size))
        assert passed == stream
        assert accumulator.build_responses()[0]["choices"][0]["message"]["content"] == "abc"
