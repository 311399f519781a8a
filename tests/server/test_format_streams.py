"""Streams in every client format: the order of events, cuts, silence, and an end that is held back until recorded."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest
from format_clients import (
    FORMATS,
    GEMINI_ERRORS,
    MODEL,
    TOOL_NAME,
    TRANSLATED_FORMATS,
    FormatClient,
    build_post,
    make_client,
    run_matrix_gateway,
    served_pairs,
)
from gateway_fixtures import GatewayHarness, list_messages, run_gateway
from stream_checks import ENCODERS, StreamReading, read_stream

from fake_upstream import SSE_DONE, UpstreamRequest, make_chunk_event, run_fake_upstream
from infra.scripted_provider import ScriptedCall, ScriptedReply, WireFormatName
from infra.scripted_provider_formats import ReplyContext
from infra.sizes import IS_FULL_SIZE
from quire.server.gateway import relay
from quire.store import SqlStore
from quire.wire.codecs import CODECS

clients = pytest.mark.parametrize("client", TRANSLATED_FORMATS)

CALLS = (ScriptedCall(TOOL_NAME, {"path": "a"}), ScriptedCall(TOOL_NAME))
REPLY = ScriptedReply("Two words.", calls=CALLS, thinking="Which words?")
SDK_ERRORS = (openai.APIError, anthropic.APIError, RuntimeError, *GEMINI_ERRORS)
"""OpenAI's SDK passes an `error` event of responses on, and then misses the end of the response."""
END_MARKERS: dict[WireFormatName, bytes] = {
    "chat": b"[DONE]",
    "messages": b"message_stop",
    "responses": b"response.completed",
    "gemini": b"finishReason",
}
HTTP_STRIDE_BYTES, DECODER_STRIDE_BYTES = (1, 1) if IS_FULL_SIZE else (149, 13)
"""Bytes between two cuts."""


@served_pairs
async def test_the_order_of_events(store: SqlStore, client: WireFormatName, speaks: WireFormatName):
    async with run_matrix_gateway(store, [REPLY], client=client, speaks=speaks) as harness:
        body = harness.client.make_body([harness.client.make_question("Look.")], stream=True, has_tools=True)
        reading = read_stream(client, (await harness.post(body)).content)
        assert (reading.text, reading.thinking, reading.is_complete) == ("Two words.", "Which words?", True)
        made = [(name, json.loads(arguments or "{}")) for _, name, arguments in reading.calls.values()]
        assert made == [(TOOL_NAME, {"path": "a"}), (TOOL_NAME, {})]


@served_pairs
async def test_a_stream_that_is_cut_at_every_event(store: SqlStore, client: WireFormatName, speaks: WireFormatName):
    whole = ScriptedReply("Two words.", calls=CALLS[:1])
    async with run_matrix_gateway(store, [whole], client=client, speaks=speaks) as harness:

        def cut_once(number: int) -> None:
            replies = [replace(whole, cut_after_events=number)]
            harness.provider.script = lambda _: replies.pop() if replies else whole

        number = 0
        while True:
            question = harness.client.make_question(f"Look {number}.")
            cut_once(number)
            answer = await harness.post(harness.client.make_body([question], stream=True, has_tools=True))
            if number == 0:
                assert answer.status_code == 502
            else:
                reading = read_stream(client, answer.content)
                if reading.is_complete or reading.has_finish_reason:
                    break
                assert reading.error is not None
                assert END_MARKERS[client] not in answer.content
                await check_incomplete(harness.gateway, answer.headers["x-quire-conversation"], reading)
            if number % 4 == 0:
                cut_once(number)
                with pytest.raises(SDK_ERRORS):
                    await harness.client.send([question], stream=True, has_tools=True)
            retried = await harness.client.send([question], stream=True, has_tools=True)
            assert (retried.text, len(retried.calls)) == ("Two words.", 1)
            number += 1
        assert number >= 4


async def check_incomplete(gateway: GatewayHarness, conversation: str, reading: StreamReading) -> None:
    """What the client has seen of the reply is recorded as incomplete, without calls that may be cut."""
    entries = await gateway.store.read_range(conversation, kinds=["message"])
    if not entries:
        assert (reading.text, reading.calls) == ("", {})
        return
    newest = entries[-1]
    assert newest.metadata.incomplete
    assert newest.message.text == reading.text
    assert all(json.loads(call.arguments) == {"path": "a"} for call in newest.message.tool_calls)


