"""Background responses: queued, polled, streamed from a position, cancelled, and taken over by another process."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from gateway_fixtures import GatewayHarness, run_gateway
from openai import AsyncOpenAI
from responses_helpers import Json, check_events, check_response, parse_events
from server_helpers import create_key_for
from test_gateway_responses import MODEL, run_responses_gateway

from infra.scripted_provider import ProviderRequest, ScriptedError, ScriptedReply
from quire.errors import StoreBusy
from quire.server.gateway import background
from quire.server.gateway.background import BackgroundResponses
from quire.store import SqlStore
from quire.turns.events import TurnEvents

pytestmark = pytest.mark.every_database

FINAL = ("completed", "failed", "cancelled", "incomplete")


def echo(request: ProviderRequest) -> ScriptedReply:
    content = request.items[-1]["content"]
    return ScriptedReply("Answer to " + (content if isinstance(content, str) else content[0]["text"]))


async def submit(client: AsyncOpenAI, text: str, **more: Any) -> str:
    response = await client.responses.create(model=MODEL, input=text, background=True, **more)
    assert (response.status, response.background) == ("queued", True)
    return response.id


async def wait_for(client: AsyncOpenAI, response_id: str) -> Any:
    async with asyncio.timeout(20):
        while True:
            response = await client.responses.retrieve(response_id)
            if response.status in FINAL:
                return response
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("speaks", ["responses", "chat"])
async def test_a_response_is_polled_and_recorded_once(store: SqlStore, speaks: str):
    async with run_responses_gateway(store, echo, speaks) as (client, provider, harness):
        response_id = await submit(client, "One")
        response = await wait_for(client, response_id)
        assert (response.status, response.output_text, response.id) == ("completed", "Answer to One", response_id)
        check_response((await harness.http.get(f"/v1/responses/{response_id}")).json())
        assert "background" not in provider.requests[0].body
        following = await client.responses.create(model=MODEL, input="Two", previous_response_id=response_id)
        assert following.output_text == "Answer to Two"
        (conversation,) = await store.list_conversations()
        assert await harness.load_messages(conversation.id) == [
            ("user", "One"), ("assistant", "Answer to One"), ("user", "Two"), ("assistant", "Answer to Two"),
        ]  # fmt: skip
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(response_id)


@pytest.mark.parametrize("speaks", ["responses", "chat"])
async def test_events_are_streamed_from_a_position(store: SqlStore, speaks: str):
    async with run_responses_gateway(store, echo, speaks) as (_, _, harness):
        body = {"model": MODEL, "input": "One", "background": True, "stream": True}
        events = parse_events((await harness.http.post("/v1/responses", json=body)).content)
        if speaks == "chat":
            check_events(events)
        response_id = events[-1]["response"]["id"]
        assert {event["response"]["id"] for event in events if "response" in event} == {response_id}
        path = f"/v1/responses/{response_id}?stream=true&starting_after=3"
        assert parse_events((await harness.http.get(path)).content) == events[4:]
        whole = (await harness.http.get(f"/v1/responses/{response_id}")).json()
        assert whole["output"][0]["content"][0]["text"] == "Answer to One"


async def test_a_failed_response_says_why(store: SqlStore):
    error = ScriptedError(403, "permission_error", "No entry.", "no_entry")
    async with run_responses_gateway(store, lambda _: ScriptedReply(error=error), "chat") as (client, _, harness):
        response = await wait_for(client, await submit(client, "One"))
        assert response.status == "failed"
        assert "No entry." in response.error.message
        events = await harness.http.get(f"/v1/responses/{response.id}?stream=true")
        assert parse_events(events.content)[-1]["type"] == "response.failed"
        assert await store.list_conversations() == []


async def test_a_response_is_complete_although_its_events_cannot_be_stored(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    async def fail(*_: object) -> None:
        raise StoreBusy

    async with run_responses_gateway(store, echo, "chat") as (client, provider, _):
        monkeypatch.setattr(TurnEvents, "append", fail)
        response = await wait_for(client, await submit(client, "One"))
        assert (response.status, response.output_text) == ("completed", "Answer to One")
        assert len(provider.requests) == 1


async def test_requests_that_cannot_run_are_refused_at_once(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background, "MAX_TENANT_OPEN", 0)
    async with run_responses_gateway(store, echo, "chat") as (client, provider, harness):
        with pytest.raises(openai.BadRequestError, match="store"):
            await submit(client, "One", store=False)
        with pytest.raises(openai.BadRequestError, match="not found"):
            await submit(client, "One", previous_response_id="resp_unknown")
        with pytest.raises(openai.RateLimitError, match="background responses"):
            await submit(client, "One")
        upstreams = {"*": {"base_url": provider.openai_url, "speaks": ["chat"], "credentials": "client"}}
        await harness.server_state.change_settings({"upstreams": upstreams})
        answer = await harness.http.post("/v1/responses", json={"model": MODEL, "input": "One", "background": True})
        assert answer.status_code >= 400
        assert provider.requests == []


class Gate:
    """A script whose replies wait until the test lets them through."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __call__(self, request: ProviderRequest) -> ScriptedReply:
        assert self.opened.wait(20)
        return echo(request)


