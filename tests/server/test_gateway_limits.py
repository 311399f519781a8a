"""Limits of one request to the gateway, and of what one request costs the others."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from gateway_fixtures import MODEL, run_gateway, user_message

from fake_upstream import SSE_DONE, make_chunk_event, respond_with_stream, respond_with_text, run_fake_upstream
from quire.errors import ModelUnavailable
from quire.log import SqlStore
from quire.model.policy import MAX_MODEL_NAME_CHARS
from quire.server.gateway import engine_variants, exchange, passthrough, recognition
from quire.server.gateway.chat_request import (
    MAX_EVENT_LOOP_BODY_BYTES,
    MAX_REQUEST_MESSAGES,
    MAX_REQUEST_TOOLS,
    RequestLimitExceeded,
    check_request_limits,
)
from quire.server.gateway.sse_accumulator import MAX_EVENT_BYTES, SSEAccumulator

TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    "body",
    [
        {"model": "a." * (MAX_MODEL_NAME_CHARS // 2) + "b", "messages": [user_message("Hello")]},
        {"model": MODEL, "messages": [user_message("a")] * (MAX_REQUEST_MESSAGES + 1)},
        {"model": MODEL, "messages": [user_message("a")], "tools": [TOOL] * (MAX_REQUEST_TOOLS + 1)},
        {"model": MODEL, "messages": [user_message("a")], "tools": [TOOL], "functions": [{}] * MAX_REQUEST_TOOLS},
    ],
    ids=["model name", "messages", "tools", "tools and functions"],
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
    check_request_limits({"model": "m" * MAX_MODEL_NAME_CHARS, "messages": messages, "tools": tools})
    with pytest.raises(RequestLimitExceeded, match="X-Quire-Conversation"):
        check_request_limits({"messages": [*messages, user_message("a")]})


WORK = [
    (exchange, "parse_body"),
    (exchange, "parse_chat_request"),
    (recognition, "compute_client_paths"),
    (engine_variants, "_build_envelope"),
    (passthrough.MatchedRequest, "count_tokens"),
    (passthrough, "_render_plain_texts"),
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
        def call(*args: Any) -> Any:
            threads[function.__name__] = threading.current_thread()
            return function(*args)

        return call

    for owner, name in WORK:
        monkeypatch.setattr(owner, name, record_thread(getattr(owner, name)))
    assert (len(content) > MAX_EVENT_LOOP_BODY_BYTES) == in_threads
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message(content))
        assert answer.status_code == 200
        assert up.requests[0].body["messages"] == [user_message(content)]
    assert threads.keys() == {name for _, name in WORK}
    assert {thread is not threading.current_thread() for thread in threads.values()} == {in_threads}


def feed_pieces(accumulator: SSEAccumulator, data: bytes, *, piece_bytes: int = 64 * 1024) -> None:
    for start in range(0, len(data), piece_bytes):
        accumulator.feed(data[start : start + piece_bytes])


def test_an_event_above_the_limit_ends_the_stream():
    accumulator = SSEAccumulator(choice_count=1)
    accumulator.feed(make_chunk_event("before"))
    feed_pieces(accumulator, b"data: " + b"x" * (MAX_EVENT_BYTES - 6))
    with pytest.raises(ModelUnavailable, match="event of more than"):
        accumulator.feed(b"x")
    assert accumulator.build_responses()[0]["choices"][0]["message"]["content"] == "before"
    assert accumulator.remainder == b""


def test_events_after_the_end_of_a_reply_are_limited_together():
    accumulator = SSEAccumulator(choice_count=1)
    accumulator.feed(make_chunk_event("all", "stop"))
    event = b"data: " + b"x" * 100_000 + b"\n\n"
    with pytest.raises(ModelUnavailable):
        feed_pieces(accumulator, event * (MAX_EVENT_BYTES // 100_000 + 1))
    assert accumulator.is_finished
    assert len(accumulator.remainder) < MAX_EVENT_BYTES + 2 * len(event)


async def test_the_reply_before_an_oversized_event_is_recorded(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.server.gateway.sse_accumulator.MAX_EVENT_BYTES", 10_000)
    stream = [make_chunk_event("Half an answer"), make_chunk_event("x" * 50_000), SSE_DONE]
    async with run_fake_upstream(respond_with_stream(*stream)) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message("Hello"), stream=True)
        assert b"event of more than 10,000 bytes" in answer.content
        messages = await harness.load_messages(answer.headers["x-quire-conversation"])
        assert messages == [("user", "Hello"), ("assistant", "Half an answer")]
