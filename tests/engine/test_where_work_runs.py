"""Where work runs: what is long in the worker process of a server, what is large in a thread."""

import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine_fixtures import PairEmbedder

import quire
from quire.concurrency.worker_process import Outcome, WorkerProcess
from quire.concurrency.worker_threads import use_worker_process
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import index_messages
from quire.engine.search import MessageFilter
from quire.engine.shared_transcript import SharedTranscript
from quire.engine.topic_indexer import index_topics
from quire.errors import ModelContextOverflow, ModelUnavailable
from quire.llm import Prompt
from quire.model import Message, TextPart
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel
from quire.view.assembly import ViewAssembly
from quire.view.layout import RenderedRequest

SECRET = "ghp_" + "a1B2c3D4e5F6" * 3
CALL_SITE = re.compile(r"await run_portable\(\s*[^,]+,\s*(\w+)")


def find_portable_functions() -> set[str]:
    """Names of the functions that the source gives to `run_portable`."""
    folder = Path(quire.__file__).parent
    texts = (path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    return {name for text in texts for name in CALL_SITE.findall(text)}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the functions that were called in the process, where all work on a text is long."""
    names, call = set[str](), WorkerProcess.call

    def spy(self: WorkerProcess, function: Callable[[], Any], *, timeout_seconds: float) -> Outcome:
        assert isinstance(function, partial)
        names.add(function.func.__name__)
        return call(self, function, timeout_seconds=timeout_seconds)

    monkeypatch.setattr(WorkerProcess, "call", spy)
    monkeypatch.setattr("quire.concurrency.worker_threads.LONG_WORK_BYTES", 0)
    return names


def make_engine(store: SqlStore, *steps: Any, **options: Any) -> Engine:
    values = {"model": "gpt-4o", "context_limit": 4_000, "context_background_threshold": None, "strategy": "summarize"}
    settings = Settings.model_validate({**values, "min_recent_messages_to_keep": 4, "topic_index": True})
    model = ScriptedModel(*steps, repeat=True, window=3_000, name="gpt-4o-mini")
    return Engine(store, EngineConfig.create(settings, summarizer=model, **options))


async def test_everything_that_may_run_in_the_process_does(store: SqlStore, called: set[str]):
    rejected = [ModelContextOverflow(), "All went well [#1]."]

    def answer(prompt: Prompt) -> Any:
        return rejected.pop(0) if len(rejected) > 1 else rejected[0]

    engines = {
        "a": make_engine(store, answer),
        "b": make_engine(store, ModelUnavailable("no model"), embedder=PairEmbedder()),
    }
    with use_worker_process():
        for name, engine in engines.items():
            conversation = await engine.conversation(name)
            for number in range(12):
                long = f"The wheel of mill {number} turns. " * 40
                await conversation.append(f"{long} {SECRET}", Message.assistant(f"Mill {number} is noted."))
            await conversation.append("weather held " * 3_000, Message.assistant("Yes."))
            await conversation.prepare("And now?")
            assert (await store.read_window(name)).compaction is not None
            await index_messages(engine)
            found = await engine.search("wheel of mill 7", where=MessageFilter(conversations=(name,)))
            assert found.messages[0].entry.seq in (15, 16)
            transcript = SharedTranscript(
                store, await store.get_conversation(name), await store.get_branch(name), format="json"
            )
            assert SECRET not in "".join([piece async for piece in transcript.write()])
            assert transcript.masked_count >= 12
        await index_topics(engines["a"], "a", 0)
    assert called == find_portable_functions()


async def test_many_new_parts_are_not_laid_out_on_the_event_loop(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    threads, render = list[threading.Thread](), ViewAssembly.render

    def spy(self: ViewAssembly) -> RenderedRequest:
        threads.append(threading.current_thread())
        return render(self)

    monkeypatch.setattr(ViewAssembly, "render", spy)
    conversation = await make_engine(store, "Yes.").with_changes(context_limit=200_000).conversation("c")
    await conversation.prepare("Hello.")
    await conversation.prepare(Message(role="user", parts=(TextPart(text="Run."),) * 4_000))
    assert [thread is threading.current_thread() for thread in threads] == [True, False]
