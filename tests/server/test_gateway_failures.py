"""Gateway failures: what the client receives, what is recorded, and that nothing acknowledged is lost."""

import asyncio
import json
import socket

import pytest
from gateway_fixtures import GatewayHarness, assistant_message, run_gateway, user_message

from fake_upstream import (
    SSE_DONE,
    UpstreamRequest,
    make_chunk_event,
    respond_with_stream,
    respond_with_text,
    run_fake_upstream,
)
from quire.errors import StoreUnavailable
from quire.store import SqlStore


async def never_answer(request: UpstreamRequest) -> None:
    await request.wait_until_closed()


async def reset_connection(request: UpstreamRequest) -> None:
    request.abort_connection()


async def reset_mid_body(request: UpstreamRequest) -> None:
    await request.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n")
    await request.send(b'{"choices": [{"mess')
    request.abort_connection()


async def send_truncated_json(request: UpstreamRequest) -> None:
    """Sends half a JSON document with a matching content length."""
    await request.respond(b'{"choices": [{"message": {"role": "assistant", "con')


async def redirect(request: UpstreamRequest) -> None:
    await request.respond({"moved": "elsewhere"}, 307, Location="https://evil.example/v1")


async def reset_mid_stream(request: UpstreamRequest) -> None:
    await request.start_sse()
    await request.send_sse(make_chunk_event({"role": "assistant", "content": "Once"}), make_chunk_event(" upon"))
    await asyncio.sleep(0.05)
    request.abort_connection()


