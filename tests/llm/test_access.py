"""Asking models: a real one for what is real about HTTP, a fake server for what providers do besides."""

import asyncio
import base64
import json
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import messages as foreign
from pydantic_ai.usage import RequestUsage

from loopback import NetworkBlocked
from quire.errors import (
    MissingExtra,
    ModelInvalid,
    ModelOverflow,
    ModelRefused,
    ModelThrottled,
    ModelUnavailable,
)
from quire.llm import Chunk, Model, Prompt, Reply, TextDelta, ThinkingDelta, ToolCallDelta, model_named
from quire.llm.convert import from_foreign, reply_of, to_foreign
from quire.model import (
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultPart,
)
from quire.testing.llama import Address
from quire.testing.strategies import texts
from upstream import DONE, Asked, completion, data, event, upstream

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n not quite a picture").decode()
WEATHER = ToolDefinition(
    name="weather",
    description="The weather in a town",
    parameters={"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
)


def asking(text: str, **more: Any) -> Prompt:
    return Prompt(**{"system": None, "messages": (Message.user(text),), "temperature": 0.0, "timeout": 120.0, **more})


async def collected(model: Model, prompt: Prompt) -> list[Chunk]:
    return [chunk async for chunk in model.stream(prompt)]


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))


class TestTheRealModel:
    @pytest.fixture(params=["openai", "anthropic"])
    def model(self, request: pytest.FixtureRequest, local_model: Address) -> Model:
        """The same server, asked in both of the ways that it understands."""
        name = local_model.name if request.param == "openai" else f"anthropic:{local_model.name}"
        return model_named(name, base_url=local_model.url)

    async def test_a_complete_reply(self, model: Model, local_model: Address):
        prompt = asking("Say hello.", system="You are brief.", max_tokens=12)
        reply = await model.complete(prompt)
        assert reply.message.role == "assistant"
        assert reply.message.text
        assert reply.finish in ("stop", "length", "end_turn", "max_tokens")
        assert reply.usage is not None
        assert reply.usage.model == local_model.name
        assert 10 < reply.usage.input_tokens < 60
        assert 0 < reply.usage.output_tokens <= 12

    async def test_a_stream_makes_up_the_reply_that_ends_it(self, model: Model):
        chunks = await collected(model, asking("Count to five.", max_tokens=16))
        assert len(chunks) > 4
        assert [type(chunk) for chunk in chunks].index(Reply) == len(chunks) - 1
        reply = chunks[-1]
        assert isinstance(reply, Reply)
        assert reply.message.text == text_of(chunks)
        assert reply.usage is not None
        assert 0 < reply.usage.output_tokens <= 16

    async def test_a_reply_that_was_cut_says_so(self, model: Model):
        reply = await model.complete(asking("Tell a long story about a lighthouse.", max_tokens=5))
        assert reply.finish in ("length", "max_tokens")

    async def test_a_repeated_prefix_comes_from_the_cache(self, model: Model):
        # A text of its own for each way of asking, or the second would find the first one's in the cache.
        told = f"Remember this about {model.name}. " + "The lighthouse has seven lamps. " * 8
        first = await model.complete(asking(told, max_tokens=4))
        history = (Message.user(told), first.message, Message.user("How many lamps?"))
        second = await model.complete(asking("", messages=history, max_tokens=4))
        assert first.usage is not None
        assert second.usage is not None
        assert second.usage.input_tokens > first.usage.input_tokens
        # Most of the first prompt, and the cached part is counted within the whole.
        assert 0.8 * first.usage.input_tokens < second.usage.cache_read_tokens < second.usage.input_tokens

    async def test_the_server_says_overflow_and_how_far(self, model: Model, local_model: Address):
        with pytest.raises(ModelOverflow) as caught:
            await model.complete(asking("word " * 2 * local_model.context, max_tokens=4))
        assert caught.value.status == 400
        assert caught.value.window == local_model.context
        assert caught.value.tokens is not None
        assert caught.value.tokens > local_model.context
        with pytest.raises(ModelOverflow):
            await collected(model, asking("word " * 2 * local_model.context, max_tokens=4))

    async def test_too_slow_a_reply_is_given_up(self, model: Model):
        began = time.monotonic()
        with pytest.raises(ModelUnavailable, match="in time"):
            await model.complete(asking("Tell a very long story.", max_tokens=2000, timeout=0.2))
        assert time.monotonic() - began < 5

    async def test_a_stream_closed_early_lets_the_next_request_in(self, model: Model):
        stream = model.stream(asking("Tell a very long story about a lighthouse.", max_tokens=1000))
        assert isinstance(await anext(stream), TextDelta)
        await stream.aclose()
        reply = await model.complete(asking("Say hello.", max_tokens=4, timeout=30.0))
        assert reply.message.text

    async def test_connections_are_kept_within_async_with(self, local_model: Address):
        async with model_named(local_model.name, base_url=local_model.url) as model:
            replies = await asyncio.gather(*(model.complete(asking(f"Say {n}.", max_tokens=3)) for n in range(3)))
        assert all(reply.message.text for reply in replies)

    def test_a_model_outlives_an_event_loop(self, model: Model):
        for _ in range(2):
            reply = asyncio.run(model.complete(asking("Say hello.", max_tokens=3)))
            assert reply.message.text


