"""Turns on several server processes with one database: one turn for each question, and reachable from every process.

Each process is a server state with its own store and registry of turns; they share nothing but the database.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from server_helpers import (
    EventReader,
    ScriptedAgent,
    SseEvent,
    create_key_for,
    open_event_stream,
    parse_events,
    serve_app,
    tool_call_reply,
)

from quire.errors import ModelRefused
from quire.model import Message
from quire.server import turn_registry
from quire.server.app import create_app
from quire.server.state import ServerState
from quire.server.turn_submission import make_idempotency_key
from quire.store import SqlStore
from quire.turns import leases as turn_leases
from quire.turns.leases import LeaseGrant

pytestmark = pytest.mark.every_database

TIMEOUT_SECONDS = 120.0
BODY = {"message": "when?", "after": 0}


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_registry, "SIGNAL_POLL_SECONDS", 0.05)
    monkeypatch.setattr(turn_registry, "OUTCOME_POLL_SECONDS", 0.05)


@pytest.fixture
def other_scripted() -> ScriptedAgent:
    return ScriptedAgent()


@pytest.fixture
async def other_state(
    database_url: str, server_state: ServerState, other_scripted: ScriptedAgent
) -> AsyncIterator[ServerState]:
    async with SqlStore.open(database_url) as store, httpx2.AsyncClient() as http_client:
        settings, agent = server_state.settings, other_scripted.agent
        state = ServerState(
            store, settings, http_client=http_client, agent=agent, model_factory=other_scripted.get_model
        )
        state.turns.runners = (other_scripted,)
        yield state
        await state.turns.stop_all()
        await state.wait_for_background()


@pytest.fixture
async def live_client(live_client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    live_client.timeout = httpx2.Timeout(TIMEOUT_SECONDS)
    return live_client


@pytest.fixture
async def other_client(other_state: ServerState, store: SqlStore) -> AsyncIterator[httpx2.AsyncClient]:
    """Client of the other process."""
    headers = {"Authorization": f"Bearer {await create_key_for(store, 'default')}"}
    async with (
        serve_app(create_app(other_state)) as address,
        httpx2.AsyncClient(base_url=address, headers=headers, timeout=TIMEOUT_SECONDS) as client,
    ):
        yield client


async def send(client: httpx2.AsyncClient, conversation: str, body: dict[str, Any] = BODY) -> list[SseEvent]:
    answer = await client.post(f"{conversation}/send", json=body)
    assert answer.status_code == 200, answer.text
    return parse_events(answer.text)


def open_turn(client: httpx2.AsyncClient, conversation: str) -> AbstractAsyncContextManager[EventReader]:
    """Sends the question; entered once the request has found or started its turn."""
    return open_event_stream(client, f"{conversation}/send", json=BODY)


async def read_until(stream: EventReader, event: str) -> list[SseEvent]:
    return await stream.read_until(event, timeout_seconds=TIMEOUT_SECONDS)


async def load_messages(store: SqlStore) -> list[tuple[str | None, str]]:
    return [(entry.role, entry.message.text) for entry in await store.read_range("c", kinds=["message"])]


async def load_replies(store: SqlStore) -> list[str]:
    """Texts of the replies that call no tools."""
    entries = await store.read_range("c", kinds=["message"], roles=["assistant"])
    return [entry.message.text for entry in entries if not entry.message.tool_calls]


async def test_an_attempt_on_another_process_waits_for_the_turn(
    live_client: httpx2.AsyncClient,
    other_client: httpx2.AsyncClient,
    conversation: str,
    scripted: ScriptedAgent,
    other_scripted: ScriptedAgent,
    store: SqlStore,
):
    scripted.set_script(tool_call_reply("call-1"), "noon")
    async with open_turn(live_client, conversation) as first, open_turn(other_client, conversation) as second:
        await read_until(first, "approval_requested")
        for body in ({"message": "another"}, {"message": None}):
            refused = await other_client.post(f"{conversation}/send", json=body)
            assert (refused.status_code, refused.json()["code"]) == (409, "turn_in_progress")
        await live_client.post(f"{conversation}/approvals/call-1", json={"approve": True})
        answer = (await read_until(first, "turn_ended"))[-2].data["entry"]
        events = await read_until(second, "turn_ended")
    assert [each.event for each in events] == [
        "turn_started",
        "question_recorded",
        "reply_recorded",
        "reply_recorded",
        "turn_ended",
    ]
    assert events[-2].data["entry"] == answer
    assert await load_replies(store) == ["noon"]
    assert other_scripted.model.prompts == []


async def test_concurrent_attempts_on_two_processes_have_one_turn(
    live_client: httpx2.AsyncClient,
    other_client: httpx2.AsyncClient,
    conversation: str,
    scripted: ScriptedAgent,
    other_scripted: ScriptedAgent,
    store: SqlStore,
):
    models = [each.set_script("noon", repeat=True) for each in (scripted, other_scripted)]
    attempts = await asyncio.gather(
        *(send(client, conversation) for _ in range(5) for client in (live_client, other_client))
    )
    assert {attempt[-1].data["reason"] for attempt in attempts} == {"answered"}
    assert sum(len(model.prompts) for model in models) == 1
    assert await load_messages(store) == [("user", "when?"), ("assistant", "noon")]
    assert await store.leases.get("c", 0) is None


async def test_the_failure_of_a_turn_is_that_of_every_attempt_that_waited(
    live_client: httpx2.AsyncClient,
    other_client: httpx2.AsyncClient,
    conversation: str,
    scripted: ScriptedAgent,
    other_scripted: ScriptedAgent,
    store: SqlStore,
):
    scripted.set_script(tool_call_reply("call-1"), ModelRefused("It is against the policy."))
    async with open_turn(live_client, conversation) as first, open_turn(other_client, conversation) as second:
        await read_until(first, "approval_requested")
        await live_client.post(f"{conversation}/approvals/call-1", json={"approve": True})
        [failed] = await read_until(second, "turn_failed")
        assert failed.data == (await read_until(first, "turn_failed"))[-1].data
    assert failed.data["problem"]["code"] == "model_refused"
    other_scripted.set_script("now")
    assert (await send(other_client, conversation))[-1].data["reason"] == "answered"
    assert await load_replies(store) == ["now"]


async def test_a_stop_reaches_the_process_of_the_turn(
    live_client: httpx2.AsyncClient, other_client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent
):
    scripted.set_script(tool_call_reply("call-1"), "late")
    async with open_turn(live_client, conversation) as first, open_turn(other_client, conversation) as second:
        await read_until(first, "approval_requested")
        stopped = await other_client.post(f"{conversation}/stop", json={})
        assert (stopped.status_code, stopped.json()) == (202, {"was_running": True})
        for stream in (first, second):
            assert (await read_until(stream, "turn_ended"))[-1].data["reason"] == "stopped"
    again = await other_client.post(f"{conversation}/stop", json={})
    assert again.json() == {"was_running": False}


@pytest.mark.parametrize("approve", [True, False])
async def test_an_approval_reaches_the_process_of_the_turn(
    approve: bool,
    live_client: httpx2.AsyncClient,
    other_client: httpx2.AsyncClient,
    conversation: str,
    scripted: ScriptedAgent,
):
    """The second call has the id of the first one, whose approval does not count for it."""
    scripted.set_script(tool_call_reply("call-1"), tool_call_reply("call-1"), "so be it")
    async with open_turn(live_client, conversation) as first:
        await read_until(first, "approval_requested")
        waiting = {"conversation": "c", "branch": 0, "needs_approval": True}
        assert (await other_client.get("/api/turns")).json() == {"items": [waiting]}
        unknown = await other_client.post(f"{conversation}/approvals/call-2", json={"approve": True})
        assert unknown.status_code == 404
        decided = await other_client.post(f"{conversation}/approvals/call-1", json={"approve": approve})
        assert decided.status_code == 204
        contrary = await live_client.post(f"{conversation}/approvals/call-1", json={"approve": not approve})
        assert contrary.status_code == 404
        await read_until(first, "approval_requested")
        decided = await other_client.post(f"{conversation}/approvals/call-1", json={"approve": False})
        assert decided.status_code == 204
        await read_until(first, "turn_ended")
    assert (await other_client.get("/api/turns")).json() == {"items": []}
    assert scripted.ran_call_ids == (["call-1"] if approve else [])


async def test_the_turn_of_a_dead_process_is_taken_over(
    other_client: httpx2.AsyncClient,
    conversation: str,
    other_scripted: ScriptedAgent,
    store: SqlStore,
    monkeypatch: pytest.MonkeyPatch,
):
    """The dead process had recorded the question, and its lease expires while the attempt waits."""
    other_scripted.set_script("noon")
    key = make_idempotency_key(Message.user("when?"), 0)
    granted = await store.leases.acquire("c", 0, owner="a dead process", idempotency_key=key)
    assert isinstance(granted, LeaseGrant)
    await store.append("c", Message.user("when?"), lease=granted.lease)
    async with open_turn(other_client, conversation) as attempt:
        with monkeypatch.context() as patch:
            patch.setattr(turn_leases, "LEASE_SECONDS", -1)
            await store.leases.renew([granted.lease.turn])
        events = await read_until(attempt, "turn_ended")
    assert "question_recorded" not in [each.event for each in events]
    assert events[-1].data["reason"] == "answered"
    assert await load_messages(store) == [("user", "when?"), ("assistant", "noon")]


async def test_a_process_that_lost_its_lease_records_no_answer(
    live_client: httpx2.AsyncClient,
    other_client: httpx2.AsyncClient,
    conversation: str,
    scripted: ScriptedAgent,
    other_scripted: ScriptedAgent,
    store: SqlStore,
    monkeypatch: pytest.MonkeyPatch,
):
    """As after a pause of the whole process: no heartbeat, and the reply arrives when another has the lease."""
    monkeypatch.setattr(turn_registry, "SIGNAL_POLL_SECONDS", 600.0)
    monkeypatch.setattr(turn_leases, "LEASE_SECONDS", -1)
    scripted.set_script(tool_call_reply("call-1"), "too late")
    other_scripted.set_script("in time")
    async with open_turn(live_client, conversation) as first:
        await read_until(first, "approval_requested")
        assert (await send(other_client, conversation))[-1].data["reason"] == "answered"
        await live_client.post(f"{conversation}/stop", json={})
        failed = (await read_until(first, "turn_failed"))[-1].data
    assert failed["problem"]["code"] == "turn_lease_lost"
    assert await load_replies(store) == ["in time"]


async def test_a_turn_that_a_shutdown_stops_is_taken_over(
    live_client: httpx2.AsyncClient,
    other_client: httpx2.AsyncClient,
    conversation: str,
    scripted: ScriptedAgent,
    other_scripted: ScriptedAgent,
    server_state: ServerState,
    store: SqlStore,
):
    scripted.set_script(tool_call_reply("call-1"), "late")
    other_scripted.set_script("noon")
    async with open_turn(live_client, conversation) as first, open_turn(other_client, conversation) as second:
        await read_until(first, "approval_requested")
        await server_state.turns.stop_all()
        assert (await read_until(second, "turn_ended"))[-1].data["reason"] == "answered"
    assert await load_replies(store) == ["noon"]
