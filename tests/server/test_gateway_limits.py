"""Limits of one request to the gateway, and of what one request costs the others."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from gateway_fixtures import MODEL, run_gateway, user_message

from fake_upstream import (
    SSE_DONE,
    UpstreamRequest,
    make_chunk_event,
    make_completion,
    make_sse_event,
    respond_with_stream,
    respond_with_text,
    run_fake_upstream,
)
from quire.concurrency.worker_threads import MAX_EVENT_LOOP_BYTES
from quire.engine import assembler
from quire.errors import ModelUnavailable
from quire.model import Message
from quire.model.policy import MAX_MODEL_NAME_CHARS
from quire.proxy import (
    engine_variants,
    prepare,
    recognition,
    replay_rendering,
    reply_recorder,
)
from quire.proxy.engine_variants import EngineVariants
from quire.proxy.known_messages import KnownMessageCache
from quire.server.gateway import relay
from quire.server.gateway.relay import MAX_ERROR_BYTES
from quire.store import SqlStore
from quire.wire.chat.codec import ChatCodec, ChatMessage
from quire.wire.chat.stream import MAX_REQUEST_CHOICES, ChatStreamDecoder
from quire.wire.codec import (
    MAX_CALL_ID_CHARS,
    MAX_NAME_CHARS,
    MAX_REQUEST_MESSAGES,
    MAX_REQUEST_TOOLS,
    RequestLimitExceeded,
)
from quire.wire.codecs import CHAT
from quire.wire.json_limits import MAX_JSON_SEPARATORS
from quire.wire.replies import MAX_DELTA_ITEMS, MAX_EVENT_BYTES

TOOL = {"type": "function", "function": {"name": "f"}}


def assistant_call(id: str, name: str = "f") -> dict[str, Any]:
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


LONG_NAME, LONG_ID = "n" * (MAX_NAME_CHARS + 1), "i" * (MAX_CALL_ID_CHARS + 1)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "a." * (MAX_MODEL_NAME_CHARS // 2) + "b", "messages": [user_message("Hello")]},
        {"model": MODEL, "messages": [user_message("a")] * (MAX_REQUEST_MESSAGES + 1)},
        {"model": MODEL, "messages": [user_message("a")], "tools": [TOOL] * (MAX_REQUEST_TOOLS + 1)},
        {"model": MODEL, "messages": [user_message("a")], "tools": [TOOL], "functions": [{}] * MAX_REQUEST_TOOLS},
        {"model": MODEL, "messages": [user_message("a")], "n": MAX_REQUEST_CHOICES + 1},
        {
            "model": MODEL,
            "messages": [user_message("a")],
            "tools": [{"type": "function", "function": {"name": LONG_NAME}}],
        },
        {"model": MODEL, "messages": [user_message("a")], "tools": [{"type": "custom", "name": LONG_NAME}]},
        {"model": MODEL, "messages": [user_message("a")], "functions": [{"name": LONG_NAME}]},
        {"model": MODEL, "messages": [{**user_message("a"), "name": LONG_NAME}]},
        {"model": MODEL, "messages": [user_message("a"), assistant_call(LONG_ID)]},
        {"model": MODEL, "messages": [user_message("a"), assistant_call("c", LONG_NAME)]},
        {"model": MODEL, "messages": [{"role": "tool", "tool_call_id": LONG_ID, "content": "x"}]},
    ],
    ids=[
        "model name",
        "messages",
        "tools",
        "tools and functions",
        "choices",
        "tool name",
        "custom tool name",
        "function name",
        "author name",
        "call ID",
        "name in a call",
        "ID of a result",
    ],
)
async def test_a_request_above_a_limit_is_refused_and_not_forwarded(store: SqlStore, body: dict[str, Any]):
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        answer = await harness.post(body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (
            400,
            "request_limit_exceeded",
            "invalid_request_error",
        )
        assert up.requests == []
        assert await store.list_conversations() == []


def test_a_request_at_its_limits_is_accepted():
    messages, tools = [user_message("a")] * MAX_REQUEST_MESSAGES, [TOOL] * MAX_REQUEST_TOOLS
    CHAT.check_limits({"model": "m" * MAX_MODEL_NAME_CHARS, "messages": messages, "tools": tools})
    call = assistant_call(LONG_ID[1:], LONG_NAME[1:])
    CHAT.check_limits({"messages": [{**call, "name": LONG_NAME[1:]}], "n": MAX_REQUEST_CHOICES})
    with pytest.raises(RequestLimitExceeded, match="X-Quire-Conversation"):
        CHAT.check_limits({"messages": [*messages, user_message("a")]})


WORK = [
    (KnownMessageCache, "parse_body"),
    (ChatCodec, "parse_request"),
    (recognition, "compute_client_paths"),
    (engine_variants, "parse_envelope"),
    (engine_variants.RecognizedRequest, "count_tokens"),
    (replay_rendering, "_render_plain_texts"),
    (reply_recorder, "_compute_paths"),
]
"""Functions whose work grows with the body."""


@pytest.mark.parametrize(
    ("content", "in_threads"), [("Hello", False), ("word " * 25_000, True)], ids=["small", "large"]
)
async def test_a_large_body_does_not_occupy_the_event_loop(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, content: str, in_threads: bool
):
    threads: dict[str, threading.Thread] = {}

    def record_thread(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            threads[function.__name__] = threading.current_thread()
            return function(*args, **kwargs)

        return call

    for owner, name in WORK:
        monkeypatch.setattr(owner, name, record_thread(getattr(owner, name)))
    assert (len(content) > MAX_EVENT_LOOP_BYTES) == in_threads
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message(content))
        assert answer.status_code == 200
        assert up.requests[0].body["messages"] == [user_message(content)]
    assert threads.keys() == {name for _, name in WORK}
    assert {thread is not threading.current_thread() for thread in threads.values()} == {in_threads}


async def test_messages_of_a_long_list_are_not_parsed_on_the_event_loop(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    on_event_loop: list[ChatMessage] = []

    def parse(message: ChatMessage) -> Message:
        if threading.current_thread() is threading.main_thread():
            on_event_loop.append(message)
        return real_parse(message)

    real_parse = ChatMessage.parse
    monkeypatch.setattr(ChatMessage, "parse", parse)
    pairs = [user_message("a"), {"role": "assistant", "content": "a"}] * 1_000
    calls = [assistant_call("1"), {"role": "tool", "tool_call_id": "1", "content": "r"}] * 50
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        assert (await harness.ask(*pairs, *calls, user_message("b"))).status_code == 200
    assert len(on_event_loop) < 10


async def test_a_large_history_is_fitted_in_a_thread(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    threads: list[threading.Thread] = []

    def assemble(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread())
        return real_assemble(*args, **kwargs)

    real_assemble = assembler.assemble
    monkeypatch.setattr(assembler, "assemble", assemble)
    history = [user_message("word " * 2_000), {"role": "assistant", "content": "Yes."}] * 20
    async with (
        run_fake_upstream(respond_with_text("Yes.")) as up,
        run_gateway(store, up.url, context_limit=8_000) as harness,
    ):
        answer = await harness.ask(*history, user_message("And now?"))
        assert answer.status_code == 200
    # The history is assembled first, then what is left of it after a compaction.
    assert threads[0] is not threading.current_thread()


async def test_an_error_of_the_upstream_above_the_limit_is_not_passed_on(store: SqlStore):
    async def respond(request: UpstreamRequest) -> None:
        await request.respond({"error": {"message": "x" * MAX_ERROR_BYTES}}, status=422)

    async with run_fake_upstream(respond) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message("Hello"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "upstream_error_too_long")
        assert len(answer.content) < 2_000


@pytest.mark.parametrize("limit", ["bytes", "values"])
async def test_a_reply_above_a_limit_is_not_passed_on(store: SqlStore, monkeypatch: pytest.MonkeyPatch, limit: str):
    more: dict[str, Any] = {"x": [{}] * MAX_JSON_SEPARATORS}
    if limit == "bytes":
        monkeypatch.setattr(relay, "MAX_RESPONSE_BYTES", 10_000)
        more = {"x": "x" * 10_000}

    async def respond(request: UpstreamRequest) -> None:
        await request.respond(make_completion("Yes.", **more))

    async with run_fake_upstream(respond) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message("Hello"))
        assert (answer.status_code, answer.json()["code"]) == (502, "model_unavailable")
        [exchange] = await store.list_unanswered()
        assert (exchange.outcome, exchange.status, exchange.seq) == ("broken", 200, None)


def feed_pieces(accumulator: ChatStreamDecoder, data: bytes, *, piece_bytes: int = 64 * 1024) -> None:
    for start in range(0, len(data), piece_bytes):
        accumulator.feed(data[start : start + piece_bytes])


def test_an_event_above_the_limit_ends_the_stream():
    accumulator = ChatStreamDecoder()
    accumulator.feed(make_chunk_event("before"))
    feed_pieces(accumulator, b"data: " + b"x" * (MAX_EVENT_BYTES - 6))
    with pytest.raises(ModelUnavailable, match="event of more than"):
        accumulator.feed(b"x")
    assert accumulator.build_responses()[0]["choices"][0]["message"]["content"] == "before"
    assert accumulator.remainder == b""


def test_events_after_the_end_of_a_reply_are_limited_together():
    accumulator = ChatStreamDecoder()
    accumulator.feed(make_chunk_event("all", "stop"))
    event = b"data: " + b"x" * 100_000 + b"\n\n"
    with pytest.raises(ModelUnavailable):
        feed_pieces(accumulator, event * (MAX_EVENT_BYTES // 100_000 + 1))
    assert accumulator.is_finished
    assert len(accumulator.remainder) < MAX_EVENT_BYTES + 2 * len(event)


async def test_the_reply_before_an_oversized_event_is_recorded(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.wire.replies.MAX_EVENT_BYTES", 10_000)
    stream = [make_chunk_event("Half an answer"), make_chunk_event("x" * 50_000), SSE_DONE]
    async with run_fake_upstream(respond_with_stream(*stream)) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message("Hello"), stream=True)
        assert b"event of more than 10,000 bytes" in answer.content
        messages = await harness.load_messages(answer.headers["x-quire-conversation"])
        assert messages == [("user", "Hello"), ("assistant", "Half an answer")]


def test_an_event_with_too_many_values_ends_the_stream():
    accumulator = ChatStreamDecoder()
    accumulator.feed(make_sse_event({"x": [{}] * (MAX_JSON_SEPARATORS // 3)}))
    with pytest.raises(ModelUnavailable, match="JSON values"):
        accumulator.feed(make_sse_event({"x": [{}] * MAX_JSON_SEPARATORS}))


def test_a_stream_above_its_limit_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.wire.replies.MAX_STREAM_BYTES", 1_000)
    accumulator = ChatStreamDecoder()
    with pytest.raises(ModelUnavailable, match="more than 1,000 bytes"):
        feed_pieces(accumulator, make_chunk_event("a") * 10, piece_bytes=100)
    assert accumulator.build_responses()[0]["choices"][0]["message"]["content"] == "a" * 5


def test_the_calls_and_choices_of_a_stream_are_limited():
    calls = [{"index": number, "function": {"name": "f"}} for number in range(MAX_DELTA_ITEMS)]
    accumulator = ChatStreamDecoder()
    accumulator.feed(make_chunk_event({"tool_calls": calls}))
    accumulator.feed(make_chunk_event({"tool_calls": [calls[0]]}))
    with pytest.raises(ModelUnavailable, match="tool calls"):
        accumulator.feed(make_chunk_event({"tool_calls": [{"index": MAX_DELTA_ITEMS}]}))
    for index in range(1, MAX_REQUEST_CHOICES):
        accumulator.feed(make_chunk_event("a", index=index))
    with pytest.raises(ModelUnavailable, match="choices"):
        accumulator.feed(make_chunk_event("a", index=MAX_REQUEST_CHOICES))


async def test_instructions_are_cached_up_to_a_number_of_bytes(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_variants, "ENVELOPE_CACHE_BYTES", 10_000)
    monkeypatch.setattr(engine_variants, "MAX_ENVELOPE_BYTES", 7_000)
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        variants = EngineVariants(harness.server_state.engines)
        envelopes = variants.get("default", MODEL, target=CHAT).envelopes
        for number, chars in ((1, 2_000), (2, 2_000), (3, 3_000), (4, 20_000)):
            messages = [{"role": "system", "content": f"{number} " + "x" * chars}, user_message("a")]
            body = {"model": MODEL, "messages": messages}
            chat_request = CHAT.parse_request(b"", body)
            await variants.get("default", f"{MODEL}-{number}", target=CHAT).load_envelope(chat_request)
            assert envelopes.currsize <= 10_000
        [envelope] = envelopes.values()
        assert envelope.blobs[0].data.startswith(b"2 ")


@pytest.mark.every_database
async def test_a_long_history_is_stored_in_batches(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare, "APPEND_BATCH_MESSAGES", 4)
    history = [user_message("word " * 500), {"role": "assistant", "content": "Yes."}] * 15
    async with (
        run_fake_upstream(respond_with_text("Yes.")) as up,
        run_gateway(store, up.url, context_limit=4_000) as harness,
    ):
        answer = await harness.ask(*history, user_message("And now?"))
        stored = await harness.load_messages(answer.headers["x-quire-conversation"])
        assert stored == [
            *((each["role"], each["content"]) for each in history),
            ("user", "And now?"),
            ("assistant", "Yes."),
        ]
        again = await harness.ask(
            *history, user_message("And now?"), {"role": "assistant", "content": "Yes."}, user_message("More")
        )
        assert again.headers["x-quire-conversation"] == answer.headers["x-quire-conversation"]