async def stall_mid_stream(request: UpstreamRequest) -> None:
    await request.start_sse()
    await request.send_sse(make_chunk_event("Once"), make_chunk_event(" upon"))
    await request.wait_until_closed()


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (never_answer, 504, "model_timeout"),
        (reset_connection, 502, "model_unavailable"),
        (reset_mid_body, 502, "model_unavailable"),
        (send_truncated_json, 502, "model_unavailable"),
        (redirect, 502, "model_unavailable"),
    ],
)
async def test_an_upstream_that_fails_before_its_first_word_is_a_clear_error(
    store: SqlStore, fault, status: int, code: str
):
    async with run_fake_upstream(fault) as up, run_gateway(store, up.url, timeout_seconds=0.3) as harness:
        answer = await harness.ask(user_message("Hello"), stream=True)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer.json()["error"]["code"] == code
        assert up.url.split("/")[2] in answer.json()["detail"] or fault is send_truncated_json
        assert answer.headers["content-type"] == "application/problem+json"
        assert "location" not in answer.headers
        assert "evil.example" not in answer.text
        [exchange] = await store.list_unanswered()
        assert exchange.outcome == ("unanswered" if fault in (never_answer, reset_connection, redirect) else "broken")
        assert (exchange.seq, exchange.error) == (None, answer.json()["detail"])


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        (
            "http://127.0.0.1:9/v1",
            "model_unavailable",
            "Cannot connect to 127.0.0.1:9: connection refused; check `base_url` and that the server is running.",
        ),
        (
            "https://api.example.com/v1",
            "model_unavailable",
            "Cannot find api.example.com: check `base_url` and the network.",
        ),
        (
            "nowhere",
            "model_request_rejected",
            "Cannot call the upstream: its URL needs `http://` or `https://` and a host; check `base_url`.",
        ),
    ],
)
async def test_an_upstream_that_cannot_be_reached_is_named(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, url: str, code: str, message: str
):
    def fail(*args: object, **kwargs: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with run_gateway(store, url) as harness:
        monkeypatch.setattr(socket, "getaddrinfo", fail)
        answer = await harness.ask(user_message("Hello"))
        assert (answer.status_code, answer.json()["code"], answer.json()["detail"]) == (502, code, message)
        assert answer.json()["error"]["message"] == message


@pytest.mark.parametrize(
    ("fault", "code"), [(reset_mid_stream, "model_unavailable"), (stall_mid_stream, "model_timeout")]
)
async def test_a_stream_that_breaks_off_ends_with_an_error_and_is_recorded_as_incomplete(
    store: SqlStore, fault, code: str
):
    async with run_fake_upstream(fault) as up, run_gateway(store, up.url, timeout_seconds=0.3) as harness:
        answer = await harness.ask(user_message("Tell"), stream=True, x_quire_conversation="c")
        *words, last = [block for block in answer.content.split(b"\n\n") if block]
        assert b"".join(words).count(b"data:") == 2
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == code
        assert b"[DONE]" not in answer.content
        assert await harness.load_messages("c") == [("user", "Tell"), ("assistant", "Once upon")]
        reply = await store.get_entry("c", 2)
        assert reply.metadata.incomplete
        assert (await store.get_request(answer.headers["x-quire-request"])).seq == 2


async def test_an_error_inside_the_upstreams_stream_passes_through(store: SqlStore):
    error_event = b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
    async with (
        run_fake_upstream(respond_with_stream(make_chunk_event("Once"), error_event)) as up,
        run_gateway(store, up.url) as harness,
    ):
        answer = await harness.ask(user_message("Tell"), stream=True, x_quire_conversation="c")
        assert answer.content == make_chunk_event("Once") + error_event
        assert (await store.get_entry("c", 2)).metadata.incomplete


async def test_a_stream_without_a_done_is_whole_if_it_says_why_it_ended(store: SqlStore):
    async with (
        run_fake_upstream(respond_with_stream(make_chunk_event("All"), make_chunk_event({}, "stop"))) as up,
        run_gateway(store, up.url) as harness,
    ):
        answer = await harness.ask(user_message("Tell"), stream=True, x_quire_conversation="c")
        assert answer.content == make_chunk_event("All") + make_chunk_event({}, "stop")
        assert not (await store.get_entry("c", 2)).metadata.incomplete


async def test_a_partial_reply_is_recorded_and_the_upstream_released_when_the_client_disconnects(store: SqlStore):
    released = asyncio.Event()

    async def stream_forever(request: UpstreamRequest) -> None:
        await request.start_sse()
        await request.send_sse(make_chunk_event("Once"), make_chunk_event(" upon"))
        await request.wait_until_closed()
        released.set()

    async with run_fake_upstream(stream_forever) as up, run_gateway(store, up.url, timeout_seconds=60) as harness:
        body = {"model": "gpt-4o", "messages": [user_message("Tell")], "stream": True}
        headers = {"x-quire-conversation": "c"}
        async with harness.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            received_bytes = b""
            async for chunk in answer.aiter_bytes():
                received_bytes += chunk
                if b"upon" in received_bytes:
                    break
        await asyncio.wait_for(released.wait(), 10)
        await _wait_until_recorded(harness, "c", 2)
        assert await harness.load_messages("c") == [("user", "Tell"), ("assistant", "Once upon")]
        assert (await store.get_entry("c", 2)).metadata.incomplete


@pytest.mark.parametrize("stream", [False, True])
async def test_the_upstream_is_released_when_the_client_does_not_wait_for_the_first_word(store: SqlStore, stream: bool):
    received, released = asyncio.Event(), asyncio.Event()

    async def hang(request: UpstreamRequest) -> None:
        received.set()
        await request.wait_until_closed()
        released.set()

    async with run_fake_upstream(hang) as up, run_gateway(store, up.url, timeout_seconds=60) as harness:
        waiting = asyncio.ensure_future(harness.ask(user_message("Tell"), stream=stream))
        await asyncio.wait_for(received.wait(), 10)
        waiting.cancel()
        await asyncio.wait_for(released.wait(), 10)
        async with asyncio.timeout(10):
            while not (found := await store.list_unanswered())[0].completed_at:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert [each.outcome for each in found] == ["cancelled"]


async def _wait_until_recorded(harness: GatewayHarness, conversation: str, count: int) -> None:
    async with asyncio.timeout(10):
        while True:
            if await harness.store.list_conversations() and len(await harness.load_messages(conversation)) >= count:
                return
            await asyncio.sleep(0.02)


class StoreOutage:
    """Makes methods of the store fail, for a number of calls or for good."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def fail_method(self, name: str, *, times: int | None = None) -> None:
        original = getattr(SqlStore, name)
        remaining = [times]

        async def fail(store: SqlStore, *args: object, **kwargs: object) -> object:
            if remaining[0] == 0:
                return await original(store, *args, **kwargs)
            remaining[0] = None if remaining[0] is None else remaining[0] - 1
            raise StoreUnavailable

        self._patch.setattr(SqlStore, name, fail)


@pytest.fixture
def store_outage(monkeypatch: pytest.MonkeyPatch) -> StoreOutage:
    monkeypatch.setattr("quire.proxy.reply_recorder.STORE_RETRY_DELAYS_SECONDS", (0.01, 0.01))
    return StoreOutage(monkeypatch)


async def test_while_the_log_is_away_requests_are_refused_before_they_cost_anything(
    store: SqlStore, store_outage: StoreOutage
):
    async with run_fake_upstream(respond_with_text("a1")) as up, run_gateway(store, up.url) as harness:
        store_outage.fail_method("match_history")
        answer = await harness.ask(user_message("Hello"))
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert answer.headers["retry-after"] == "1"
        assert up.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_while_the_log_is_away_requests_pass_if_the_settings_say_so(
    store: SqlStore, store_outage: StoreOutage, stream: bool
):
    async with (
        run_fake_upstream(respond_with_text("a1")) as up,
        run_gateway(store, up.url, on_store_failure="pass_through") as harness,
    ):
        store_outage.fail_method("match_history")
        answer = await harness.ask(user_message("Hello"), stream=stream)
        assert answer.status_code == 200
        assert answer.headers["x-quire-recorded"] == "no"
        assert "a1" in answer.text
        assert up.requests[0].body == {"model": "gpt-4o", "messages": [user_message("Hello")], "stream": stream}


async def test_a_log_that_comes_back_in_time_gets_the_reply(store: SqlStore, store_outage: StoreOutage):
    async with run_fake_upstream(respond_with_text("a1")) as up, run_gateway(store, up.url) as harness:
        store_outage.fail_method("record_reply", times=2)
        answer = await harness.ask(user_message("Hello"))
        assert answer.status_code == 200
        assert await harness.load_messages(answer.headers["x-quire-conversation"]) == [
            ("user", "Hello"),
            ("assistant", "a1"),
        ]


async def test_a_reply_that_cannot_be_recorded_is_not_acknowledged(store: SqlStore, store_outage: StoreOutage):
    async with run_fake_upstream(respond_with_text("a1")) as up, run_gateway(store, up.url) as harness:
        store_outage.fail_method("record_reply")
        assert (await harness.ask(user_message("Hello"))).status_code == 503
        streamed = await harness.ask(user_message("Hello"), stream=True)
        assert b"[DONE]" not in streamed.content
        assert b'"finish_reason": "stop"' not in streamed.content
        assert b"store_unavailable" in streamed.content


async def test_a_reply_that_cannot_be_recorded_is_passed_through_if_the_settings_say_so(
    store: SqlStore, store_outage: StoreOutage
):
    async with (
        run_fake_upstream(respond_with_text("a1")) as up,
        run_gateway(store, up.url, on_store_failure="pass_through") as harness,
    ):
        store_outage.fail_method("record_reply")
        answer = await harness.ask(user_message("Hello"))
        assert (answer.status_code, answer.headers["x-quire-recorded"]) == (200, "no")
        assert (await harness.ask(user_message("Hello"), stream=True)).content.endswith(SSE_DONE)


async def test_after_a_reply_that_broke_off_a_client_may_ask_again_or_go_on(store: SqlStore):
    async with (
        run_fake_upstream(reset_mid_stream, respond_with_text("a2"), respond_with_text("a3")) as up,
        run_gateway(store, up.url) as harness,
    ):
        await harness.ask(user_message("Tell"), stream=True, x_quire_conversation="c")
        again = await harness.ask(user_message("Tell"), x_quire_conversation="c")
        on = await harness.ask(
            user_message("Tell"), assistant_message("Once upon"), user_message("Go on"), x_quire_conversation="c"
        )
        assert (again.headers["x-quire-branch"], on.headers["x-quire-branch"]) == ("1", "0")
        assert [text for _, text in await harness.load_messages("c")] == ["Tell", "Once upon", "Go on", "a3"]
        assert [text for _, text in await harness.load_messages("c", 1)] == ["Tell", "a2"]
