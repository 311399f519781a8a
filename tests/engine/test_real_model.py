"""Compaction with the real local model: its server refuses what exceeds its window, so an overflow could not hide."""

from dataclasses import replace

import pytest

from quire.compaction.run import Summarizer
from quire.engine import Engine
from quire.llm import Prompt, Reply, model_named
from quire.log import SqlStore
from quire.model import Message
from quire.model.events import CompactionFailed, Event
from quire.settings import Settings
from quire.testing.llama import LocalModel, missing_packages

WINDOW = 1_024
WINDOWS = 3


class Watched:
    """Every prompt goes to the real server, which refuses what is too long; the prose it lacks is put in its place."""

    def __init__(self, url: str, name: str) -> None:
        self._model = model_named(name, base_url=url, api_key="none")
        self.name = name
        self.replies: list[Reply] = []

    async def complete(self, prompt: Prompt) -> Reply:
        reply = await self._model.complete(replace(prompt, max_tokens=4))
        self.replies.append(reply)
        return Reply(Message.assistant("Task: describe the bends of the river [#1]."), reply.usage, "stop")

    def stream(self, prompt: Prompt) -> object:
        return self._model.stream(prompt)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_packages()), reason="THE LOCAL MODEL IS NOT INSTALLED: run `just setup`")
async def test_windows_of_history_never_exceed_the_summarizers_own():
    """Some windows full, one message larger than a window by itself; WINDOWS = 10 takes about four minutes."""
    failures: list[Event] = []
    with LocalModel(context=WINDOW) as server:
        model = Watched(server.url, server.name)
        async with SqlStore.open("sqlite://") as store:
            settings = Settings(model="gpt-4o", context_limit=2_000, context_background_threshold=None)
            summarizer = Summarizer(model=model, window=WINDOW, timeout=120)  # type: ignore[arg-type]
            engine = Engine(store, settings=settings, summarizer=summarizer)
            engine.subscribe(lambda event: failures.append(event) if isinstance(event, CompactionFailed) else None)
            conversation = await engine.conversation("c")
            for turn in range(6 * WINDOWS):
                await conversation.append(f"What is at bend {turn}? " * 10, Message.assistant(f"Mill {turn}. " * 15))
            await conversation.append("A long list: " + "a wheel, a stone, a sack, " * 150)
            request = await conversation.prepare("And now?")
            assert request.tokens <= 2_000 - 512
            assert await store.verify("c") == []
    sent = [reply.usage.input_tokens for reply in model.replies if reply.usage is not None]
    assert len(sent) >= WINDOWS
    assert max(sent) <= WINDOW
    assert failures == []
