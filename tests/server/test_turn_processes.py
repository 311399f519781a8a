"""Turns on several server processes with one database: one turn for each question, and reachable from every process.

Each process is a server state with its own store and registry of turns; they share nothing but the database.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from server_helpers import (
    ScriptedAgent,
    SseEvent,
    create_key_for,
    open_event_stream,
    parse_events,
    serve_app,
    tool_call_reply,
)

from quire.errors import ModelRefused
from quire.log import SqlStore, turn_leases
from quire.log.turn_leases import LeaseGrant
from quire.model import Message
from quire.server import turn_heartbeat, turn_registry
from quire.server.app import create_app
from quire.server.state import ServerState
from quire.server.turn_submission import make_idempotency_key
from quire.testing.scripted_model import DelayedReply

BODY = {"message": "when?", "after": 0}


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_heartbeat, "SIGNAL_POLL_SECONDS", 0.05)
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
async def other_client(other_state: ServerState, store: SqlStore) -> AsyncIterator[httpx2.AsyncClient]:
    """Client of the other process."""
    headers = {"Authorization": f"Bearer {await create_key_for(store, 'default')}"}
    async with (
        serve_app(create_app(other_state)) as address,
        httpx2.AsyncClient(base_url=address, headers=headers, timeout=10) as client,
    ):
        yield client


async def send(client: httpx2.AsyncClient, conversation: str, body: dict[str, Any] = BODY) -> list[SseEvent]:
    answer = await client.post(f"{conversation}/send", json=body)
    assert answer.status_code == 200, answer.text
    return parse_events(answer.text)


async def load_messages(store: SqlStore) -> list[tuple[str | None, str]]:
    return [(entry.role, entry.message.text) for entry in await store.read_range("c", kinds=["message"])]


async def test_an_attempt_on_another_process_waits_for_the_turn(
    live_client: httpx2.AsyncClient,
    other_client: httpx2.AsyncClient,
    conversation: str,
    scripted: ScriptedAgent,
    store: SqlStore,
):
    scripted.set_script(DelayedReply(0.3, "noon"))
    async with open_event_stream(live_client, f"{conversation}/send", json=BODY) as first:
        await first.read_until("turn_started")
        refused = await other_client.post(f"{conversation}/send", json={"message": "another"})
        assert (refused.status_code, refused.json()["code"]) == (409, "turn_in_progress")
        attempts = await asyncio.gather(*(send(other_client, conversation) for _ in range(5)))
        events = await first.read_until("turn_ended")
    reply = next(each.data["entry"] for each in events if each.event == "reply_recorded")
    for attempt in attempts:
        assert [each.event for each in attempt] == ["turn_started", "question_recorded", "reply_recorded", "turn_ended"]
        assert attempt[2].data["entry"] == reply
    assert await load_messages(store) == [("user", "when?"), ("assistant", "noon")]


async def test_concurrent_attempts_on_two_processes_have_one_turn(
    live_client: httpx2.AsyncClient,
    other_client: httpx2.AsyncClient,
    conversation: str,
    scripted: ScriptedAgent,
    other_scripted: ScriptedAgent,
    store: SqlStore,
):
    models = [each.set_script(DelayedReply(0.1, "noon"), repeat=True) for each in (scripted, other_scripted)]
    attempts = await asyncio.gather(
        *(send(client, conversation) for _ in range(5) for client in (live_client, other_client))
    )
    assert {attempt[-1].data["reason"] for attempt in attempts} == {"answered"}
    assert sum(len(model.prompts) for model in models) == 1
    assert await load_messages(store) == [("user", "when?"), ("assistant", "noon")]


async def test_the_failure_of_a_turn_is_that_of_every_attempt_that_waited(
    live_client: httpx2.AsyncClient,
    other_client: httpx2.AsyncClient,
    conversation: str,
    scripted: ScriptedAgent,
    other_scripted: ScriptedAgent,
):
    scripted.set_script(tool_call_reply("call-1"), ModelRefused("It is against the policy."))
    async with open_event_stream(live_client, f"{conversation}/send", json=BODY) as first:
        await first.read_until("approval_requested")
        waiting = asyncio.create_task(send(other_client, conversation))
        await asyncio.sleep(0.1)
        await live_client.post(f"{conversation}/approvals/call-1", json={"approve": True})
        [failed] = await waiting
        assert failed.data == (await first.read_until("turn_failed"))[-1].data
        assert failed.data["problem"]["code"] == "model_refused"
    other_scripted.set_script("now")
    assert (await send(other_client, conversation))[-1].data["reason"] == "answered"


async def test_a_stop_reaches_the_process_of_the_turn(
    live_client: httpx2.AsyncClient, other_client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent
):
    scripted.set_script(DelayedReply(30, "late"))
    async with open_event_stream(live_client, f"{conversation}/send", json=BODY) as first:
        await first.read_until("request_prepared")
        waiting = asyncio.create_task(send(other_client, conversation))
        await asyncio.sleep(0.1)
        stopped = await other_client.post(f"{conversation}/stop", json={})
        assert (stopped.status_code, stopped.json()) == (202, {"was_running": True})
        assert (await first.read_until("turn_ended"))[-1].data["reason"] == "stopped"
        assert [each.data["reason"] for each in await waiting] == ["stopped"]
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
    scripted.set_script(tool_call_reply("call-1"), "so be it")
    async with open_event_stream(live_client, f"{conversation}/send", json=BODY) as first:
        await first.read_until("approval_requested")
        unknown = await other_client.post(f"{conversation}/approvals/call-2", json={"approve": True})
        assert unknown.status_code == 404
        decided = await other_client.post(f"{conversation}/approvals/call-1", json={"approve": approve})
        assert decided.status_code == 204
        contrary = await live_client.post(f"{conversation}/approvals/call-1", json={"approve": not approve})
        assert contrary.status_code == 404
        await first.read_until("turn_ended")
    assert scripted.ran_call_ids == (["call-1"] if approve else [])


async def test_the_turn_of_a_dead_process_is_taken_over(
    other_client: httpx2.AsyncClient,
    conversation: str,
    other_scripted: ScriptedAgent,
    store: SqlStore,
    monkeypatch: pytest.MonkeyPatch,
):
    """The dead process had recorded the question, and its lease expires while the attempt waits."""
    monkeypatch.setattr(turn_leases, "LEASE_SECONDS", 1)
    other_scripted.set_script("noon")
    key = make_idempotency_key(Message.user("when?"), 0)
    granted = await store.acquire_turn_lease("c", 0, owner="a dead process", idempotency_key=key)
    assert isinstance(granted, LeaseGrant)
    await store.append("c", Message.user("when?"), lease=granted.lease)
    monkeypatch.undo()
    events = await send(other_client, conversation)
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
    """As after a pause of the whole process: no heartbeat, and the reply arrives when the lease is another's."""
    monkeypatch.setattr(turn_heartbeat, "SIGNAL_POLL_SECONDS", 60.0)
    monkeypatch.setattr(turn_leases, "LEASE_SECONDS", 0)
    scripted.set_script(tool_call_reply("call-1"), "too late")
    other_scripted.set_script("in time")
    async with open_event_stream(live_client, f"{conversation}/send", json=BODY) as first:
        await first.read_until("approval_requested")
        assert (await send(other_client, conversation))[-1].data["reason"] == "answered"
        await live_client.post(f"{conversation}/stop", json={})
        failed = (await first.read_until("turn_failed"))[-1].data
    assert failed["problem"]["code"] == "turn_lease_lost"
    assert [text for role, text in await load_messages(store) if role == "assistant"] == ["", "in time"]


async def test_a_turn_that_a_shutdown_stops_is_taken_over(
    live_client: httpx2.AsyncClient,
    other_client: httpx2.AsyncClient,
    conversation: str,
    scripted: ScriptedAgent,
    other_scripted: ScriptedAgent,
    server_state: ServerState,
    store: SqlStore,
):
    scripted.set_script(DelayedReply(30, "late"))
    other_scripted.set_script("noon")
    async with open_event_stream(live_client, f"{conversation}/send", json=BODY) as first:
        await first.read_until("request_prepared")
        waiting = asyncio.create_task(send(other_client, conversation))
        await asyncio.sleep(0.1)
        await server_state.turns.stop_all()
        assert (await waiting)[-1].data["reason"] == "answered"
    assert await load_messages(store) == [("user", "when?"), ("assistant", "noon")]
