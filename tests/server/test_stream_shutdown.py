"""Graceful shutdown of streams: each gets a last event, and partial replies are recorded."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.responses import StreamingResponse
from gateway_fixtures import user_message
from openai import APIError, AsyncOpenAI
from opentelemetry import trace
from server_helpers import create_key_for, serve_app

from fake_upstream import UpstreamRequest, make_chunk_event, run_fake_upstream
from quire.server.app import create_app
from quire.server.gateway import router
from quire.server.lifecycle import SHUTDOWN_EVENT, StreamRegistry
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import SqlStore

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


async def stall_mid_stream(request: UpstreamRequest) -> None:
    await request.start_sse()
    await request.send_sse(make_chunk_event({"role": "assistant", "content": "Once"}), make_chunk_event(" upon"))
    await request.wait_until_closed()


@asynccontextmanager
async def serve_gateway(store: SqlStore, url: str) -> AsyncIterator[tuple[FastAPI, AsyncOpenAI]]:
    settings = Settings(model="gpt-4o", base_url=url)
    async with UpstreamClient() as http_client:
        app = create_app(ServerState(store, settings, http_client=http_client))
        if not any(getattr(route, "path", "") == "/v1/chat/completions" for route in app.routes):
            app.include_router(router)
        key = await create_key_for(store, "default")
        async with (
            serve_app(app) as address,
            AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0) as client,
        ):
            yield app, client


async def test_openais_client_reads_the_last_event_as_an_error_and_the_reply_is_recorded(store: SqlStore):
    async with run_fake_upstream(stall_mid_stream) as up, serve_gateway(store, up.url) as (app, client):
        stream = await client.chat.completions.create(
            model="gpt-4o",
            messages=[user_message("Tell me a story.")],
            stream=True,
            extra_headers={"X-Quire-Conversation": "c", "traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"},
        )
        text = ""
        with pytest.raises(APIError) as caught:  # noqa: PT012 (it is raised where the next chunk is awaited)
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if text.endswith("upon"):
                    app.state.streams.cancel_all()
        assert caught.value.code == "server_stopping"
        assert len(app.state.streams) == 0
        [question, reply] = await store.read_range("c", kinds=["message"])
        assert (question.message.text, reply.message.text) == ("Tell me a story.", "Once upon")
        assert reply.metadata is not None
        assert reply.metadata.incomplete
        assert up.requests[0].headers["traceparent"].split("-")[1] == TRACE_ID
    assert not trace.get_current_span().get_span_context().is_valid


def add_stream_routes(app: FastAPI) -> None:
    routes = APIRouter()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b": beat\n\n"
            await asyncio.sleep(0.01)

    @routes.get("/endless")
    @routes.post("/ending")
    async def stream_events() -> StreamingResponse:
        return StreamingResponse(endless(), media_type="text/event-stream")

    @routes.get("/lines")
    async def stream_lines() -> StreamingResponse:
        async def numbered_lines() -> AsyncIterator[bytes]:
            for number in range(20):
                yield f"{number}\n".encode()
                await asyncio.sleep(0.01)

        return StreamingResponse(numbered_lines(), media_type="application/x-ndjson")

    app.include_router(routes)


@pytest.fixture
async def app(store: SqlStore) -> AsyncIterator[FastAPI]:
    async with UpstreamClient() as http_client:
        app = create_app(ServerState(store, Settings(), http_client=http_client))
        add_stream_routes(app)
        yield app


async def read_body(client: httpx2.AsyncClient, method: str, path: str, started: asyncio.Event) -> bytes:
    async with client.stream(method, path) as response:
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            started.set()
    return body


async def test_endless_streams_end_first_and_replies_when_their_time_is_over(app: FastAPI):
    streams: StreamRegistry = app.state.streams
    async with serve_app(app) as address, httpx2.AsyncClient(base_url=address) as client:
        started = [asyncio.Event() for _ in range(3)]
        endless, ending, lines = (
            asyncio.create_task(read_body(client, *route, event))
            for route, event in zip((("GET", "/endless"), ("POST", "/ending"), ("GET", "/lines")), started, strict=True)
        )
        for each in started:
            await each.wait()
        assert len(streams) == 2
        streams.begin_shutdown()
        assert (await endless).endswith(SHUTDOWN_EVENT)
        assert not ending.done()
        # An endless stream that begins now ends at once.
        assert (await read_body(client, "GET", "/endless", asyncio.Event())).endswith(SHUTDOWN_EVENT)
        streams.cancel_all()
        assert (await ending).endswith(SHUTDOWN_EVENT)
        # Other streams are not affected.
        assert await lines == b"".join(f"{number}\n".encode() for number in range(20))
        await streams.wait_closed(timeout_seconds=5)
        assert len(streams) == 0


async def test_a_client_that_goes_away_is_just_gone(app: FastAPI):
    async with serve_app(app) as address, httpx2.AsyncClient(base_url=address) as client:
        async with client.stream("GET", "/endless") as response:
            await anext(response.aiter_bytes())
        async with asyncio.timeout(5):
            while len(app.state.streams):  # noqa: ASYNC110 (there is no event for it)
                await asyncio.sleep(0.01)


def test_the_last_event_is_one_event_of_one_line():
    head, data, *rest = SHUTDOWN_EVENT.decode().split("\n")
    assert head == "event: server_stopping"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "server_stopping"
    assert rest == ["", ""]
