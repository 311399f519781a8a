"""Every summary that a model was paid for counts towards the cost of its conversation, also one that is not used."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from infra.builders import make_messages
from quire.compaction.summarizer import Summarizer
from quire.engine import Engine, EngineConfig
from quire.llm import ModelChunk, Prompt
from quire.model import Message, Usage
from quire.settings import Settings
from quire.store import SqlStore
from quire.wire import Reply

pytestmark = pytest.mark.every_database

USAGE = Usage(model="gpt-4o", input_tokens=100_000, output_tokens=1_000)


class SimultaneousModel:
    """Answers only when it was called this many times, so that the compactions run at once."""

    name = "gpt-4o"

    def __init__(self, calls: int) -> None:
        self._barrier = asyncio.Barrier(calls)

    async def complete(self, prompt: Prompt) -> Reply:
        await self._barrier.wait()
        return Reply(Message.assistant("Facts: they spoke of many messages [#1]."), USAGE, "stop")

    def stream(self, prompt: Prompt) -> AsyncIterator[ModelChunk]:
        raise NotImplementedError


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_concurrent_compactions_all_count(store: SqlStore, count: int):
    settings = Settings(model="gpt-4o", context_limit=3_000, strategy="summarize")
    summarizer = Summarizer(model=SimultaneousModel(count), window=128_000)
    engine = Engine(store, EngineConfig.create(settings, summarizer=summarizer))
    await (await engine.conversation("c")).append(*make_messages(60))
    conversations = [await engine.conversation("c") for _ in range(count)]
    entries = await asyncio.gather(*(conversation.compact() for conversation in conversations))
    assert sum(entry is not None for entry in entries) == 1
    assert await store.spending.get_cost("c") == pytest.approx(count * engine.config.compute_cost(USAGE, "gpt-4o").usd)
