"""Streams at the end of a server: each has a last event, and what had come of a reply is kept."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from calling import key_for, served
from fastapi import APIRouter, FastAPI
from fastapi.responses import StreamingResponse
from gateway_parts import user
from openai import APIError, AsyncOpenAI
from opentelemetry import trace

from quire.log import SqlStore
from quire.server.app import create_app
from quire.server.gateway import router
from quire.server.serving import Serving
from quire.server.stopping import LAST_EVENT, Stopping
from quire.settings import Settings
from upstream import Asked, event, upstream

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def falls_silent(asked: Asked) -> None:
    await asked.begin_events()
    await asked.events(event({"role": "assistant", "content": "Once"}), event(" upon"))
    await asked.until_closed()


@asynccontextmanager
async def gateway(store: SqlStore, url: str) -> AsyncIterator[tuple[FastAPI, AsyncOpenAI]]:
    settings = Settings(model="gpt-4o", base_url=url)
    async with httpx.AsyncClient(timeout=20) as outward:
        app = create_app(Serving(store, settings, client=outward))
        if not any(getattr(route, "path", "") == "/v1/chat/completions" for route in app.routes):
            app.include_router(router)
        key = await key_for(store, "default")
        async with (
            served(app) as address,
            AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0) as client,
        ):
            yield app, client


async def test_openais_client_takes_the_last_event_for_an_error_and_the_reply_is_kept(store: SqlStore):
    async with upstream(falls_silent) as up, gateway(store, up.url) as (app, client):
        stream = await client.chat.completions.create(
            model="gpt-4o",
            messages=[user("Tell me a story.")],
            stream=True,
            extra_headers={"X-Quire-Conversation": "c", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
        )
        heard = ""
        with pytest.raises(APIError) as caught:  # noqa: PT012 (it is raised where the next piece is waited for)
            async for chunk in stream:
                heard += chunk.choices[0].delta.content or ""
                if heard.endswith("upon"):
                    app.state.stopping.end_streams()
        assert caught.value.code == "server_stopping"
        assert len(app.state.stopping) == 0
        [question, reply] = await store.range("c", kinds=["message"])
        assert (question.message.text, reply.message.text) == ("Tell me a story.", "Once upon")
        assert reply.notes is not None
        assert reply.notes.unfinished
        assert up.asked[0].headers["traceparent"].split("-")[1] == TRACE
    assert not trace.get_current_span().get_span_context().is_valid


def streaming(stopping_app: FastAPI) -> None:
    routes = APIRouter()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b": beat\n\n"
            await asyncio.sleep(0.01)

    @routes.get("/endless")
    @routes.post("/ending")
    async def told() -> StreamingResponse:
        return StreamingResponse(endless(), media_type="text/event-stream")

    @routes.get("/lines")
    async def lines() -> StreamingResponse:
        async def some() -> AsyncIterator[bytes]:
            for number in range(20):
                yield f"{number}\n".encode()
                await asyncio.sleep(0.01)

        return StreamingResponse(some(), media_type="application/x-ndjson")

    stopping_app.include_router(routes)


@pytest.fixture
async def app(store: SqlStore) -> AsyncIterator[FastAPI]:
    async with httpx.AsyncClient() as outward:
        made = create_app(Serving(store, Settings(), client=outward))
        streaming(made)
        yield made


async def body_of(client: httpx.AsyncClient, method: str, path: str, heard: asyncio.Event) -> bytes:
    async with client.stream(method, path) as response:
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            heard.set()
    return body


async def test_endless_streams_end_first_and_replies_when_their_time_is_over(app: FastAPI):
    stopping: Stopping = app.state.stopping
    async with served(app) as address, httpx.AsyncClient(base_url=address) as client:
        heard = [asyncio.Event() for _ in range(3)]
        endless, ending, lines = (
            asyncio.create_task(body_of(client, *asked, told))
            for asked, told in zip((("GET", "/endless"), ("POST", "/ending"), ("GET", "/lines")), heard, strict=True)
        )
        for each in heard:
            await each.wait()
        assert len(stopping) == 2
        stopping.begin()
        assert (await endless).endswith(LAST_EVENT)
        assert not ending.done()
        # An endless stream that begins now is told so at once.
        assert (await body_of(client, "GET", "/endless", asyncio.Event())).endswith(LAST_EVENT)
        stopping.end_streams()
        assert (await ending).endswith(LAST_EVENT)
        # What is no stream of events is no business of ours.
        assert await lines == b"".join(f"{number}\n".encode() for number in range(20))
        await stopping.all_closed(within=5)
        assert len(stopping) == 0


async def test_a_client_that_goes_away_is_just_gone(app: FastAPI):
    async with served(app) as address, httpx.AsyncClient(base_url=address) as client:
        async with client.stream("GET", "/endless") as response:
            await anext(response.aiter_bytes())
        async with asyncio.timeout(5):
            while len(app.state.stopping):  # noqa: ASYNC110 (nobody tells when it is)
                await asyncio.sleep(0.01)


def test_the_last_event_is_one_event_of_one_line():
    head, data, *rest = LAST_EVENT.decode().split("\n")
    assert head == "event: server_stopping"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "server_stopping"
    assert rest == ["", ""]
