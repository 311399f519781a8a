"""Compaction with the real local model, whose server rejects a prompt that exceeds its window."""

from dataclasses import replace

import pytest

from infra.llama import LocalModel, find_missing_packages
from quire.compaction.summarizer import Summarizer
from quire.engine import Engine, EngineConfig
from quire.engine.topic_indexer import index_topics
from quire.llm import Prompt, Reply, get_model
from quire.model import Compaction, Message, Span, TopicIndex
from quire.model.context_events import CompactionFailed, ContextEvent
from quire.settings import Settings
from quire.store import SqlStore

WINDOW_TOKENS = 1_024
WINDOW_COUNT = 10


class RecordingModel:
    """Sends every prompt to the real server, which rejects one that is too long, and returns a scripted summary."""

    def __init__(self, url: str, name: str) -> None:
        self._model = get_model(name, base_url=url, api_key="none")
        self.name = name
        self.replies: list[Reply] = []

    async def complete(self, prompt: Prompt) -> Reply:
        reply = await self._model.complete(replace(prompt, max_tokens=4))
        self.replies.append(reply)
        return Reply(Message.assistant("Task: describe the bends of the river [#1]."), reply.usage, "stop")

    def stream(self, prompt: Prompt) -> object:
        return self._model.stream(prompt)


@pytest.mark.nightly
@pytest.mark.real_model
@pytest.mark.skipif(bool(find_missing_packages()), reason="THE LOCAL MODEL IS NOT INSTALLED: run `just setup`")
async def test_windows_of_history_never_exceed_the_summarizers_own():
    """Several windows of history, and one message larger than a window."""
    failures: list[ContextEvent] = []
    with LocalModel(context=WINDOW_TOKENS) as server:
        model = RecordingModel(server.url, server.name)
        async with SqlStore.open("sqlite://") as store:
            settings = Settings(model="gpt-4o", context_limit=2_000, context_background_threshold=None)
            summarizer = Summarizer(model=model, window=WINDOW_TOKENS, timeout=120)  # type: ignore[arg-type]
            engine = Engine(store, EngineConfig.create(settings, summarizer=summarizer))
            engine.subscribe(lambda event: failures.append(event) if isinstance(event, CompactionFailed) else None)
            conversation = await engine.conversation("c")
            for turn in range(6 * WINDOW_COUNT):
                await conversation.append(f"What is at bend {turn}? " * 10, Message.assistant(f"Mill {turn}. " * 15))
            await conversation.append("A long list: " + "a wheel, a stone, a sack, " * 150)
            request = await conversation.prepare("And now?")
            assert request.tokens <= 2_000 - 512
            assert await store.verify_conversation("c") == []
    sent = [reply.usage.input_tokens for reply in model.replies if reply.usage is not None]
    assert len(sent) >= WINDOW_COUNT
    assert max(sent) <= WINDOW_TOKENS
    assert failures == []


@pytest.mark.nightly
@pytest.mark.real_model
@pytest.mark.skipif(bool(find_missing_packages()), reason="THE LOCAL MODEL IS NOT INSTALLED: run `just setup`")
async def test_what_a_small_model_says_of_topics_is_valid_or_dropped():
    """It writes hardly any JSON. Whatever it says is paid for, leaves a valid log, and every topic cites its words."""
    with LocalModel(context=2_048) as server:
        model = get_model(server.name, base_url=server.url, api_key="none")
        async with SqlStore.open("sqlite://") as store:
            settings = Settings(model="gpt-4o", context_limit=2_000, topic_index=False)
            summarizer = Summarizer(model=model, window=2_048, timeout=240)
            engine = Engine(store, EngineConfig.create(settings, summarizer=summarizer))
            conversation = await engine.conversation("c")
            for turn in range(12):
                await conversation.append(f"What is at bend {turn}? " * 6, Message.assistant(f"Mill {turn}. " * 10))
            body = Compaction(number=1, covers=Span(first=1, last=20), summary="Mills stand at bends [#1].")
            await store.append("c", body)
            await index_topics(engine.with_changes(topic_index=True), "c", 0)
            entries = await store.read_range("c", kinds=["topic_index"])
            indexes = [entry.body for entry in entries if isinstance(entry.body, TopicIndex)]
            assert indexes
            assert all(index.usage is not None and index.usage.output_tokens for index in indexes)
            assert all(index.topics or index.failures for index in indexes)
            assert all(set(topic.messages) <= set(range(1, 21)) for index in indexes for topic in index.topics)
            assert (await conversation.prepare("And the mill?")).tokens <= 2_000 - 512
            assert await store.verify_conversation("c") == []