async def test_a_refused_connection():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    model = model_named("gone", base_url=f"http://127.0.0.1:{port}/v1")
    with pytest.raises(ModelUnavailable, match=r"refused|connection attempts failed"):
        await model.complete(asking("hello"))
    with pytest.raises(ModelUnavailable):
        await collected(model, asking("hello"))


class TestAScriptedUpstream:
    async def test_a_tool_is_called_and_its_result_sent_back_to_the_byte(self):
        arguments = '{ "town" : "Ærøskøbing",  "n": 1.0 }'
        call = {"id": "call_7", "type": "function", "function": {"name": "weather", "arguments": arguments}}

        async def calls(asked: Asked) -> None:
            await asked.answer(completion({"content": None, "tool_calls": [call]}, "tool_calls"))

        async def answers(asked: Asked) -> None:
            await asked.answer(completion({"content": "Rain."}))

        async with upstream(calls, answers) as server:
            model = model_named("fake", base_url=server.url, api_key="secret")
            asked = Message.user("Weather?")
            prompt = asking("", system="Be brief.", messages=(asked,), tools=(WEATHER,), max_tokens=50)
            reply = await model.complete(prompt)
            assert reply.message.tool_calls == (ToolCallPart(id="call_7", name="weather", arguments=arguments),)
            assert reply.finish == "tool_calls"
            result = Message.tool("call_7", 'Rain, "heavy"\n')
            last = await model.complete(asking("", messages=(asked, reply.message, result), tools=(WEATHER,)))
        assert last.message == Message.assistant("Rain.")
        first, second = server.bodies
        assert server.asked[0].headers["authorization"] == "Bearer secret"
        assert first["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
        ]
        assert first["tools"][0]["function"]["name"] == "weather"
        assert first["tools"][0]["function"]["parameters"] == WEATHER.parameters
        assert first["temperature"] == 0.0
        assert first.get("max_completion_tokens", first.get("max_tokens")) == 50
        assert second["messages"][1]["tool_calls"] == [call]
        assert second["messages"][2] == {"role": "tool", "tool_call_id": "call_7", "content": 'Rain, "heavy"\n'}

    async def test_calls_and_thinking_in_a_stream(self):
        async def streams(asked: Asked) -> None:
            await asked.begin_events()
            await asked.events(event({"role": "assistant", "reasoning_content": "Let me "}))
            await asked.events(event({"reasoning_content": "see."}))
            for index, (id_, town) in enumerate([("a", "Rome"), ("b", "Oslo")]):
                start = {"index": index, "id": id_, "type": "function", "function": {"name": "weather"}}
                await asked.events(event({"tool_calls": [start]}))
                for piece in ('{"town":', f'"{town}"}}'):
                    await asked.events(event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
            await asked.events(event({}, "tool_calls"))
            await asked.events(DONE)
            await asked.end_events()

        async with upstream(streams) as server:
            chunks = await collected(model_named("fake", base_url=server.url), asking("Weather?", tools=(WEATHER,)))
        assert "".join(chunk.text for chunk in chunks if isinstance(chunk, ThinkingDelta)) == "Let me see."
        reply = chunks[-1]
        assert isinstance(reply, Reply)
        called = {call.id: call.arguments for call in reply.message.tool_calls}
        assert called == {"a": '{"town":"Rome"}', "b": '{"town":"Oslo"}'}
        pieces: dict[int, str] = {}
        for chunk in chunks:
            if isinstance(chunk, ToolCallDelta):
                pieces[chunk.index] = pieces.get(chunk.index, "") + chunk.arguments
        assert sorted(pieces.values()) == sorted(called.values())
        # The server gave no usage.
        assert reply.usage is None

    async def test_reasoning_goes_back_where_it_came_from(self):
        async def thinks(asked: Asked) -> None:
            await asked.answer(completion({"content": "Yes.", "reasoning_content": "Hm."}))

        async with upstream(thinks, thinks) as server:
            model = model_named("fake", base_url=server.url)
            reply = await model.complete(asking("Sure?"))
            assert [part.text for part in reply.message.parts if isinstance(part, ThinkingPart)] == ["Hm."]
            elsewhere = Message(role="assistant", parts=(ThinkingPart(text="Private."), TextPart(text="No.")))
            history = (Message.user("Sure?"), reply.message, Message.user("?"), elsewhere, Message.user("Why?"))
            await model.complete(asking("", messages=history))
        sent = server.bodies[1]["messages"]
        assert sent[1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
        assert "Private" not in json.dumps(sent)

    async def test_throttling_says_how_long(self):
        async def throttles(asked: Asked) -> None:
            await asked.answer({"error": {"message": "Slow down", "type": "requests"}}, 429, retry_after="7")

        async with upstream(throttles, throttles) as server:
            model = model_named("fake", base_url=server.url)
            for call in (model.complete(asking("hello")), collected(model, asking("hello"))):
                with pytest.raises(ModelThrottled) as caught:
                    await call
                assert caught.value.retry_after == 7
                assert caught.value.__cause__ is not None
        assert len(server.asked) == 2, "each call is made once"

    @pytest.mark.parametrize(
        ("status", "body", "expected"),
        [
            (500, {"error": {"message": "oops"}}, ModelUnavailable),
            (401, {"error": {"message": "no such key", "code": "invalid_api_key"}}, ModelInvalid),
            (400, {"error": {"message": "max_tokens is too large: 9", "param": "max_tokens"}}, ModelInvalid),
            (200, {"unexpected": True}, ModelUnavailable),
            (200, completion({"content": None, "refusal": "I cannot help with that."}), ModelRefused),
            (200, completion({"content": "I am"}, "content_filter"), ModelRefused),
        ],
    )
    async def test_errors_are_sorted(self, status: int, body: dict[str, Any], expected: type[Exception]):
        async def fails(asked: Asked) -> None:
            await asked.answer(body, status)

        async with upstream(fails) as server:
            with pytest.raises(expected):
                await model_named("fake", base_url=server.url).complete(asking("hello"))

    async def test_an_error_inside_an_open_stream(self):
        async def fails(asked: Asked) -> None:
            await asked.begin_events()
            await asked.events(event({"content": "One "}))
            await asked.events(data({"error": {"message": "Overloaded", "type": "overloaded_error"}}))
            await asked.end_events()

        async with upstream(fails) as server:
            stream = model_named("fake", base_url=server.url).stream(asking("Count."))
            assert await anext(stream) == TextDelta("One ")
            with pytest.raises(ModelUnavailable, match="Overloaded"):
                await anext(stream)

    async def test_half_an_answer_is_no_answer(self):
        async def breaks_off(asked: Asked) -> None:
            await asked.send(b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{"id": "chat')
            asked.reset()

        async def resets(asked: Asked) -> None:
            asked.reset()

        async with upstream(breaks_off, resets) as server:
            model = model_named("fake", base_url=server.url)
            for _ in range(2):
                with pytest.raises(ModelUnavailable):
                    await model.complete(asking("hello"))

    async def test_half_a_stream_is_no_answer(self):
        async def breaks_off(asked: Asked) -> None:
            await asked.begin_events()
            await asked.events(event({"content": "One "}))
            await asyncio.sleep(0.05)
            asked.reset()

        async with upstream(breaks_off) as server:
            stream = model_named("fake", base_url=server.url).stream(asking("Count."))
            assert await anext(stream) == TextDelta("One ")
            with pytest.raises(ModelUnavailable):
                await anext(stream)

    async def test_a_stream_that_ends_without_a_reason_has_none(self):
        async def ends(asked: Asked) -> None:
            await asked.begin_events()
            await asked.events(event({"content": "One"}))
            await asked.end_events()

        async with upstream(ends) as server:
            *_, reply = await collected(model_named("fake", base_url=server.url), asking("Count."))
        assert isinstance(reply, Reply)
        assert (reply.message.text, reply.finish) == ("One", None)

    async def test_a_server_that_hangs_is_given_up(self):
        async def hangs(asked: Asked) -> None:
            await asyncio.sleep(60)

        async def stalls(asked: Asked) -> None:
            await asked.begin_events()
            await asked.events(event({"content": "One "}))
            await asyncio.sleep(60)

        async with upstream(hangs, hangs, stalls) as server:
            model = model_named("fake", base_url=server.url)
            with pytest.raises(ModelUnavailable):
                await model.complete(asking("hello", timeout=0.1))
            with pytest.raises(ModelUnavailable):
                await anext(model.stream(asking("hello", timeout=0.1)))
            stream = model.stream(asking("hello", timeout=0.1))
            assert await anext(stream) == TextDelta("One ")
            with pytest.raises(ModelUnavailable):
                await anext(stream)

    @pytest.mark.parametrize("entered", [False, True])
    async def test_closing_the_stream_ends_the_request(self, entered: bool):
        closed = asyncio.Event()

        async def goes_on(asked: Asked) -> None:
            await asked.begin_events()
            await asked.events(event({"content": "One "}))
            if await asked.until_closed():
                closed.set()

        async with upstream(goes_on) as server, AsyncExitStack() as stack:
            model = model_named("fake", base_url=server.url)
            if entered:
                await stack.enter_async_context(model)
            stream = model.stream(asking("Count."))
            await anext(stream)
            await stream.aclose()
            async with asyncio.timeout(5):
                await closed.wait()

    async def test_pictures_are_sent(self):
        async def sees(asked: Asked) -> None:
            await asked.answer(completion({"content": "A pixel."}))

        digest = "a" * 64
        parts = (
            TextPart(text="Look:"),
            ImagePart(url=f"data:image/png;base64,{PIXEL}", detail="low"),
            ImagePart(blob=digest, media_type="image/jpeg"),
            ImagePart(url="http://127.0.0.1/picture.webp"),
            ImagePart(blob="b" * 64),
        )
        async with upstream(sees) as server:
            prompt = asking("", messages=(Message(role="user", parts=parts),), load={digest: PIXEL}.get)
            await model_named("fake", base_url=server.url).complete(prompt)
        (sent,) = server.bodies[0]["messages"]
        assert [piece.get("image_url", piece) for piece in sent["content"]] == [
            {"type": "text", "text": "Look:"},
            {"url": f"data:image/png;base64,{PIXEL}", "detail": "low"},
            {"url": f"data:image/jpeg;base64,{PIXEL}"},
            {"url": "http://127.0.0.1/picture.webp"},
            {"type": "text", "text": f"[image: blob {'b' * 12}]"},
        ]

    async def test_signed_thinking_goes_to_anthropic_as_it_was(self):
        async def answers(asked: Asked) -> None:
            usage = {"input_tokens": 5, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 20}
            await asked.answer(
                {
                    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x",
                    "stop_reason": "end_turn", "stop_sequence": None, "usage": {**usage, "output_tokens": 2},
                    "content": [
                        {"type": "thinking", "thinking": "So.", "signature": "c2ln+/=="},
                        {"type": "redacted_thinking", "data": "b3BhcXVl"},
                        {"type": "text", "text": "Done."},
                    ],
                },
            )  # fmt: skip

        stored = Message(
            role="assistant",
            parts=(
                ThinkingPart(text="Hm.", signature="c2lnbmVk"),
                ThinkingPart(redacted="aGlkZGVu"),
                ToolCallPart(id="toolu_1", name="weather", arguments='{"town": "Rome"}'),
            ),
        )
        failed = Message.tool("toolu_1", "no such town", is_error=True)
        async with upstream(answers, answers) as server:
            model = model_named("anthropic:claude-x", base_url=server.url, api_key="secret")
            prompt = asking("", messages=(Message.user("?"), stored, failed), tools=(WEATHER,), max_tokens=9)
            reply = await model.complete(prompt)
            history = (*prompt.messages, reply.message, Message.user("And?"))
            await model.complete(asking("", messages=history, tools=(WEATHER,), max_tokens=9))
        assert reply.usage is not None
        assert (reply.usage.input_tokens, reply.usage.cache_read_tokens, reply.usage.cache_write_tokens) == (95, 70, 20)
        assert reply.finish == "end_turn"
        sent = server.bodies[1]["messages"]
        assert sent[1]["content"] == [
            {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"},
            {"type": "redacted_thinking", "data": "aGlkZGVu"},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"town": "Rome"}},
        ]
        result = sent[2]["content"][0]
        assert (result["type"], result["tool_use_id"], result["is_error"]) == ("tool_result", "toolu_1", True)
        assert sent[3]["content"][:2] == [
            {"type": "thinking", "thinking": "So.", "signature": "c2ln+/=="},
            {"type": "redacted_thinking", "data": "b3BhcXVl"},
        ]


class TestNames:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("gpt-4o", "OpenAIResponsesModel"),
            ("o3-mini", "OpenAIResponsesModel"),
            ("openai:gpt-4o", "OpenAIResponsesModel"),
            ("openai-chat:gpt-4o", "OpenAIChatModel"),
            ("claude-sonnet-4-5", "AnthropicModel"),
            ("anthropic:claude-sonnet-4-5", "AnthropicModel"),
        ],
    )
    def test_known_names(self, name: str, kind: str):
        model = model_named(name, api_key="secret")
        assert model.name == name
        assert type(vars(model)["_model"]).__name__ == kind

    def test_an_unknown_name_and_a_missing_key_are_told(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        with pytest.raises(ModelInvalid, match="Unknown model"):
            model_named("nobody-knows-this")
        with pytest.raises(ModelInvalid, match="OPENAI_API_KEY"):
            model_named("gpt-4o")
        with pytest.raises(ModelInvalid, match="not installed"):
            model_named("groq:llama-3.3-70b-versatile", api_key="secret")

    def test_a_missing_package_names_the_extra(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delitem(sys.modules, "quire.llm.direct", raising=False)
        monkeypatch.setitem(sys.modules, "pydantic_ai", None)
        with pytest.raises(MissingExtra, match=r"quire\[llm\]"):
            model_named("gpt-4o")

    def test_nothing_is_imported_before_a_model_is_asked_for(self):
        program = (
            "import sys, quire, quire.llm, quire.testing.scripted\n"
            "quire.Message, quire.Engine\n"
            "assert not {'pydantic_ai', 'openai', 'anthropic', 'httpx2', 'httpx'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", program], check=True)


def _response_parts() -> st.SearchStrategy[Part]:
    ids = st.text("abc123_-", min_size=1, max_size=8)
    said = texts().filter(bool)
    return (
        st.builds(TextPart, text=said)
        | st.builds(ThinkingPart, text=texts(), signature=said)
        | st.builds(ThinkingPart, redacted=said)
        | st.builds(ToolCallPart, id=ids, name=ids, arguments=texts())
    )


def _user_parts() -> st.SearchStrategy[Part]:
    data = st.binary(min_size=1, max_size=40).map(lambda raw: base64.b64encode(raw).decode())
    details = st.sampled_from([None, "low", "high", "auto"])
    inline = st.builds(
        lambda data, detail: ImagePart(url=f"data:image/png;base64,{data}", media_type="image/png", detail=detail),
        data,
        details,
    )
    linked = st.builds(ImagePart, url=st.just("https://example.org/a.png"), detail=details)
    files = data.map(lambda data: FilePart(url=f"data:application/pdf;base64,{data}", media_type="application/pdf"))
    return st.builds(TextPart, text=texts()) | inline | linked | files


def _histories() -> st.SearchStrategy[list[Message]]:
    assistant = st.lists(_response_parts(), max_size=4).map(lambda parts: Message(role="assistant", parts=tuple(parts)))
    user = st.lists(_user_parts(), min_size=1, max_size=3).map(lambda parts: Message(role="user", parts=tuple(parts)))
    tool = st.builds(Message.tool, st.text("abc", min_size=1), texts(), is_error=st.booleans())
    return st.lists(assistant | user | tool | st.builds(Message.system, texts()), max_size=5)


def _bare(message: Message) -> Message:
    """Without the notes on who signed what, which a message that came from elsewhere does not carry."""
    return message.model_copy(
        update={"parts": tuple(part.model_copy(update={"provider": None}) for part in message.parts)}
    )


@given(_histories())
def test_messages_go_to_pydantic_ai_and_come_back(history: list[Message]):
    back = from_foreign(to_foreign(history))
    assert [_bare(message) for message in back] == history
    # What came back carries its notes, and goes there and back unchanged.
    assert from_foreign(to_foreign(back)) == back


@given(_histories())
def test_what_is_sent_can_be_stored_by_pydantic_ai(history: list[Message]):
    adapter = foreign.ModelMessagesTypeAdapter
    sent = to_foreign(history)
    assert [_bare(m) for m in from_foreign(adapter.validate_json(adapter.dump_json(sent)))] == history


def test_a_responses_parts_keep_what_pydantic_ai_noted():
    response = foreign.ModelResponse(
        parts=[
            foreign.ThinkingPart("Hm", id="rs_1", signature="enc", provider_name="openai"),
            foreign.TextPart("Hi", id="msg_1", provider_name="openai", provider_details={"phase": "final"}),
            foreign.ToolCallPart("f", {"a": 1}, "call_1", id="fc_1", provider_name="openai"),
            foreign.FilePart(foreign.BinaryContent(data=b"x", media_type="image/png")),
        ],
        usage=RequestUsage(input_tokens=10, cache_read_tokens=4, cache_write_tokens=2, output_tokens=3),
        model_name="gpt",
        provider_details={"finish_reason": "stop"},
    )
    reply = reply_of(response)
    assert reply.finish == "stop"
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.cache_read_tokens, reply.usage.cache_write_tokens) == (10, 4, 2)
    assert Message.parse(reply.message.canonical()) == reply.message
    (back,) = to_foreign([reply.message])
    thinking, text, call = back.parts
    assert thinking == response.parts[0]
    assert text == response.parts[1]
    assert isinstance(call, foreign.ToolCallPart)
    assert (call.tool_call_id, call.id, call.args_as_json_str()) == ("call_1", "fc_1", '{"a":1}')
    picture = reply.message.parts[3]
    assert isinstance(picture, ImagePart)


def test_a_results_pictures_follow_its_text():
    content = (
        TextPart(text="a"),
        ImagePart(url=f"data:image/png;base64,{PIXEL}"),
        TextPart(text="b"),
        ImagePart(url="data:image/png;base64,@@@"),
    )
    result = Message(role="tool", parts=(ToolResultPart(call_id="c", content=content),))
    (request,) = to_foreign([result])
    (part,) = request.parts
    assert isinstance(part, foreign.ToolReturnPart)
    text, picture = part.content_items(mode="raw")
    assert text == "ab[image: data:image/png;base64]"
    assert isinstance(picture, foreign.BinaryContent)


async def test_no_request_can_leave_a_test():
    """The guard in loopback.py, seen through the whole of model access."""
    for name in ("gpt-4o", "claude-x"):
        with pytest.raises(NetworkBlocked, match="look up api"):
            await model_named(name, api_key="secret").complete(asking("hello"))
    blocked = pytest.RaisesExc(NetworkBlocked, match=r"connect to \('192\.0\.2\.1'")
    with pytest.RaisesGroup(blocked, flatten_subgroups=True):
        await model_named("x", base_url="http://192.0.2.1/v1").complete(asking("hello"))
    with pytest.raises(NetworkBlocked), socket.socket() as bare:
        bare.connect(("192.0.2.1", 80))
    with pytest.raises(NetworkBlocked):
        socket.create_connection(("example.org", 80))
