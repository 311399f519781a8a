"""Turns on a fleet of real processes: two nodes with two workers each on one PostgreSQL, and a counting upstream."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fleet import Fleet
from server_helpers import open_event_stream

from fake_upstream import (
    SSE_DONE,
    FakeUpstream,
    Responder,
    UpstreamRequest,
    make_chunk_event,
    respond_with_text,
    run_fake_upstream,
)
from quire.store import SqlStore
from quire.turns.leases import LEASE_SECONDS

pytestmark = [pytest.mark.every_postgres, pytest.mark.nightly]

ATTEMPT_COUNT = 50
WORKERS_PER_NODE = 2
TIMEOUT_SECONDS = 120.0
BODY = {"message": "when?", "after": 0}


@asynccontextmanager
async def run_fleet(database_url: str, folder: Path, upstream: FakeUpstream) -> AsyncIterator[Fleet]:
    """Two nodes with an agent that has a memory, and the conversation "c"."""
    agent = folder / "keeper.toml"
    agent.write_text('name = "keeper"\n[memory]\nenabled = true\n')
    async with SqlStore.open(database_url) as store:
        _, key = await store.keys.create("fleet", ["read", "write", "chat", "approve"])
        await store.create_conversation("c")
    settings = {
        "QUIRE_BASE_URL": upstream.url,
        "QUIRE_CONTEXT_TOOLS": "true",
        "QUIRE_AGENT": str(agent),
        "QUIRE_HOST_ACCESS_TENANTS": '["default"]',
    }
    fleet = Fleet(database_url, key, folder, settings)
    try:
        fleet.start_server(workers=WORKERS_PER_NODE)
        fleet.start_server(workers=WORKERS_PER_NODE)
        await fleet.wait_ready()
        yield fleet
    finally:
        fleet.stop()


def make_client(fleet: Fleet, node: int) -> httpx2.AsyncClient:
    """A client of one node. A new connection may reach any of its workers."""
    headers = {"Authorization": f"Bearer {fleet.key}"}
    base_url = f"http://127.0.0.1:{fleet.ports[node]}/api/conversations/c/"
    return httpx2.AsyncClient(base_url=base_url, headers=headers, timeout=TIMEOUT_SECONDS)


def respond_after(release: asyncio.Event, text: str) -> Responder:
    respond = respond_with_text(text)

    async def respond_later(request: UpstreamRequest) -> None:
        await release.wait()
        await respond(request)

    return respond_later


def call_remember(id: str) -> Responder:
    """Calls the tool that needs approval."""
    function = {"name": "remember", "arguments": json.dumps({"text": "The tide turns at noon."})}
    call = {"index": 0, "id": id, "type": "function", "function": function}

    async def respond(request: UpstreamRequest) -> None:
        await request.start_sse()
        await request.send_sse(make_chunk_event({"role": "assistant", "tool_calls": [call]}))
        await request.send_sse(make_chunk_event({}, "tool_calls"), SSE_DONE)
        await request.end_sse()

    return respond


async def load_messages(database_url: str) -> list[tuple[str | None, str]]:
    async with SqlStore.open(database_url) as store:
        assert await store.verify_conversation("c") == []
        return [(entry.role, entry.message.text) for entry in await store.read_range("c", kinds=["message"])]


async def test_fifty_attempts_on_four_processes_have_one_turn(database_url: str, tmp_path: Path) -> None:
    release = asyncio.Event()
    async with (
        run_fake_upstream(respond_after(release, "noon")) as upstream,
        run_fleet(database_url, tmp_path, upstream) as fleet,
        AsyncExitStack() as stack,
    ):

        async def attempt(number: int) -> Any:
            client = await stack.enter_async_context(make_client(fleet, number % 2))
            return await stack.enter_async_context(open_event_stream(client, "send", json=BODY))

        # All attempts are open before the model answers.
        streams = await asyncio.gather(*(attempt(number) for number in range(ATTEMPT_COUNT)))
        release.set()
        ends = [await stream.read_until("turn_ended", timeout_seconds=TIMEOUT_SECONDS) for stream in streams]
        replies = {event.data["entry"]["seq"] for events in ends for event in events if event.event == "reply_recorded"}
        assert replies == {2}
        assert {events[-1].data["reason"] for events in ends} == {"answered"}
        assert len(upstream.requests) == 1
    assert await load_messages(database_url) == [("user", "when?"), ("assistant", "noon")]


async def test_stop_and_approval_reach_the_other_node(database_url: str, tmp_path: Path) -> None:
    never = asyncio.Event()
    async with (
        run_fake_upstream(call_remember("call-1"), respond_after(never, "too late")) as upstream,
        run_fleet(database_url, tmp_path, upstream) as fleet,
        make_client(fleet, 0) as client,
        make_client(fleet, 1) as other,
        open_event_stream(client, "send", json=BODY) as stream,
    ):
        await stream.read_until("approval_requested", timeout_seconds=TIMEOUT_SECONDS)
        decided = await other.post("approvals/call-1", json={"approve": True})
        assert decided.status_code == 204, decided.text
        events = await stream.read_until("request_prepared", timeout_seconds=TIMEOUT_SECONDS)
        [result] = [event.data["result"] for event in events if event.event == "tool_completed"]
        assert result["is_error"] is False
        stopped = await other.post("stop", json={})
        assert stopped.json() == {"was_running": True}
        events = await stream.read_until("turn_ended", timeout_seconds=TIMEOUT_SECONDS)
        assert events[-1].data["reason"] == "stopped"
        assert (await other.post("stop", json={})).json() == {"was_running": False}


async def test_the_turn_of_a_killed_node_is_answered_once(database_url: str, tmp_path: Path) -> None:
    never = asyncio.Event()
    async with (
        run_fake_upstream(respond_after(never, "too late"), respond_with_text("noon")) as upstream,
        run_fleet(database_url, tmp_path, upstream) as fleet,
        make_client(fleet, 0) as client,
        make_client(fleet, 1) as other,
        AsyncExitStack() as attempts,
    ):
        async with open_event_stream(client, "send", json=BODY) as stream:
            await stream.read_until("request_prepared", timeout_seconds=TIMEOUT_SECONDS)
            # Two attempts wait for the turn before its node dies, one comes later.
            waiting = [
                await attempts.enter_async_context(open_event_stream(other, "send", json=BODY)) for _ in range(2)
            ]
            fleet.servers[0].kill()
        waiting.append(await attempts.enter_async_context(open_event_stream(other, "send", json=BODY)))
        for each in waiting:
            events = await each.read_until("turn_ended", timeout_seconds=LEASE_SECONDS + TIMEOUT_SECONDS)
            assert events[-1].data["reason"] == "answered"
        assert len(upstream.requests) == 2
    assert await load_messages(database_url) == [("user", "when?"), ("assistant", "noon")]
