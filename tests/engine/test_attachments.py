"""Images and files in a question: sent with it in both wire formats, counted, and replayed to the byte."""

import base64
import struct
from typing import Any

import pytest

from fake_upstream import reply_in_wire_format, run_fake_upstream
from quire.agent.turn import run_turn
from quire.engine import Engine, EngineConfig
from quire.engine.runtime import MAX_CACHED_BLOB_BYTES, MAX_CACHED_BLOBS
from quire.llm import get_model
from quire.model import FilePart, ImagePart, Message, TextPart
from quire.model.events import TurnEnded
from quire.settings import Settings
from quire.store import SqlStore
from quire.wire.media import count_openai_image

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + b"\x08\x02\x00\x00\x00"
PDF = b"%PDF-1.4 /Type /Pages /Type /Page /Type /Page "
MODELS = ("gpt-4o", "claude-sonnet-4-5")


def make_engine(store: SqlStore, model: str) -> Engine:
    """An engine with an empty cache, as in a new process."""
    return Engine(store, EngineConfig.create(Settings.model_validate({"model": model})))


def make_question(*parts: ImagePart | FilePart) -> Message:
    return Message(role="user", parts=(TextPart(text="What is this?"), *parts))


async def store_image(store: SqlStore) -> ImagePart:
    return ImagePart(blob=await store.put_blob(PNG, media_type="image/png"), media_type="image/png")


def list_image_data(payload: dict[str, Any]) -> list[str]:
    """Base64 data of the images of a payload, in either wire format."""
    pieces = [
        piece for message in payload["messages"] if isinstance(message["content"], list) for piece in message["content"]
    ]
    urls = [piece["image_url"]["url"].partition(",")[2] for piece in pieces if piece["type"] == "image_url"]
    return urls + [piece["source"]["data"] for piece in pieces if piece["type"] == "image"]


@pytest.mark.parametrize("model", MODELS)
async def test_an_image_of_the_question_is_sent_with_it_and_replays(store: SqlStore, model: str):
    conversation = await make_engine(store, model).conversation("c")
    request = await conversation.prepare(make_question(await store_image(store)))
    expected = [base64.b64encode(PNG).decode()]
    assert list_image_data(request.to_chat()) == expected
    assert list_image_data(request.to_messages()) == expected
    reply = await conversation.record("A mill.", request=request)
    later = await make_engine(store, model).conversation("c")
    assert (await later.replay(reply.seq)).mismatch is None
    assert list_image_data((await later.prepare("And now?")).to_chat()) == expected


@pytest.mark.parametrize("model", MODELS)
async def test_an_image_that_is_recorded_before_the_request_is_sent_replays(store: SqlStore, model: str):
    conversation = await make_engine(store, model).conversation("c")
    _, request = await conversation.record_question(await conversation.prepare(make_question(await store_image(store))))
    reply = await conversation.record("A mill.", request=request)
    assert (await (await make_engine(store, model).conversation("c")).replay(reply.seq)).mismatch is None


@pytest.mark.parametrize("model", ["openai:gpt-4o", "anthropic:claude-x"])
async def test_a_turn_of_the_library_sends_the_image_on_the_wire(store: SqlStore, model: str):
    question = make_question(await store_image(store))
    async with run_fake_upstream(reply_in_wire_format("A mill.")) as upstream:
        conversation = await make_engine(store, model).conversation("c")
        client = get_model(model, base_url=upstream.url, api_key="k")
        events = [event async for event in run_turn(conversation, question, model=client)]
    assert isinstance(events[-1], TurnEnded)
    assert list_image_data(upstream.bodies[0]) == [base64.b64encode(PNG).decode()]
    later = await make_engine(store, model).conversation("c")
    assert (await later.replay(2)).mismatch is None


async def test_an_image_of_the_question_costs_by_its_size(store: SqlStore):
    conversation = await make_engine(store, "gpt-4o").conversation("c")
    plain = (await conversation.prepare("What is this?")).tokens
    question = make_question(await store_image(store))
    with_image = (await conversation.prepare(question)).tokens
    assert with_image - plain == count_openai_image((640, 480), None, model="gpt-4o")
    assert (await conversation.preview(question)).total_tokens == with_image


@pytest.mark.parametrize("model", MODELS)
async def test_a_file_is_counted_the_same_before_and_after_it_is_stored(store: SqlStore, model: str):
    part = FilePart(blob=await store.put_blob(PDF, media_type="application/pdf"), media_type="application/pdf")
    engine = make_engine(store, model)
    sent = await (await engine.conversation("sent")).prepare(make_question(part))
    await (await make_engine(store, model).conversation("appended")).append(make_question(part))
    appended = await (await make_engine(store, model).conversation("appended")).prepare()
    assert appended.tokens == sent.tokens


@pytest.mark.parametrize(("count", "size"), [(MAX_CACHED_BLOBS + 1, 5), (2, MAX_CACHED_BLOB_BYTES // 2)])
async def test_a_document_of_the_question_survives_a_full_cache(store: SqlStore, count: int, size: int):
    engine = make_engine(store, "gpt-4o")
    for number in range(count):
        engine.runtime.blobs.put(f"{number:064x}", b"x" * size)
    engine.runtime.blobs.put("f" * 64, b"not stored yet")
    await engine.runtime.blobs.load(engine.store, [], ["f" * 64])
    assert engine.runtime.blobs.get("f" * 64) == base64.b64encode(b"not stored yet").decode()
    assert engine.runtime.blobs.get("0" * 64) is None