async def wait_for_requests(provider: Any, count: int) -> None:
    async with asyncio.timeout(20):
        while len(provider.requests) < count:  # noqa: ASYNC110 (the provider runs in threads)
            await asyncio.sleep(0.01)


async def test_a_response_is_cancelled_and_belongs_to_its_tenant(store: SqlStore):
    gate = Gate()
    async with run_responses_gateway(store, gate, "responses") as (client, provider, harness):
        response_id = await submit(client, "One")
        await wait_for_requests(provider, 1)
        assert (await client.responses.retrieve(response_id)).status == "in_progress"
        other = await create_key_for(store, "elsewhere")
        headers = {"authorization": f"Bearer {other}"}
        for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", ""), ("GET", "?stream=true")):
            answer = await harness.http.request(method, f"/v1/responses/{response_id}{path}", headers=headers)
            assert answer.status_code == 404, (method, path)
        assert (await client.responses.cancel(response_id)).status == "cancelled"
        assert (await client.responses.cancel(response_id)).status == "cancelled"
        assert (await client.responses.retrieve(response_id)).status == "cancelled"
        gate.opened.set()
        await client.responses.delete(response_id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response_id)


@asynccontextmanager
async def run_two_nodes(store: SqlStore, url: str) -> AsyncIterator[tuple[GatewayHarness, GatewayHarness]]:
    upstreams = {"*": {"base_url": url, "speaks": ["responses"]}}
    async with (
        run_gateway(store, url, upstreams=upstreams) as first,
        run_gateway(store, url, upstreams=upstreams) as second,
    ):
        yield first, second


async def test_a_node_that_stops_hands_its_responses_over(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    services: list[BackgroundResponses] = []
    original = BackgroundResponses.__init__

    def remember(self: BackgroundResponses, *args: Any) -> None:
        original(self, *args)
        services.append(self)

    monkeypatch.setattr(BackgroundResponses, "__init__", remember)
    gate = Gate()
    async with (
        run_responses_gateway(store, gate, "responses") as (client, provider, _),
        run_two_nodes(store, provider.openai_url) as (second, third),
    ):
        ids = [await submit(client, f"Q{number}") for number in range(3)]
        await wait_for_requests(provider, 3)
        # The stopped node records nothing of what it gives up.
        await services[0].close()
        gate.opened.set()
        # Nobody polls: another node finds the responses by itself.
        await second.http.get("/v1/responses/unknown")
        async with services[1].recover():
            pass_on: list[Json] = []
            async with asyncio.timeout(20):
                for response_id in ids:
                    while True:
                        answer = (await third.http.get(f"/v1/responses/{response_id}")).json()
                        if answer["status"] in FINAL:
                            break
                        await asyncio.sleep(0.05)
                    pass_on.append(answer)
        assert [each["output"][0]["content"][0]["text"] for each in pass_on] == [f"Answer to Q{n}" for n in range(3)]
        assert len(await store.list_conversations()) == 3
        for conversation in await store.list_conversations():
            assert len(await store.read_range(conversation.id, kinds=["message"])) == 2


async def test_a_purge_removes_requests_that_wait(store: SqlStore):
    gate = Gate()
    gate.opened.set()
    async with run_responses_gateway(store, gate, "chat") as (client, provider, _):
        first = await wait_for(client, await submit(client, "One"))
        gate.opened.clear()
        second = await submit(client, "Two", previous_response_id=first.id)
        await wait_for_requests(provider, 2)
        row = await store.background.get(second)
        assert row is not None
        assert "Two" in row.request
        await store.purge(row.conversation)
        assert await store.background.get(second) is None
        gate.opened.set()
