"""The cache of windows: requests read only what changed, and see every change that anyone made to the log."""

import json

import pytest

from quire.engine import Engine, EngineConfig
from quire.engine.conversation import Conversation
from quire.model import Compaction, Message, Span
from quire.settings import Settings
from quire.store import SqlStore

pytestmark = pytest.mark.every_database


def make_engine(store: SqlStore) -> Engine:
    return Engine(store, EngineConfig.create(Settings(model="gpt-4o", context_limit=4_000, strategy="summarize")))


async def open_conversation(store: SqlStore) -> Conversation:
    conversation = await make_engine(store).conversation("c")
    await conversation.append(*(Message.user(f"secret {number}") for number in range(5)))
    await conversation.prepare("What did I say?")
    return conversation


async def encode_next_request(conversation: Conversation) -> str:
    return json.dumps((await conversation.prepare("What did I say?")).to_chat())


async def test_the_next_request_reads_no_entry_again(store: SqlStore):
    conversation = await open_conversation(store)
    windows = conversation.engine.runtime.windows
    before = windows["c", 0]
    await conversation.append("one more")
    await conversation.prepare("What did I say?")
    assert [entry.seq for entry in windows["c", 0].loaded] == [1, 2, 3, 4, 5, 6]
    assert all(now is known for now, known in zip(windows["c", 0].loaded[:4], before.loaded, strict=False))


async def test_a_window_larger_than_the_cache_is_not_cached(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    conversation = await open_conversation(store)
    windows = conversation.engine.runtime.windows
    assert ("c", 0) in windows
    monkeypatch.setattr("quire.engine.runtime.MAX_WINDOW_BYTES", 5_000)
    await conversation.append("weather held " * 500)
    await conversation.prepare("What did I say?")
    assert ("c", 0) not in windows


async def test_the_next_request_sees_what_others_did(store: SqlStore):
    conversation = await open_conversation(store)
    await store.append("c", Message.user("from elsewhere"))
    assert "from elsewhere" in await encode_next_request(conversation)
    await store.purge("c", [2])
    request = await encode_next_request(conversation)
    assert "secret 1" not in request
    assert "secret 2" in request
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=4), summary="Secrets were named."))
    request = await encode_next_request(conversation)
    assert "Secrets were named." in request
    assert "secret 2" not in request


async def test_the_request_is_the_same_without_the_cache(store: SqlStore):
    conversation = await open_conversation(store)
    for number in range(10):
        await conversation.append(f"tide {number}", Message.assistant(f"noted {number}"))
        cached = await conversation.prepare("And now?")
        fresh = await make_engine(store).conversation("c")
        assert (await fresh.prepare("And now?")).manifest == cached.manifest


async def test_a_connection_loss_empties_the_cache(store: SqlStore):
    conversation = await open_conversation(store)
    conversation.engine.runtime.clear_log_caches()
    assert not conversation.engine.runtime.windows
