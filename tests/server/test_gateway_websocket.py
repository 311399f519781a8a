"""Responses over a WebSocket: the same requests, limits and records as over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gateway_fixtures import GatewayHarness, run_gateway
from responses_helpers import Json, check_events
from server_helpers import create_key_for
from test_gateway_responses import MODEL, run_responses_gateway
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fake_upstream import UpstreamRequest, make_sse_event, run_fake_upstream
from infra.scripted_provider import ProviderRequest, ScriptedCall, ScriptedReply, call_tool
from quire.server import websocket
from quire.store import SqlStore
from quire.wire.responses.websocket import build_error_message

ENDINGS = ("response.completed", "response.incomplete", "response.failed", "error")


def echo(request: ProviderRequest) -> ScriptedReply:
    content = request.items[-1].get("content") or ""
    return ScriptedReply("Answer to " + (content if isinstance(content, str) else content[0]["text"]))


@asynccontextmanager
async def open_websocket(
    harness: GatewayHarness, *, path: str = "/v1/responses", key: str | None = None, **headers: str
) -> AsyncIterator[ClientConnection]:
    url = str(harness.http.base_url).rstrip("/").replace("http://", "ws://")
    authorization = f"Bearer {key}" if key is not None else harness.http.headers["authorization"]
    sent = {"authorization": authorization, **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with connect(f"{url}{path}", additional_headers=sent, max_size=None, proxy=None) as connection:
        yield connection


async def ask(connection: ClientConnection, text: str | list[Json], **fields: Any) -> list[Json]:
    items = [{"type": "message", "role": "user", "content": text}] if isinstance(text, str) else text
    message = {"type": "response.create", "model": MODEL, "input": items, "store": False, **fields}
    await connection.send(json.dumps(message))
    return await read_response(connection)


async def read_response(connection: ClientConnection) -> list[Json]:
    events: list[Json] = []
    async with asyncio.timeout(10):
        while not events or events[-1]["type"] not in ENDINGS:
            events.append(json.loads(await connection.recv()))
    return events


def read_text(events: list[Json]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


async def count_recorded(store: SqlStore) -> list[int]:
    """Messages of each conversation, all of which have one branch."""
    conversations = await store.list_conversations()
    for each in conversations:
        assert len(await store.list_branches(each.id)) == 1
    return [len(await store.read_range(each.id, kinds=["message"])) for each in conversations]


@pytest.mark.parametrize("speaks", ["responses", "chat"])
async def test_turns_of_a_connection_send_new_items_only_and_are_one_conversation(store: SqlStore, speaks: str):
    async with run_responses_gateway(store, echo, speaks) as (_, provider, harness):
        async with open_websocket(harness) as connection:
            previous = None
            for number in range(5):
                events = await ask(connection, f"Q{number}", previous_response_id=previous)
                assert read_text(events) == f"Answer to Q{number}"
                if speaks == "chat":
                    check_events(events)
                previous = events[-1]["response"]["id"]
        texts = [text for number in range(4) for text in (f"Q{number}", f"Answer to Q{number}")]
        sent = [item["content"] for item in provider.requests[-1].items]
        assert [each if isinstance(each, str) else each[0]["text"] for each in sent] == [*texts, "Q4"]
        assert "previous_response_id" not in provider.requests[-1].body
        assert await count_recorded(store) == [10]


async def read_completed(connection: Any) -> Any:
    async with asyncio.timeout(10):
        async for event in connection:
            if event.type == "response.completed":
                return event.response
    raise AssertionError("the response has no end")


async def test_the_openai_client_converses_over_a_websocket(store: SqlStore):
    script = call_tool(ScriptedCall("read", {"path": "a"}), text="Read.")
    tool: Any = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}, "strict": None}
    async with run_responses_gateway(store, script, "chat") as (client, _, _):
        async with client.responses.connect() as connection:
            await connection.response.create(model=MODEL, input="Read a.", tools=[tool], store=False)
            response = await read_completed(connection)
            output: Any = [{"type": "function_call_output", "call_id": response.output[-1].call_id, "output": "text"}]
            await connection.response.create(
                model=MODEL, input=output, tools=[tool], store=False, previous_response_id=response.id
            )
            assert (await read_completed(connection)).output_text == "Read."
        assert await count_recorded(store) == [4]


async def test_a_warm_up_generates_nothing_and_is_continued(store: SqlStore):
    async with run_responses_gateway(store, echo, "responses") as (_, provider, harness):
        async with open_websocket(harness) as connection:
            developer = {"type": "message", "role": "developer", "content": "Be brief."}
            events = await ask(connection, [developer], generate=False)
            check_events(events)
            assert events[-1]["response"]["output"] == []
            assert provider.requests == []
            events = await ask(connection, "Hello", previous_response_id=events[-1]["response"]["id"])
        assert [item["role"] for item in provider.requests[0].items] == ["developer", "user"]
        assert "generate" not in provider.requests[0].body
        assert await count_recorded(store) == [2]


async def test_a_new_connection_continues_the_conversation_with_the_whole_history(store: SqlStore):
    async with run_responses_gateway(store, echo, "responses") as (_, _, harness):
        async with open_websocket(harness) as connection:
            events = await ask(connection, "One")
        output = events[-1]["response"]["output"]
        question, following = ({"type": "message", "role": "user", "content": text} for text in ("One", "Two"))
        async with open_websocket(harness) as connection:
            previous = events[-1]["response"]["id"]
            refused = await ask(connection, "Two", previous_response_id=previous)
            assert (refused[0]["status"], refused[0]["error"]["code"]) == (400, "previous_response_not_found")
            assert read_text(await ask(connection, [question, *output, following])) == "Answer to Two"
        assert await count_recorded(store) == [4]


async def test_metadata_of_a_message_stands_for_the_headers_of_its_request(store: SqlStore):
    async with run_responses_gateway(store, echo, "responses") as (_, provider, harness):
        first, second = '{"request_kind":"turn"}', '{"request_kind":"compact"}'
        beta = "responses_websockets=2026-02-06"
        async with open_websocket(
            harness, x_codex_turn_metadata=first, openai_beta=beta, session_id="s", x_request_id="one"
        ) as connection:
            await ask(connection, "One")
            await ask(connection, "Two", client_metadata={"x-codex-turn-metadata": second, "x-quire-branch": "1"})
        assert [each.headers["x-codex-turn-metadata"] for each in provider.requests] == [first, second]
        assert all("openai-beta" not in each.headers for each in provider.requests)
        assert all("sec-websocket-key" not in each.headers for each in provider.requests)


async def get_refusal(harness: GatewayHarness, **options: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as caught:
        async with open_websocket(harness, **options):
            pass
    response = caught.value.response
    return response.status_code, json.loads(response.body)["error"]["code"]


async def test_handshakes_are_refused_like_requests(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    async with run_responses_gateway(store, echo, "responses") as (_, _, harness):
        assert await get_refusal(harness, key="wrong") == (401, "invalid_key")
        reader = await create_key_for(store, "default", "read")
        assert await get_refusal(harness, key=reader) == (403, "insufficient_scope")
        assert await get_refusal(harness, origin="https://evil.example") == (403, "cross_origin_request")
        assert await get_refusal(harness, path="/v1/models") == (404, "not_found")
        monkeypatch.setattr(websocket, "MAX_TENANT_CONNECTIONS", 1)
        other = await create_key_for(store, "elsewhere")
        own_page = str(harness.http.base_url).rstrip("/")
        async with open_websocket(harness, origin=own_page), open_websocket(harness, key=other):
            # Codex uses HTTP at once at this status.
            assert await get_refusal(harness) == (426, "upgrade_required")
        async with open_websocket(harness) as connection:
            assert read_text(await ask(connection, "Hello")) == "Answer to Hello"


async def test_each_message_is_authenticated_and_counts_against_the_rate_limit(store: SqlStore):
    async with run_responses_gateway(store, echo, "responses", requests_per_minute=3) as (_, provider, harness):
        async with open_websocket(harness) as connection:
            answers = [(await ask(connection, "Hello"))[-1] for _ in range(3)]
            # The handshake is a request, too.
            assert [each["type"] for each in answers] == ["response.completed"] * 2 + ["error"]
            assert answers[-1]["status"] == 429
            assert int(answers[-1]["headers"]["retry-after"]) > 0
        assert len(provider.requests) == 2


async def test_messages_beyond_a_limit_are_refused(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    async with run_responses_gateway(store, echo, "responses", max_request_bytes=50_000) as (_, provider, harness):
        async with open_websocket(harness) as connection:
            assert (await ask(connection, "x" * 60_000))[-1]["status"] == 413
            assert (await ask(connection, [{}] * 250_000))[-1]["status"] == 400
            for text in ("no JSON", "[]", json.dumps({"type": "session.update"})):
                await connection.send(text)
                assert (await read_response(connection))[-1]["error"]["code"] == "invalid_request"
            assert read_text(await ask(connection, "Hello")) == "Answer to Hello"
        monkeypatch.setattr(websocket, "MAX_MESSAGE_FRAMES", 10)
        assert await read_close_code(harness, ["x"] * 12) == 1009
        assert await read_close_code(harness, [b"x" * 30_000_000]) == 1009
        assert len(provider.requests) == 1


async def read_close_code(harness: GatewayHarness, frames: list[str] | list[bytes]) -> int:
    """Sends one message in these frames; returns the code by which the server closes the connection."""
    async with open_websocket(harness) as connection:
        with pytest.raises(ConnectionClosed) as caught:  # noqa: PT012 (the close may arrive before the last frame)
            async with asyncio.timeout(10):
                await connection.send(iter(frames))
                await connection.recv()
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code


async def test_a_connection_that_is_idle_or_sends_ahead_is_closed(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    closed = asyncio.Event()

    async def stall(request: UpstreamRequest) -> None:
        await request.start_sse()
        await request.send_sse(make_sse_event({"type": "response.created", "response": {"id": "r"}}))
        await request.wait_until_closed()
        closed.set()

    async with run_fake_upstream(stall) as upstream:
        upstreams = {"*": {"base_url": upstream.url, "speaks": ["responses"]}}
        async with run_gateway(store, upstream.url, upstreams=upstreams) as harness:
            async with open_websocket(harness) as connection:
                message = json.dumps({"type": "response.create", "model": MODEL, "input": "Hello"})
                await connection.send(message)
                await connection.recv()
                with pytest.raises(ConnectionClosed) as caught:  # noqa: PT012 (it may be closed before the last one)
                    for _ in range(4):
                        await connection.send(message)
                    async with asyncio.timeout(10):
                        await connection.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1008
            async with asyncio.timeout(10):
                # The call is cancelled, as if the client had disconnected.
                await closed.wait()
            monkeypatch.setattr(websocket, "IDLE_SECONDS", 0.05)
            async with open_websocket(harness) as connection:
                with pytest.raises(ConnectionClosed):
                    async with asyncio.timeout(10):
                        await connection.recv()


async def test_items_that_were_dropped_are_asked_for_again(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(websocket, "MAX_TENANT_HISTORY_BYTES", 4_000)
    async with (
        run_responses_gateway(store, echo, "responses") as (_, _, harness),
        open_websocket(harness) as first,
        open_websocket(harness) as second,
    ):
        one = (await ask(first, "x" * 1_200))[-1]["response"]["id"]
        two = (await ask(second, "y" * 1_200))[-1]["response"]["id"]
        refused = await ask(first, "More", previous_response_id=one)
        assert refused[-1]["error"]["code"] == "previous_response_not_found"
        # Another connection's response is no previous one.
        refused = await ask(first, "More", previous_response_id=two)
        assert refused[-1]["error"]["code"] == "previous_response_not_found"
        assert (await ask(second, "More", previous_response_id=two))[-1]["type"] == "response.completed"


async def test_a_client_that_disconnects_cancels_its_response_and_the_rest_is_recorded(store: SqlStore):
    closed = asyncio.Event()

    async def stall(request: UpstreamRequest) -> None:
        await request.start_sse()
        item = {"id": "m", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        await request.send_sse(
            make_sse_event({"type": "response.created", "response": {"id": "r"}}),
            make_sse_event({"type": "response.output_item.added", "output_index": 0, "item": item}),
            make_sse_event(
                {
                    "type": "response.output_text.delta",
                    "output_index": 0,
                    "content_index": 0,
                    "item_id": "m",
                    "delta": "Once",
                }
            ),
        )
        await request.wait_until_closed()
        closed.set()

    async with run_fake_upstream(stall) as upstream:
        upstreams = {"*": {"base_url": upstream.url, "speaks": ["responses"]}}
        async with run_gateway(store, upstream.url, upstreams=upstreams) as harness:
            async with open_websocket(harness, x_quire_conversation="c") as connection:
                await connection.send(json.dumps({"type": "response.create", "model": MODEL, "input": "Tell."}))
                while json.loads(await connection.recv())["type"] != "response.output_text.delta":
                    pass
                connection.transport.abort()
            async with asyncio.timeout(10):
                await closed.wait()
                while len(messages := await harness.load_messages("c")) < 2:  # noqa: ASYNC110 (written after the close)
                    await asyncio.sleep(0.01)
        assert messages == [("user", "Tell."), ("assistant", "Once")]


async def test_a_server_that_stops_ends_idle_connections_and_lets_a_response_finish(store: SqlStore):
    may_end = asyncio.Event()

    async def respond_late(request: UpstreamRequest) -> None:
        await request.start_sse()
        await request.send_sse(make_sse_event({"type": "response.created", "response": {"id": "r"}}))
        await may_end.wait()
        item = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Late.", "annotations": []}],
        }
        response = {"id": "r", "object": "response", "status": "completed", "output": [item], "usage": None}
        await request.send_sse(
            make_sse_event({"type": "response.output_item.done", "output_index": 0, "item": item}),
            make_sse_event({"type": "response.completed", "response": response}),
        )
        await request.end_sse()

    codes: list[int] = []

    async def wait_for_close(connection: ClientConnection) -> None:
        try:
            await connection.recv()
        except ConnectionClosed as error:
            codes.append(error.rcvd.code if error.rcvd is not None else 0)

    async with run_fake_upstream(respond_late) as upstream:
        upstreams = {"*": {"base_url": upstream.url, "speaks": ["responses"]}}
        manager = run_gateway(store, upstream.url, upstreams=upstreams)
        harness = await manager.__aenter__()
        async with open_websocket(harness) as idle, open_websocket(harness, x_quire_conversation="c") as busy:
            await busy.send(json.dumps({"type": "response.create", "model": MODEL, "input": "Tell."}))
            assert json.loads(await busy.recv())["type"] == "response.created"
            stopping = asyncio.ensure_future(manager.__aexit__(None, None, None))
            async with asyncio.timeout(10):
                await wait_for_close(idle)
                assert codes == [1012]
                may_end.set()
                assert (await read_response(busy))[-1]["type"] == "response.completed"
                await wait_for_close(busy)
                await stopping
        assert codes == [1012, 1012]
        assert [entry.message.text for entry in await store.read_range("c", kinds=["message"])] == ["Tell.", "Late."]


def test_an_error_that_is_no_json_is_quoted():
    message = json.loads(build_error_message(502, b"<html>", {}))
    assert (message["type"], message["status"], message["error"]["message"]) == ("error", 502, "<html>")
