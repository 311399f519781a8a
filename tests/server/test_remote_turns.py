"""A turn that runs on one node is streamed by the other: the same events, from the start, each once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from fleet import Fleet
from server_helpers import (
    EventReader,
    ScriptedAgent,
    SseEvent,
    create_key_for,
    open_event_stream,
    serve_app,
    tool_call_reply,
)

from quire.server import live_events, turn_relay
from quire.server.app import create_app
from quire.server.state import ServerState
from quire.store import SqlStore
from quire.testing.scripted_model import DelayedReply

pytestmark = pytest.mark.every_postgres


class Node:
    """A second server on the same database."""

    def __init__(self, state: ServerState, client: httpx2.AsyncClient) -> None:
        self.state, self.client = state, client


@asynccontextmanager
async def open_node(database_url: str, server_state: ServerState, tenant: str = "default") -> AsyncIterator[Node]:
    async with SqlStore.open(database_url) as store, httpx2.AsyncClient() as http_client:
        state = ServerState(store, server_state.settings, http_client=http_client)
        headers = {"Authorization": f"Bearer {await create_key_for(store, tenant)}"}
        async with (
            serve_app(create_app(state)) as address,
            httpx2.AsyncClient(base_url=address, headers=headers, timeout=30) as client,
        ):
            yield Node(state, client)


@pytest.fixture
async def other_node(database_url: str, server_state: ServerState) -> AsyncIterator[Node]:
    async with open_node(database_url, server_state) as node:
        yield node


def turn_events(events: list[SseEvent]) -> list[dict[str, Any]]:
    return [each.data for each in events if each.event != "branch_changed"]


async def read_turn(reader: EventReader) -> list[dict[str, Any]]:
    return turn_events(await reader.read_until("turn_ended", timeout_seconds=30))


async def test_both_nodes_stream_the_same_events(
    live_client: httpx2.AsyncClient, other_node: Node, conversation: str, scripted: ScriptedAgent
):
    scripted.set_script(DelayedReply(0.3, "the whole reply, word by word"))
    async with (
        open_event_stream(live_client, f"{conversation}/events") as here,
        open_event_stream(other_node.client, f"{conversation}/events") as there,
    ):
        await here.read_next()
        await there.read_next()
        async with open_event_stream(live_client, f"{conversation}/send", json={"message": "well?"}) as sender:
            sent = await read_turn(sender)
            assert await read_turn(here) == sent
            assert await read_turn(there) == sent
    assert "".join(each["text"] for each in sent if each["event"] == "text") == "the whole reply, word by word"


async def test_a_late_subscriber_gets_the_turn_from_its_start(
    live_client: httpx2.AsyncClient, other_node: Node, conversation: str, scripted: ScriptedAgent
):
    scripted.set_script(tool_call_reply("call-1", text="Let me see."), "Here it is.")
    async with open_event_stream(live_client, f"{conversation}/send", json={"message": "well?"}) as sender:
        sent = turn_events(await sender.read_until("approval_requested"))
        async with open_event_stream(other_node.client, f"{conversation}/events") as first:
            seen = turn_events(await first.read_until("approval_requested", timeout_seconds=30))
            async with open_event_stream(other_node.client, f"{conversation}/events") as second:
                seen_later = turn_events(await second.read_until("approval_requested", timeout_seconds=30))
                await live_client.post(f"{conversation}/approvals/call-1", json={"approve": True})
                sent += await read_turn(sender)
                assert seen + await read_turn(first) == sent
                assert seen_later + await read_turn(second) == sent


async def test_a_turn_that_no_other_node_watches_is_not_written(
    live_client: httpx2.AsyncClient, other_node: Node, conversation: str, scripted: ScriptedAgent, admin_url: str
):
    scripted.set_script("here it is")
    async with open_event_stream(live_client, f"{conversation}/send", json={"message": "well?"}) as sender:
        await sender.read_until("turn_ended")
    with psycopg.connect(admin_url) as owner:
        assert owner.execute("SELECT count(*) FROM quire_turn_events").fetchone() == (0,)


async def test_events_are_deleted_some_time_after_the_turn(
    live_client: httpx2.AsyncClient,
    other_node: Node,
    conversation: str,
    scripted: ScriptedAgent,
    admin_url: str,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(turn_relay, "DELETION_DELAY_SECONDS", 0.5)
    scripted.set_script(DelayedReply(0.5, "here it is"))
    async with open_event_stream(other_node.client, f"{conversation}/events") as there:
        await there.read_next()
        await live_client.post(f"{conversation}/send", json={"message": "well?"})
        await read_turn(there)
    with psycopg.connect(admin_url, autocommit=True) as owner:
        async with asyncio.timeout(30):
            while owner.execute("SELECT count(*) FROM quire_turn_events").fetchone() != (0,):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def test_another_tenant_with_the_same_conversation_sees_nothing(
    live_client: httpx2.AsyncClient,
    database_url: str,
    server_state: ServerState,
    conversation: str,
    scripted: ScriptedAgent,
    store: SqlStore,
):
    await store.for_tenant("elsewhere").create_conversation("c")
    scripted.set_script(DelayedReply(0.3, "secret"))
    async with (
        open_node(database_url, server_state) as own,
        open_node(database_url, server_state, "elsewhere") as foreign,
        open_event_stream(own.client, f"{conversation}/events") as there,
        open_event_stream(foreign.client, f"{conversation}/events") as stranger,
    ):
        await there.read_next()
        await stranger.read_next()
        await live_client.post(f"{conversation}/send", json={"message": "well?"})
        await read_turn(there)
        await store.for_tenant("elsewhere").fork("c", at=0)
        events = await stranger.read_until("branch_changed", branch=1)
    assert turn_events(events) == []


async def test_a_turn_whose_node_died_ends_as_failed(
    live_client: httpx2.AsyncClient,
    other_node: Node,
    conversation: str,
    scripted: ScriptedAgent,
    server_state: ServerState,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(live_events, "SILENCE_SECONDS", 0.3)
    scripted.set_script(tool_call_reply("call-1"))
    async with open_event_stream(other_node.client, f"{conversation}/events") as there:
        await there.read_next()
        async with open_event_stream(live_client, f"{conversation}/send", json={"message": "well?"}):
            await there.read_until("approval_requested", timeout_seconds=30)
            # Longer than all silences: a node that runs the turn says so.
            await asyncio.sleep(2)
            monkeypatch.setattr(server_state.relay, "_relay", lambda *_: None)
            failed = (await there.read_until("turn_failed", timeout_seconds=30))[-1]
    assert failed.data["problem"]["code"] == "turn_lost"


@pytest.mark.nightly
async def test_the_text_of_a_turn_reaches_the_other_server_process(database_url: str, tmp_path: Path):
    async with SqlStore.open(database_url) as store:
        key = await create_key_for(store, "default")
        await store.create_conversation("c")
    fleet = Fleet(database_url, key, tmp_path)
    try:
        fleet.start_server()
        fleet.start_server()
        await fleet.wait_ready()
        question = " ".join(f"word{number}" for number in range(200))
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
            here, there = (f"http://127.0.0.1:{port}/api/conversations/c" for port in fleet.ports)
            async with open_event_stream(client, f"{there}/events") as reader:
                await reader.read_next()
                body = (await client.post(f"{here}/send", json={"message": question})).text
                seen = await read_turn(reader)
        data = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
        assert seen == [json.loads(each) for each in data]
    finally:
        fleet.stop()
