"""A slow embedder: messages are embedded by the background job, never while a request waits."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from infra.onnx_models import write_tiny_encoder
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import index_inline, index_messages
from quire.engine.search import search_memories, search_messages
from quire.llm.onnx_encoder import load_onnx_encoder
from quire.model import Message
from quire.settings import Settings
from quire.store import SqlStore


class CountingEncoder:
    """The tiny encoder, with a record of what it embeds."""

    def __init__(self, folder: Path) -> None:
        self._encoder = load_onnx_encoder(write_tiny_encoder(folder))
        self.name, self.dimensions = self._encoder.name, self._encoder.dimensions
        self.stored_dimensions = self._encoder.stored_dimensions
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise AssertionError("only embed_async may be used")

    async def embed_async(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.embedded += filter(None, texts)
        return await self._encoder.embed_async(texts)


@pytest.fixture
def encoder(tmp_path: Path) -> CountingEncoder:
    return CountingEncoder(tmp_path / "tiny")


@pytest.fixture
def engine(store: SqlStore, encoder: CountingEncoder) -> Engine:
    return Engine(store, EngineConfig.create(Settings(), embedder=encoder))


async def append(engine: Engine, *texts: str) -> None:
    if not await engine.store.list_conversations():
        await engine.store.create_conversation("pets")
    await engine.store.append("pets", *map(Message.user, texts))


async def test_a_request_does_not_wait_for_vectors_and_the_job_adds_them(engine: Engine, encoder: CountingEncoder):
    await append(engine, "the cat", "the car")
    assert not await index_inline(engine)
    assert encoder.embedded == []
    result = await search_messages(engine, "cat")
    assert [hit.entry.message.text for hit in result.messages][:1] == ["the cat"]
    assert not result.complete
    assert encoder.embedded == ["cat"]
    await index_messages(engine)
    assert sorted(encoder.embedded) == ["cat", "the car", "the cat"]
    result = await search_messages(engine, "kitten")
    assert result.complete
    assert result.messages[0].entry.message.text == "the cat"


async def test_a_message_is_embedded_once(engine: Engine, encoder: CountingEncoder):
    await append(engine, "the cat", "the car")
    await index_messages(engine)
    await append(engine, "the dog")
    await index_inline(engine)
    await append(engine, "the kitten")
    await index_messages(engine)
    await index_messages(engine)
    assert sorted(encoder.embedded) == ["the car", "the cat", "the dog", "the kitten"]
    hits = await search_messages(engine, "cat")
    assert hits.complete
    assert {hit.entry.message.text for hit in hits.messages[:2]} == {"the cat", "the kitten"}


async def test_vectors_have_all_dimensions(engine: Engine, encoder: CountingEncoder):
    from quire.search.segment_codec import decode_segment

    await append(engine, "the cat")
    await index_messages(engine)
    refs = await engine.store.message_index.list_segments("pets", branch=0)
    [data] = await engine.store.message_index.read_segments("pets", refs)
    columns = decode_segment(*data).columns
    assert columns.dimensions == encoder.dimensions == 160
    assert np.asarray(columns.packed_vectors).shape == (1, 80)


async def test_no_search_embeds_a_query_without_words(engine: Engine, encoder: CountingEncoder):
    await append(engine, "the cat")
    await search_messages(engine, " \n")
    await search_memories(engine, " \n", limit=5)
    assert encoder.embedded == []