@served_pairs
async def test_a_body_that_is_cut(store: SqlStore, client: WireFormatName, speaks: WireFormatName):
    script = [ScriptedReply("Two words.", cut_after_events=1), ScriptedReply("Two words.")]
    async with run_matrix_gateway(store, script, client=client, speaks=speaks) as harness:
        question = harness.client.make_question("Look.")
        with pytest.raises((openai.InternalServerError, anthropic.InternalServerError, *GEMINI_ERRORS)):
            await harness.client.send([question], stream=False)
        assert await list_messages(store) == []
        assert (await harness.client.send([question], stream=False)).text == "Two words."


def encode_stream(format: WireFormatName, reply: ScriptedReply) -> bytes:
    return b"".join(ENCODERS[format].encode_events(reply, ReplyContext(MODEL, 1, 10)))


@pytest.mark.parametrize("format", FORMATS)
def test_a_decoder_that_is_cut_anywhere(format: WireFormatName):
    """Only whole events pass, the end is held back, and what has arrived is a prefix of the reply."""
    stream = encode_stream(format, REPLY)
    for size in range(0, len(stream) + 1, DECODER_STRIDE_BYTES):
        decoder = CODECS[format].make_decoder(is_translated=False)
        passed = decoder.feed(stream[:size])
        assert stream.startswith(passed)
        assert passed == b"" or passed.endswith((b"\n\n", b"\r\n\r\n"))
        assert END_MARKERS[format] not in passed
        if not decoder.is_finished:
            for reply in decoder.build_replies():
                assert "Two words.".startswith(reply.message.text)
        passed += decoder.feed(stream[size:])
        assert passed + decoder.remainder == stream
        (reply,) = decoder.build_replies()
        assert (reply.message.text, len(reply.message.tool_calls)) == ("Two words.", 2)


@pytest.mark.parametrize("format", FORMATS)
def test_a_decoder_of_single_bytes(format: WireFormatName):
    stream = encode_stream(format, REPLY)
    decoder = CODECS[format].make_decoder(is_translated=False)
    passed = b"".join(decoder.feed(stream[index : index + 1]) for index in range(len(stream)))
    assert passed + decoder.remainder == stream
    assert decoder.build_replies()[0].message.text == "Two words."


@asynccontextmanager
async def run_raw_upstream(
    store: SqlStore, client: WireFormatName, speaks: WireFormatName, respond: Any, **more: Any
) -> AsyncIterator[tuple[FormatClient, GatewayHarness]]:
    """A gateway with an upstream that is controlled to the byte."""
    async with run_fake_upstream(respond) as up:
        upstream = {"*": {"base_url": up.url, "speaks": [speaks]}}
        async with (
            run_gateway(store, up.url, upstreams=upstream, **more) as gateway,
            make_client(gateway, client) as format_client,
        ):
            yield format_client, gateway


@pytest.mark.parametrize("format", FORMATS)
async def test_a_native_stream_that_is_cut_within_events(store: SqlStore, format: WireFormatName):
    stream, sizes = encode_stream(format, ScriptedReply("Hi.")), list[int]()

    async def respond(request: UpstreamRequest) -> None:
        await request.start_sse()
        await request.send_sse(stream[: sizes[-1]])
        await asyncio.sleep(0)
        request.abort_connection()

    async with run_raw_upstream(store, format, format, respond) as (client, gateway):
        for size in range(1, len(stream), HTTP_STRIDE_BYTES):
            sizes.append(size)
            body = client.make_body([client.make_question(f"Look {size}.")], stream=True)
            path, content = build_post(format, body)
            answer = await gateway.http.post(path, content=content)
            reading = read_stream(format, answer.content) if answer.status_code == 200 else None
            if reading is None or not (reading.is_complete or reading.has_finish_reason):
                assert END_MARKERS[format] not in answer.content
                assert b"error" in answer.content
                if reading is not None and reading.text:
                    assert "Hi.".startswith(reading.text)
                    await check_incomplete(gateway, answer.headers["x-quire-conversation"], reading)


@pytest.mark.parametrize("client", ["messages", "responses"])
async def test_calls_that_alternate(store: SqlStore, client: WireFormatName):
    """Some servers send pieces of parallel calls in turn; texts and calls stay whole for every client."""

    def call(index: int, arguments: str, **first: Any) -> bytes:
        name = {"name": TOOL_NAME} if first else {}
        return make_chunk_event(
            {"tool_calls": [{"index": index, **first, "function": {**name, "arguments": arguments}}]}
        )

    events = [
        make_chunk_event("Both."),
        call(0, '{"pa', id="one", type="function"),
        call(1, "", id="two", type="function"),
        call(1, '{"path": '),
        call(0, 'th": "a"}'),
        call(1, '"b"}'),
        make_chunk_event({}, "tool_calls"),
        SSE_DONE,
    ]

    async def respond(request: UpstreamRequest) -> None:
        await request.start_sse()
        await request.send_sse(*events)
        await request.end_sse()

    async with run_raw_upstream(store, client, "chat", respond) as (sdk, gateway):
        body = sdk.make_body([sdk.make_question("Look.")], stream=True, has_tools=True)
        path, content = build_post(client, body)
        reading = read_stream(client, (await gateway.http.post(path, content=content)).content)
        assert [(id_, json.loads(arguments)) for id_, _, arguments in reading.calls.values()] == [
            ("one", {"path": "a"}),
            ("two", {"path": "b"}),
        ]
        reply = await sdk.send([sdk.make_question("Again.")], stream=True, has_tools=True)
        assert [call.arguments for call in reply.calls] == [{"path": "a"}, {"path": "b"}]
        history = [sdk.make_question("Again."), *reply.items, *sdk.make_results(reply.calls, ["x", "y"])]
        await sdk.send(history, stream=True, has_tools=True)
        conversations = await store.list_conversations()
        assert len(conversations) == 2
        assert [len(await store.list_branches(each.id)) for each in conversations] == [1, 1]


