"""What an application may pass as a message or a reply: text, `Message`, or a dict as in a provider's API."""

from pathlib import Path
from typing import Any

import pytest

import quire
import quire.sync
from quire import Message, ToolCallPart
from quire.engine import Conversation, Engine, EngineConfig
from quire.engine.message_input import parse_messages
from quire.errors import InvalidRequest, StoreUnavailable
from quire.model import ImagePart, ThinkingPart, ToolResultPart
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

PIXEL = "data:image/png;base64,aGVsbG8="
NO_MESSAGES: list[Any] = [
    5,
    b"Which port?",
    object(),
    {},
    {"content": "Which port?"},
    {"role": "user"},
    {"role": "user", "content": None},
    {"role": "user", "content": 5},
    {"role": "user", "content": []},
    {"role": "user", "content": ["Which port?"]},
    {"role": "user", "content": [{"text": "Which port?"}]},
    {"role": "user", "content": [{"type": "text"}]},
    {"role": "user", "content": [{"type": "txt", "text": "Which port?"}]},
    {"role": "captain", "content": "Which port?"},
    {"role": "assistant"},
    {"role": "tool", "content": "8080"},
    {"type": "text", "text": "Which port?"},
    {"type": "function_call_output", "output": "8080"},
    {"type": "function_call", "call_id": "1"},
]
"""Values that are no message, and would lose something if they were taken for one."""


@pytest.fixture
async def conversation(store: SqlStore) -> Conversation:
    engine = Engine(store, EngineConfig.create(Settings(model="gpt-4o")))
    return await engine.conversation("c")


def list_texts(messages: list[Message]) -> list[tuple[str, str]]:
    return [(each.role, each.text) for each in messages]


