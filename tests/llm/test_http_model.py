"""Model calls: to a real local model, and to a fake upstream for errors and provider specifics."""

import asyncio
import base64
import json
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_upstream import (
    SSE_DONE,
    UpstreamRequest,
    make_chunk_event,
    make_completion,
    make_sse_event,
    run_fake_upstream,
)
from infra.llama import LocalModelAddress
from infra.scripted_provider import (
    ScriptedCall,
    ScriptedError,
    ScriptedProvider,
    ScriptedReply,
    ScriptedUsage,
    run_scripted_provider,
)
from network_guard import NetworkBlocked
from quire.cli.engine_setup import build_model
from quire.engine import EngineConfig, open_engine
from quire.errors import (
    MissingExtra,
    ModelContextOverflow,
    ModelRateLimited,
    ModelRefused,
    ModelRequestRejected,
    ModelUnavailable,
)
from quire.llm import (
    Model,
    ModelChunk,
    Prompt,
    Reply,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    get_model,
    get_upstream_model,
)
from quire.llm.http_model import HTTPModel
from quire.llm.thinking_tags import ThinkingSplitter
from quire.model import (
    ImagePart,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
)
from quire.settings.schema import Settings, Upstream
from quire.wire import WireFormatName

PNG_BASE64 = base64.b64encode(b"\x89PNG\r\n\x1a\n not quite a picture").decode()
WEATHER_TOOL = ToolDefinition(
    name="weather",
    description="The weather in a town",
    parameters={"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
)


def make_prompt(text: str, **more: Any) -> Prompt:
    return Prompt(**{"system": None, "messages": (Message.user(text),), "temperature": 0.0, "timeout": 120.0, **more})


async def collect_chunks(model: Model, prompt: Prompt) -> list[ModelChunk]:
    return [chunk async for chunk in model.stream(prompt)]


def join_text(chunks: list[ModelChunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))


@pytest.mark.real_model
class TestRealModel:
    @pytest.fixture(params=["openai", "anthropic"])
    def model(self, request: pytest.FixtureRequest, local_model: LocalModelAddress) -> Model:
        """The same server through each of its two APIs."""
        name = local_model.name if request.param == "openai" else f"anthropic:{local_model.name}"
        return get_model(name, base_url=local_model.url)

    async def test_a_complete_reply(self, model: Model, local_model: LocalModelAddress):
        prompt = make_prompt("Say hello.", system="You are brief.", max_tokens=12)
        reply = await model.complete(prompt)
        assert reply.message.role == "assistant"
        assert reply.message.text
        assert reply.finish_reason in ("stop", "length", "end_turn", "max_tokens")
        assert reply.usage is not None
        assert reply.usage.model == local_model.name
        assert 10 < reply.usage.input_tokens < 60
        assert 0 < reply.usage.output_tokens <= 12

    @pytest.mark.nightly
    async def test_a_prefix_selects_the_responses_api(self, local_model: LocalModelAddress):
        model = get_model(f"openai-responses:{local_model.name}", base_url=local_model.url)
        prompt = make_prompt("Say hello.", system="You are brief.", max_tokens=12)
        reply, chunks = await model.complete(prompt), await collect_chunks(model, prompt)
        assert reply.message.text
        assert reply.finish_reason == "completed"
        assert isinstance(chunks[-1], Reply)
        assert chunks[-1].message.text == join_text(chunks)

    async def test_a_stream_makes_up_the_reply_that_ends_it(self, model: Model):
        chunks = await collect_chunks(model, make_prompt("Count to five.", max_tokens=16))
        assert len(chunks) > 4
        assert [type(chunk) for chunk in chunks].index(Reply) == len(chunks) - 1
        reply = chunks[-1]
        assert isinstance(reply, Reply)
        assert reply.message.text == join_text(chunks)
        assert reply.usage is not None
        assert 0 < reply.usage.output_tokens <= 16

    @pytest.mark.nightly
    async def test_a_reply_that_was_cut_says_so(self, model: Model):
        reply = await model.complete(make_prompt("Tell a long story about a lighthouse.", max_tokens=5))
        assert reply.finish_reason in ("length", "max_tokens")

    @pytest.mark.nightly
    async def test_a_repeated_prefix_comes_from_the_cache(self, model: Model):
        # A different text for each API, or the second would hit the cache entry of the first.
        question = f"Remember this about {model.name}. " + "The lighthouse has seven lamps. " * 8
        first = await model.complete(make_prompt(question, max_tokens=4))
        history = (Message.user(question), first.message, Message.user("How many lamps?"))
        second = await model.complete(make_prompt("", messages=history, max_tokens=4))
        assert first.usage is not None
        assert second.usage is not None
        assert second.usage.input_tokens > first.usage.input_tokens
        # Most of the first prompt is cached, and `input_tokens` includes the cached tokens.
        assert 0.8 * first.usage.input_tokens < second.usage.cache_read_tokens < second.usage.input_tokens

    async def test_the_server_says_overflow_and_how_far(self, model: Model, local_model: LocalModelAddress):
        with pytest.raises(ModelContextOverflow) as caught:
            await model.complete(make_prompt("word " * 2 * local_model.context, max_tokens=4))
        assert caught.value.status == 400
        assert caught.value.window == local_model.context
        assert caught.value.tokens is not None
        assert caught.value.tokens > local_model.context
        with pytest.raises(ModelContextOverflow):
            await collect_chunks(model, make_prompt("word " * 2 * local_model.context, max_tokens=4))

    @pytest.mark.nightly
    async def test_too_slow_a_reply_is_given_up(self, model: Model):
        started_at = time.monotonic()
        with pytest.raises(ModelUnavailable, match="in time"):
            await model.complete(make_prompt("Tell a very long story.", max_tokens=2000, timeout=0.2))
        assert time.monotonic() - started_at < 5

    @pytest.mark.nightly
    async def test_a_stream_closed_early_lets_the_next_request_in(self, model: Model):
        stream = model.stream(make_prompt("Tell a very long story about a lighthouse.", max_tokens=1000))
        assert isinstance(await anext(stream), TextDelta)
        await stream.aclose()
        reply = await model.complete(make_prompt("Say hello.", max_tokens=4, timeout=30.0))
        assert reply.message.text

    @pytest.mark.nightly
    async def test_connections_are_kept_within_async_with(self, local_model: LocalModelAddress):
        async with get_model(local_model.name, base_url=local_model.url) as model:
            replies = await asyncio.gather(*(model.complete(make_prompt(f"Say {n}.", max_tokens=3)) for n in range(3)))
        assert all(reply.message.text for reply in replies)

    @pytest.mark.nightly
    def test_a_model_outlives_an_event_loop(self, model: Model):
        for _ in range(2):
            reply = asyncio.run(model.complete(make_prompt("Say hello.", max_tokens=3)))
            assert reply.message.text


async def test_a_refused_connection():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    model = get_model("gone", base_url=f"http://127.0.0.1:{port}/v1")
    with pytest.raises(ModelUnavailable, match=r"refused|connection attempts failed"):
        await model.complete(make_prompt("hello"))
    with pytest.raises(ModelUnavailable):
        await collect_chunks(model, make_prompt("hello"))


async def test_a_redirect_gives_no_other_address_the_key_or_the_question():
    async with run_fake_upstream() as elsewhere:

        async def redirect(request: UpstreamRequest) -> None:
            await request.respond({}, 307, Location=f"{elsewhere.url}/chat/completions")

        async with run_fake_upstream(redirect) as server:
            model = get_model("fake", base_url=server.url, api_key="secret")
            with pytest.raises(ModelUnavailable, match="redirects to another address"):
                await model.complete(make_prompt("hello"))
    assert elsewhere.requests == []


class TestFakeUpstream:
    async def test_a_tool_is_called_and_its_result_sent_back_to_the_byte(self):
        arguments = '{ "town" : "Ærøskøbing",  "n": 1.0 }'
        call = {"id": "call_7", "type": "function", "function": {"name": "weather", "arguments": arguments}}

        async def calls(request: UpstreamRequest) -> None:
            await request.respond(make_completion({"content": None, "tool_calls": [call]}, "tool_calls"))

        async def answers(request: UpstreamRequest) -> None:
            await request.respond(make_completion({"content": "Rain."}))

        async with run_fake_upstream(calls, answers) as server:
            model = get_model("fake", base_url=server.url, api_key="secret")
            question = Message.user("Weather?")
            prompt = make_prompt("", system="Be brief.", messages=(question,), tools=(WEATHER_TOOL,), max_tokens=50)
            reply = await model.complete(prompt)
            assert reply.message.tool_calls == (ToolCallPart(id="call_7", name="weather", arguments=arguments),)
            assert reply.finish_reason == "tool_calls"
            result = Message.tool("call_7", 'Rain, "heavy"\n')
            last = await model.complete(
                make_prompt("", messages=(question, reply.message, result), tools=(WEATHER_TOOL,))
            )
        assert last.message == Message.assistant("Rain.")
        first, second = server.bodies
        assert server.requests[0].headers["authorization"] == "Bearer secret"
        assert first["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
        ]
        assert first["tools"][0]["function"]["name"] == "weather"
        assert first["tools"][0]["function"]["parameters"] == WEATHER_TOOL.parameters
        assert first["temperature"] == 0.0
        assert first.get("max_completion_tokens", first.get("max_tokens")) == 50
        assert second["messages"][1]["tool_calls"] == [call]
        assert second["messages"][2] == {"role": "tool", "tool_call_id": "call_7", "content": 'Rain, "heavy"\n'}

    async def test_calls_and_thinking_in_a_stream(self):
        async def streams(request: UpstreamRequest) -> None:
            await request.start_sse()
            await request.send_sse(make_chunk_event({"role": "assistant", "reasoning_content": "Let me "}))
            await request.send_sse(make_chunk_event({"reasoning_content": "see."}))
            for index, (id_, town) in enumerate([("a", "Rome"), ("b", "Oslo")]):
                start = {"index": index, "id": id_, "type": "function", "function": {"name": "weather"}}
                await request.send_sse(make_chunk_event({"tool_calls": [start]}))
                for piece in ('{"town":', f'"{town}"}}'):
                    await request.send_sse(
                        make_chunk_event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
                    )
            await request.send_sse(make_chunk_event({}, "tool_calls"))
            await request.send_sse(SSE_DONE)
            await request.end_sse()

        async with run_fake_upstream(streams) as server:
            chunks = await collect_chunks(
                get_model("fake", base_url=server.url), make_prompt("Weather?", tools=(WEATHER_TOOL,))
            )
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
        # The server sent no usage.
        assert reply.usage is None

    async def test_reasoning_goes_back_where_it_came_from(self):
        async def thinks(request: UpstreamRequest) -> None:
            await request.respond(make_completion({"content": "Yes.", "reasoning_content": "Hm."}))

        async with run_fake_upstream(thinks, thinks) as server:
            model = get_model("fake", base_url=server.url)
            reply = await model.complete(make_prompt("Sure?"))
            assert [part.text for part in reply.message.parts if isinstance(part, ThinkingPart)] == ["Hm."]
            elsewhere = Message(role="assistant", parts=(ThinkingPart(text="Private."), TextPart(text="No.")))
            history = (Message.user("Sure?"), reply.message, Message.user("?"), elsewhere, Message.user("Why?"))
            await model.complete(make_prompt("", messages=history))
        sent = server.bodies[1]["messages"]
        assert sent[1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
        assert "Private" not in json.dumps(sent)

    async def test_a_rate_limit_has_its_retry_after(self):
        async def rate_limits(request: UpstreamRequest) -> None:
            await request.respond({"error": {"message": "Slow down", "type": "requests"}}, 429, retry_after="7")

        async with run_fake_upstream(rate_limits, rate_limits) as server:
            model = get_model("fake", base_url=server.url)
            for call in (model.complete(make_prompt("hello")), collect_chunks(model, make_prompt("hello"))):
                with pytest.raises(ModelRateLimited) as caught:
                    await call
                assert caught.value.retry_after == 7
        assert len(server.requests) == 2, "each call is made once"

    @pytest.mark.parametrize(
        ("status", "body", "expected"),
        [
            (500, {"error": {"message": "oops"}}, ModelUnavailable),
            (401, {"error": {"message": "no such key", "code": "invalid_api_key"}}, ModelRequestRejected),
            (400, {"error": {"message": "max_tokens is too large: 9", "param": "max_tokens"}}, ModelRequestRejected),
            (200, {"unexpected": True}, ModelUnavailable),
            (200, make_completion({"content": None, "refusal": "I cannot help with that."}), ModelRefused),
            (200, make_completion({"content": "I am"}, "content_filter"), ModelRefused),
        ],
    )
    async def test_errors_are_classified(self, status: int, body: dict[str, Any], expected: type[Exception]):
        async def fails(request: UpstreamRequest) -> None:
            await request.respond(body, status)

        async with run_fake_upstream(fails) as server:
            with pytest.raises(expected):
                await get_model("fake", base_url=server.url).complete(make_prompt("hello"))

    async def test_an_error_inside_an_open_stream(self):
        async def fails(request: UpstreamRequest) -> None:
            await request.start_sse()
            await request.send_sse(make_chunk_event({"content": "One "}))
            await request.send_sse(make_sse_event({"error": {"message": "Overloaded", "type": "overloaded_error"}}))
            await request.end_sse()

        async with run_fake_upstream(fails) as server:
            stream = get_model("fake", base_url=server.url).stream(make_prompt("Count."))
            assert await anext(stream) == TextDelta("One ")
            with pytest.raises(ModelUnavailable, match="Overloaded"):
                await anext(stream)

    async def test_an_incomplete_response_is_an_error(self):
        async def breaks_off(request: UpstreamRequest) -> None:
            await request.send(b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{"id": "chat')
            request.abort_connection()

        async def resets(request: UpstreamRequest) -> None:
            request.abort_connection()

        async with run_fake_upstream(breaks_off, resets) as server:
            model = get_model("fake", base_url=server.url)
            for _ in range(2):
                with pytest.raises(ModelUnavailable):
                    await model.complete(make_prompt("hello"))

    async def test_an_incomplete_stream_is_an_error(self):
        async def breaks_off(request: UpstreamRequest) -> None:
            await request.start_sse()
            await request.send_sse(make_chunk_event({"content": "One "}))
            await asyncio.sleep(0.05)
            request.abort_connection()

        async with run_fake_upstream(breaks_off) as server:
            stream = get_model("fake", base_url=server.url).stream(make_prompt("Count."))
            assert await anext(stream) == TextDelta("One ")
            with pytest.raises(ModelUnavailable):
                await anext(stream)

    async def test_a_stream_that_ends_without_a_reason_has_none(self):
        async def ends(request: UpstreamRequest) -> None:
            await request.start_sse()
            await request.send_sse(make_chunk_event({"content": "One"}))
            await request.end_sse()

        async with run_fake_upstream(ends) as server:
            *_, reply = await collect_chunks(get_model("fake", base_url=server.url), make_prompt("Count."))
        assert isinstance(reply, Reply)
        assert (reply.message.text, reply.finish_reason) == ("One", None)

    async def test_a_server_that_hangs_is_given_up(self):
        async def hangs(request: UpstreamRequest) -> None:
            await asyncio.sleep(60)

        async def stalls(request: UpstreamRequest) -> None:
            await request.start_sse()
            await request.send_sse(make_chunk_event({"content": "One "}))
            await asyncio.sleep(60)

        async with run_fake_upstream(hangs, hangs, stalls) as server:
            model = get_model("fake", base_url=server.url)
            with pytest.raises(ModelUnavailable):
                await model.complete(make_prompt("hello", timeout=0.1))
            with pytest.raises(ModelUnavailable):
                await anext(model.stream(make_prompt("hello", timeout=0.1)))
            stream = model.stream(make_prompt("hello", timeout=0.1))
            assert await anext(stream) == TextDelta("One ")
            with pytest.raises(ModelUnavailable):
                await anext(stream)

    @pytest.mark.parametrize("name", ["fake", "anthropic:fake"])
    async def test_certificates_are_loaded_once(self, name: str, monkeypatch: pytest.MonkeyPatch):
        """Loading them takes 40 ms on the event loop."""

        async def fails(request: UpstreamRequest) -> None:
            await request.respond({}, status=500)

        async with run_fake_upstream(fails, fails, fails) as server:
            model = get_model(name, base_url=server.url)
            for call in range(3):
                with pytest.raises(ModelUnavailable):
                    await model.complete(make_prompt("hello"))
                if call == 1:
                    monkeypatch.setattr("httpcore2.default_ssl_context", lambda **_: pytest.fail("loaded again"))
        assert len(server.bodies) == 3

    @pytest.mark.parametrize("entered", [False, True])
    async def test_closing_the_stream_ends_the_request(self, entered: bool):
        closed = asyncio.Event()

        async def continues(request: UpstreamRequest) -> None:
            await request.start_sse()
            await request.send_sse(make_chunk_event({"content": "One "}))
            if await request.wait_until_closed():
                closed.set()

        async with run_fake_upstream(continues) as server, AsyncExitStack() as stack:
            model = get_model("fake", base_url=server.url)
            if entered:
                await stack.enter_async_context(model)
            stream = model.stream(make_prompt("Count."))
            await anext(stream)
            await stream.aclose()
            async with asyncio.timeout(5):
                await closed.wait()

    async def test_pictures_are_sent(self):
        async def sees(request: UpstreamRequest) -> None:
            await request.respond(make_completion({"content": "A pixel."}))

        digest = "a" * 64
        parts = (
            TextPart(text="Look:"),
            ImagePart(url=f"data:image/png;base64,{PNG_BASE64}", detail="low"),
            ImagePart(blob=digest, media_type="image/jpeg"),
            ImagePart(url="http://127.0.0.1/picture.webp"),
            ImagePart(blob="b" * 64),
        )
        async with run_fake_upstream(sees) as server:
            prompt = make_prompt("", messages=(Message(role="user", parts=parts),), load_blob={digest: PNG_BASE64}.get)
            await get_model("fake", base_url=server.url).complete(prompt)
        (sent,) = server.bodies[0]["messages"]
        assert [piece.get("image_url", piece) for piece in sent["content"]] == [
            {"type": "text", "text": "Look:"},
            {"url": f"data:image/png;base64,{PNG_BASE64}", "detail": "low"},
            {"url": f"data:image/jpeg;base64,{PNG_BASE64}"},
            {"url": "http://127.0.0.1/picture.webp"},
            {"type": "text", "text": f"[image: blob {'b' * 12}]"},
        ]

    async def test_thinking_in_tags_is_no_text(self):
        async def thinks(request: UpstreamRequest) -> None:
            await request.respond(make_completion({"content": "<think>\nHm.\n</think>\n\nYes."}))

        async def streams(request: UpstreamRequest) -> None:
            await request.start_sse()
            for piece in ("<thi", "nk>\nHm.\n</th", "ink>\n", "\nYes."):
                await request.send_sse(make_chunk_event({"content": piece}))
            await request.send_sse(make_chunk_event({}, "stop"))
            await request.end_sse()

        async with run_fake_upstream(thinks, streams) as server:
            model = get_model("fake", base_url=server.url)
            whole = await model.complete(make_prompt("Sure?"))
            *chunks, last = await collect_chunks(model, make_prompt("Sure?"))
        assert isinstance(last, Reply)
        assert chunks == [ThinkingDelta("\nHm.\n"), TextDelta("Yes.")]
        for reply in (whole, last):
            assert reply.message.parts == (ThinkingPart(text="\nHm.\n"), TextPart(text="Yes."))

    async def test_a_call_without_an_id_gets_one(self):
        call = {"index": 0, "id": "", "type": "function", "function": {"name": "weather", "arguments": "{}"}}

        async def calls(request: UpstreamRequest) -> None:
            await request.respond(make_completion({"content": "", "tool_calls": [call]}, "tool_calls"))

        async def streams(request: UpstreamRequest) -> None:
            await request.start_sse()
            await request.send_sse(make_chunk_event({"tool_calls": [call]}))
            await request.send_sse(make_chunk_event({}, "tool_calls"))
            await request.end_sse()

        async with run_fake_upstream(calls, streams) as server:
            model = get_model("fake", base_url=server.url)
            whole = await model.complete(make_prompt("Weather?", tools=(WEATHER_TOOL,)))
            delta, last = await collect_chunks(model, make_prompt("Weather?", tools=(WEATHER_TOOL,)))
        assert isinstance(delta, ToolCallDelta)
        assert isinstance(last, Reply)
        assert [part.id for part in whole.message.tool_calls] != [""]
        assert [part.id for part in last.message.tool_calls] == [delta.id]

    async def test_signed_thinking_goes_to_anthropic_as_it_was(self):
        async def answers(request: UpstreamRequest) -> None:
            usage = {"input_tokens": 5, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 20}
            await request.respond(
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
        async with run_fake_upstream(answers, answers) as server:
            model = get_model("anthropic:claude-x", base_url=server.url, api_key="secret")
            prompt = make_prompt("", messages=(Message.user("?"), stored, failed), tools=(WEATHER_TOOL,), max_tokens=9)
            reply = await model.complete(prompt)
            history = (*prompt.messages, reply.message, Message.user("And?"))
            await model.complete(make_prompt("", messages=history, tools=(WEATHER_TOOL,), max_tokens=9))
        assert reply.usage is not None
        assert (reply.usage.input_tokens, reply.usage.cache_read_tokens, reply.usage.cache_write_tokens) == (95, 70, 20)
        assert reply.finish_reason == "end_turn"
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


@given(st.lists(st.sampled_from([" ", "\n", "<think>", "</think>", "<", "th", "ink>", "</", "Hm.", "Yes."])), st.data())
def test_thinking_is_split_alike_wherever_the_pieces_are_cut(words: list[str], data: st.DataObject):
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    whole, pieces = ThinkingSplitter(), ThinkingSplitter()
    whole.split(text)
    whole.end()
    for start, end in pairwise([0, *cuts, len(text)]):
        pieces.split(text[start:end])
    pieces.end()
    assert (pieces.text, pieces.thinking) == (whole.text, whole.thinking)
    # Nothing of a reply is lost, except the tags and the space beside them.
    assert "".join((whole.thinking + whole.text).split()) in (
        "".join(text.split()),
        "".join(text.replace("<think>", "", 1).split()),
        "".join(text.replace("<think>", "", 1).replace("</think>", "", 1).split()),
    )


class TestModelNames:
    @pytest.mark.parametrize(
        ("name", "wire_format", "url", "served_name"),
        [
            ("gpt-4o", "chat", "https://api.openai.com/v1", "gpt-4o"),
            ("openai:o3-mini", "chat", "https://api.openai.com/v1", "o3-mini"),
            ("openai-chat:gpt-4o", "chat", "https://api.openai.com/v1", "gpt-4o"),
            ("openai-responses:gpt-4o", "responses", "https://api.openai.com/v1", "gpt-4o"),
            ("claude-sonnet-4-5", "messages", "https://api.anthropic.com", "claude-sonnet-4-5"),
            ("anthropic:claude-sonnet-4-5", "messages", "https://api.anthropic.com", "claude-sonnet-4-5"),
            ("google:gemini-2.5-flash", "gemini", "https://generativelanguage.googleapis.com", "gemini-2.5-flash"),
            ("groq:llama-3.3-70b", "chat", "https://api.groq.com/openai/v1", "llama-3.3-70b"),
        ],
    )
    def test_providers_are_known_by_name(self, name: str, wire_format: str, url: str, served_name: str):
        model = get_model(name, api_key="secret")
        assert (model.name, model.wire_format, model.base_url) == (name, wire_format, url)
        assert model.build_body(make_prompt("?"))["model"] == served_name

    @pytest.mark.parametrize(
        ("name", "wire_format", "served_name"),
        [
            ("qwen3:8b", "chat", "qwen3:8b"),
            ("claude-x", "chat", "claude-x"),
            ("anthropic:claude-x", "messages", "claude-x"),
            ("openai-responses:qwen3", "responses", "qwen3"),
            ("google:gemini-x", "gemini", "gemini-x"),
            ("openai:qwen3:8b", "chat", "qwen3:8b"),
            ("qwen/qwen3-8b", "chat", "qwen/qwen3-8b"),
        ],
    )
    def test_a_server_serves_any_name(self, name: str, wire_format: str, served_name: str):
        model = get_model(name, base_url="http://127.0.0.1:9/v1")
        assert model.wire_format == wire_format
        assert model.build_body(make_prompt("?"))["model"] == served_name

    @pytest.mark.parametrize(("spoken", "wire_format"), [("chat", "chat"), ("gemini", "gemini")])
    def test_an_upstream_gets_a_format_that_it_speaks(self, spoken: Any, wire_format: str):
        settings = Settings(
            model="claude-x", upstreams={"*": Upstream(base_url="http://127.0.0.1:9", model="y", speaks=(spoken,))}
        )
        model = get_upstream_model("claude-x", settings, {})
        assert (model.name, model.wire_format) == ("y", wire_format)
        assert EngineConfig.create(settings).policy.wire_format == wire_format

    def test_a_chat_uses_its_own_key_where_agents_bring_theirs(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
        upstream = Upstream(base_url="http://127.0.0.1:9", speaks=("messages",), credentials="client")
        model = build_model(Settings(model="claude-x", upstreams={"claude-*": upstream}))
        assert vars(model)["base_url"] == "https://api.anthropic.com"

    def test_an_unknown_name_and_a_missing_key_are_reported(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        for name in ("nobody-knows-this", "bedrock:claude-x"):
            with pytest.raises(ModelRequestRejected, match="Unknown model"):
                get_model(name)
        with pytest.raises(ModelRequestRejected, match="OPENAI_API_KEY"):
            get_model("gpt-4o")

    def test_a_missing_package_names_the_extra(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delitem(sys.modules, "quire.llm.http_model", raising=False)
        monkeypatch.setitem(sys.modules, "httpx2", None)
        with pytest.raises(MissingExtra, match=r"quire\[llm\]"):
            get_model("gpt-4o")

    def test_nothing_is_imported_before_get_model_is_called(self):
        program = (
            "import sys, quire, quire.llm, quire.testing.scripted_model\n"
            "quire.Message, quire.Engine\n"
            "assert not {'quire.llm.http_model', 'httpx2'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", program], check=True)


TIDE_TOOL = ToolDefinition(name="measure_tide", description="", parameters={"properties": {"quay": {"type": "string"}}})
FORMATS: tuple[WireFormatName, ...] = ("chat", "messages", "responses", "gemini")


def connect(provider: ScriptedProvider, wire_format: WireFormatName) -> HTTPModel:
    return get_model("m", base_url=provider.openai_url, api_key="secret", wire_format=wire_format)


@pytest.mark.parametrize("wire_format", FORMATS)
class TestEveryFormat:
    @pytest.mark.parametrize("streamed", [False, True])
    async def test_thinking_text_calls_and_usage(self, wire_format: WireFormatName, streamed: bool):
        calls = (ScriptedCall("measure_tide", {"quay": "north"}), ScriptedCall("measure_tide", {"quay": "south"}))
        usage = ScriptedUsage(1000, cached_tokens=400, output_tokens=7)
        prompt = make_prompt("Tide?", system="Be brief.", tools=(TIDE_TOOL,), max_tokens=50)
        with run_scripted_provider([ScriptedReply("I look.", calls=calls, thinking="Which?", usage=usage)]) as provider:
            model = connect(provider, wire_format)
            *chunks, reply = await collect_chunks(model, prompt) if streamed else [await model.complete(prompt)]
        assert isinstance(reply, Reply)
        if streamed:
            assert join_text(chunks) == "I look."
            assert "".join(each.text for each in chunks if isinstance(each, ThinkingDelta)) == "Which?"
            ids = [each.id for each in chunks if isinstance(each, ToolCallDelta) and each.id is not None]
            assert ids == [call.id for call in reply.message.tool_calls]
        assert reply.message.text == "I look."
        assert [part.text for part in reply.message.parts if isinstance(part, ThinkingPart)] == ["Which?"]
        called = [(each.name, json.loads(each.arguments)) for each in reply.message.tool_calls]
        assert called == [("measure_tide", {"quay": "north"}), ("measure_tide", {"quay": "south"})]
        assert len({each.id for each in reply.message.tool_calls}) == 2
        assert reply.usage is not None
        assert (reply.usage.input_tokens, reply.usage.cache_read_tokens, reply.usage.output_tokens) == (1000, 400, 7)
        (request,) = provider.requests
        assert (request.format, request.is_stream) == (wire_format, streamed)
        assert "secret" in " ".join(request.headers.values())

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (ScriptedError(429, "rate_limit_error", "Slow down."), ModelRateLimited),
            (ScriptedError(503, "overloaded_error", "Overloaded."), ModelUnavailable),
            (ScriptedError(401, "authentication_error", "No such key."), ModelRequestRejected),
            (ScriptedError(400, "invalid_request_error", "prompt is too long: 9 tokens > 8"), ModelContextOverflow),
        ],
    )
    async def test_errors_are_typed(self, wire_format: WireFormatName, error: ScriptedError, expected: type[Exception]):
        with run_scripted_provider([ScriptedReply(error=error)]) as provider:
            model = connect(provider, wire_format)
            with pytest.raises(expected):
                await model.complete(make_prompt("Tide?"))
            with pytest.raises(expected):
                await collect_chunks(model, make_prompt("Tide?"))
        assert len(provider.requests) == 2, "each call is made once"

    async def test_what_is_sent_is_what_the_manifest_counts(self, wire_format: WireFormatName):
        def measure_tide(quay: str) -> str:
            """Measures the tide."""
            return f"{quay}: 4 m"

        call = ScriptedCall("measure_tide", {"quay": "north"})
        script = [
            ScriptedReply(calls=(call,), thinking="Which?"),
            ScriptedReply("High.", thinking="Hm."),
            ScriptedReply("No."),
        ]
        with run_scripted_provider(script) as provider:
            async with open_engine(
                "sqlite://", model="m", base_url=provider.openai_url, wire_format=wire_format, instructions="Be brief."
            ) as engine:
                conversation = await engine.conversation("c")
                first = await conversation.send("Tide?", tools=[measure_tide])
                second = await conversation.send("And now?", tools=[measure_tide])
                replies = [each for each in await conversation.messages() if each.message.role == "assistant"]
                replays = [await conversation.replay(each.seq) for each in replies]
        assert (first.text, second.text) == ("High.", "No.")
        assert [each.format for each in provider.requests] == [wire_format] * 3
        for request, replay in zip(provider.requests, replays, strict=True):
            assert replay.matches
            assert replay.rendered is not None
            payload = replay.rendered.to_payload()
            payload.pop("model", None)
            assert {name: request.body[name] for name in payload} == payload


async def test_no_request_can_leave_a_test():
    """The guard in network_guard.py blocks real providers, through all layers of a model call."""
    for name in ("gpt-4o", "claude-x"):
        with pytest.raises(NetworkBlocked, match="look up api"):
            await get_model(name, api_key="secret").complete(make_prompt("hello"))
    blocked = pytest.RaisesExc(NetworkBlocked, match=r"connect to \('192\.0\.2\.1'")
    with pytest.RaisesGroup(blocked, flatten_subgroups=True):
        await get_model("x", base_url="http://192.0.2.1/v1").complete(make_prompt("hello"))
    with pytest.raises(NetworkBlocked), socket.socket() as bare:
        bare.connect(("192.0.2.1", 80))
    with pytest.raises(NetworkBlocked):
        socket.create_connection(("example.org", 80))