async def be_silent(request: UpstreamRequest, seconds: float) -> None:
    await request.start_sse()
    await request.send_sse(make_chunk_event({"role": "assistant", "content": "Wait"}))
    await asyncio.sleep(seconds)
    await request.send_sse(make_chunk_event(" for it."), make_chunk_event({}, "stop"), SSE_DONE)
    await request.end_sse()


KEEP_ALIVES: dict[WireFormatName, bytes] = {
    "chat": b": keep-alive\n\n",
    "messages": b'event: ping\ndata: {"type":"ping"}\n\n',
    "responses": b": keep-alive\n\n",
}


async def check_silence(store: SqlStore, client: WireFormatName, *, seconds: float, pings: Sequence[int]) -> None:
    speaks: WireFormatName = "messages" if client == "chat" else "chat"

    async def respond(request: UpstreamRequest) -> None:
        if speaks == "chat":
            return await be_silent(request, seconds)
        first, *others = [
            f"{event}\n\n".encode()
            for event in encode_stream(speaks, ScriptedReply("Wait for it.")).decode().split("\n\n")[:-1]
        ]
        await request.start_sse()
        await request.send_sse(first)
        await asyncio.sleep(seconds)
        await request.send_sse(*others)
        return await request.end_sse()

    async with run_raw_upstream(store, client, speaks, respond, timeout_seconds=seconds + 30) as (sdk, gateway):
        body = sdk.make_body([sdk.make_question("Look.")], stream=True)
        path, content = build_post(client, body)
        answer = await gateway.http.post(path, content=content, timeout=seconds + 30)
        assert answer.content.count(KEEP_ALIVES[client]) in pings
        reading = read_stream(client, answer.content)
        assert (reading.text, reading.is_complete) == ("Wait for it.", True)
        if seconds < 1:
            assert (await sdk.send([sdk.make_question("Again.")], stream=True)).text == "Wait for it."


@clients
async def test_a_silent_upstream(store: SqlStore, monkeypatch: pytest.MonkeyPatch, client: WireFormatName):
    monkeypatch.setattr(relay, "KEEP_ALIVE_SECONDS", 0.05)
    await check_silence(store, client, seconds=0.3, pings=range(1, 7))


@pytest.mark.nightly
async def test_an_upstream_that_is_silent_for_a_minute(store: SqlStore):
    assert relay.KEEP_ALIVE_SECONDS == 15
    await asyncio.gather(*(check_silence(store, client, seconds=61, pings=(1, 3, 4)) for client in TRANSLATED_FORMATS))


@served_pairs
async def test_the_end_is_held_back_until_the_turn_is_recorded(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, client: WireFormatName, speaks: WireFormatName
):
    may_record, record_reply = asyncio.Event(), SqlStore.record_reply

    async def wait_and_record(self: SqlStore, *args: Any, **kwargs: Any) -> Any:
        await may_record.wait()
        return await record_reply(self, *args, **kwargs)

    monkeypatch.setattr(SqlStore, "record_reply", wait_and_record)
    async with run_matrix_gateway(store, "Two words.", client=client, speaks=speaks) as harness:
        body = harness.client.make_body([harness.client.make_question("Look.")], stream=True)
        received = b""
        path, content = build_post(client, body)
        async with harness.gateway.http.stream("POST", path, content=content) as answer:
            async for chunk in answer.aiter_bytes():
                received += chunk
                if b"words" in received and not may_record.is_set():
                    # Whatever would be sent of the end has time to arrive.
                    await asyncio.sleep(0.05)
                    assert END_MARKERS[client] not in received
                    assert await list_messages(store) == []
                    may_record.set()
                elif END_MARKERS[client] in received:
                    assert len(await store.list_conversations()) == 1
        assert read_stream(client, received).is_complete