@pytest.mark.parametrize(
    "question",
    [
        "Which port?",
        Message.user("Which port?"),
        {"role": "user", "content": "Which port?"},
        {"role": "user", "content": [{"type": "text", "text": "Which port?"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Which port?"}]},
        {"type": "message", "role": "user", "content": "Which port?"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Which port?"}]},
    ],
)
async def test_a_question_may_be_a_dict_of_any_provider(conversation: Conversation, question: Any):
    request = await conversation.prepare(question)
    assert request.to_chat()["messages"][-1] == {"role": "user", "content": "Which port?"}
    assert await conversation.messages() == []
    await conversation.record("8080", request=request)
    [entry] = await conversation.append(question)
    preview = await conversation.preview(question)
    assert (entry.message, preview.total_tokens) == (Message.user("Which port?"), preview.total_tokens)
    result = await conversation.send(question, model=ScriptedModel("8080"))
    assert result.text == "8080"
    texts = [each.message.text for each in await conversation.messages()]
    assert texts == ["Which port?", "8080", "Which port?", "Which port?", "8080"]


def test_calls_results_images_and_thinking_of_each_format_become_the_same_parts():
    call = ToolCallPart(id="1", name="look", arguments='{"at":"port"}')
    function = {"name": "look", "arguments": '{"at":"port"}'}
    chat_call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    messages_call = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Look first.", "signature": "s"},
            {"type": "tool_use", "id": "1", "name": "look", "input": {"at": "port"}},
        ],
    }
    item_call = {"type": "function_call", "call_id": "1", **function}
    assert parse_messages(chat_call)[0].parts == parse_messages(item_call)[0].parts == (call,)
    assert parse_messages(messages_call)[0].parts == (ThinkingPart(text="Look first.", signature="s"), call)

    result = {"type": "tool_result", "tool_use_id": "1", "content": "8080"}
    block = {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]}
    assert list_texts(parse_messages(block)) == [("tool", ""), ("user", "And now?")]
    for raw in (
        {"role": "tool", "tool_call_id": "1", "content": "8080"},
        {"type": "function_call_output", "call_id": "1", "output": "8080"},
        {"role": "user", "content": [result]},
    ):
        [message] = parse_messages(raw)
        [part] = message.parts
        assert isinstance(part, ToolResultPart)
        assert (message.role, part.call_id, part.text) == ("tool", "1", "8080")

    source = {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}
    for piece in (
        {"type": "image_url", "image_url": {"url": PIXEL}},
        {"type": "image", "source": source},
        {"type": "input_image", "image_url": PIXEL},
    ):
        [message] = parse_messages({"role": "user", "content": [piece]})
        [image] = message.parts
        assert isinstance(image, ImagePart)
        assert image.url == PIXEL


async def test_a_list_of_dicts_is_stored_in_its_order(conversation: Conversation):
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    await conversation.prepare(
        [
            {"role": "user", "content": "Which port?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "8080"},
        ]
    )
    assert [each.role for each in await conversation.messages()] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("value", NO_MESSAGES)
async def test_what_is_no_message_is_refused_before_anything_is_stored(conversation: Conversation, value: Any):
    attempts = [
        lambda: conversation.prepare(value),
        lambda: conversation.prepare(["Which host?", value]),
        lambda: conversation.append("Which host?", value),
        lambda: conversation.preview(value),
        lambda: conversation.send(value, model=ScriptedModel("8080")),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidRequest, match="`role`"):
            await attempt()
    assert await conversation.messages() == []


async def test_a_turn_takes_one_message(conversation: Conversation):
    result = {"type": "tool_result", "tool_use_id": "1", "content": "8080"}
    several = {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]}
    for value in (["Which port?"], several):
        with pytest.raises(InvalidRequest, match="append"):
            await conversation.send(value, model=ScriptedModel("8080"))  # pyright: ignore[reportArgumentType]
    assert await conversation.messages() == []


@pytest.mark.parametrize("reply", [5, None, [], object(), {}, {"role": "user", "content": "8080"}, Message.user("x")])
async def test_what_is_no_reply_is_refused(conversation: Conversation, reply: object):
    request = await conversation.prepare("Which port?")
    with pytest.raises(quire.QuireError):
        await conversation.record(reply, request=request)
    with pytest.raises(InvalidRequest, match="text"):
        await conversation.record(5, request=request)
    assert await conversation.messages() == []


@pytest.mark.parametrize(
    "reply",
    [
        {"role": "assistant", "content": "8080"},
        {"role": "assistant", "content": [{"type": "text", "text": "8080"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "8080"}], "type": "message"},
    ],
)
async def test_a_reply_may_be_the_message_alone(conversation: Conversation, reply: Any):
    entry = await conversation.record(reply, request=await conversation.prepare("Which port?"))
    assert (entry.role, entry.message.text) == ("assistant", "8080")


async def test_a_request_that_was_recorded_does_not_repeat_its_question(conversation: Conversation):
    request = await conversation.prepare("Which port?")
    reply = await conversation.record("8080", request=request)
    assert await conversation.record("8080", request=request) == reply
    with pytest.raises(InvalidRequest, match="#1 on"):
        await conversation.record("7443", request=request)
    request = await conversation.prepare("Which host?")
    entries, _ = await conversation.record_question(request)
    await conversation.append("And which path?")
    with pytest.raises(InvalidRequest, match="record_question"):
        await conversation.record("mill", request=request)
    assert (await conversation.record_question(request))[0] == entries
    texts = [each.message.text for each in await conversation.messages()]
    assert texts == ["Which port?", "8080", "Which host?", "And which path?"]


async def test_a_request_whose_record_failed_can_be_recorded(conversation: Conversation):
    request = await conversation.prepare("Which port?")
    with pytest.raises(InvalidRequest):
        await conversation.record(5, request=request)
    await conversation.record("8080", request=request)
    assert len(await conversation.messages()) == 2


async def test_a_closed_store_says_so(database_url: str):
    async with quire.open(database_url, model="gpt-4o") as engine:
        conversation = await engine.conversation("c")
        request = await conversation.prepare("Which port?")
    for attempt in (
        lambda: engine.conversation("c"),
        lambda: engine.search("port"),
        lambda: conversation.messages(),
        lambda: conversation.prepare("Which port?"),
        lambda: conversation.append("Which port?"),
        lambda: conversation.record("8080", request=request),
        lambda: conversation.send("Which port?", model=ScriptedModel("8080")),
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            await attempt()


def test_the_blocking_api_takes_the_same_messages_and_says_when_it_is_closed(tmp_path: Path):
    with quire.sync.open(f"sqlite:///{tmp_path}/quire.db", model="gpt-4o") as engine:
        conversation = engine.conversation("c")
        conversation.prepare({"role": "user", "content": "Which port?"})
        conversation.record({"role": "assistant", "content": "8080"})
        with pytest.raises(InvalidRequest):
            conversation.prepare(5)  # pyright: ignore[reportArgumentType]
        assert [each.message.text for each in conversation.messages()] == ["Which port?", "8080"]
    for attempt in (conversation.messages, lambda: engine.conversation("c"), lambda: conversation.append("x")):
        with pytest.raises(StoreUnavailable, match="closed"):
            attempt()
