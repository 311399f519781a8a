"""Live events of a conversation: every subscriber gets a change of any node within a second."""

import asyncio
import time
from collections.abc import Collection

import httpx2
import pytest
from fastapi import FastAPI
from server_helpers import ScriptedAgent, assert_no_task_left, open_event_stream, serve_app, tool_call_reply

from quire.db.notifications import ConversationKey, Notifications
from quire.errors import StoreUnavailable
from quire.model import Message
from quire.server import event_stream, live_events
from quire.server.auth import get_key_verifier
from quire.server.state import ServerState
from quire.store import SqlStore
from quire.testing.scripted_model import DelayedReply


async def test_at_first_an_event_is_sent_for_every_branch(
    live_client: httpx2.AsyncClient, conversation: str, store: SqlStore
):
    head = (await store.append("c", Message.user("a"), Message.user("b")))[-1].seq
    await store.fork("c", at=head - 1)
    async with open_event_stream(live_client, f"{conversation}/events") as listener:
        events = [await listener.read_next(), await listener.read_next()]
        assert listener.response.headers["cache-control"] == "no-store"
    assert [each.data for each in events] == [
        {"event": "branch_changed", "branch": 0, "head": head},
        {"event": "branch_changed", "branch": 1, "head": head - 1},
    ]
    assert [each.id for each in events] == ["1", "2"]


@pytest.mark.every_database
async def test_entries_of_another_process_are_announced_within_a_second(
    live_client: httpx2.AsyncClient, conversation: str, store: SqlStore, database_url: str
):
    async with (
        SqlStore.open(database_url) as elsewhere,
        open_event_stream(live_client, f"{conversation}/events") as listener,
    ):
        await listener.read_next()
        for number in range(3):
            [entry] = await elsewhere.append("c", Message.user(f"from elsewhere {number}"))
            started_at = time.monotonic()
            await listener.read_until("branch_changed", branch=0, head=entry.seq)
            assert time.monotonic() - started_at < 1
        branch = await elsewhere.fork("c", at=1)
        await listener.read_until("branch_changed", branch=branch.number, head=1, timeout_seconds=1)


@pytest.mark.every_database
async def test_a_turn_is_streamed_live_and_to_late_subscribers_from_its_start(
    live_client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, server_state: ServerState
):
    scripted.set_script(DelayedReply(0.4, "here it is"))
    async with open_event_stream(live_client, f"{conversation}/events") as early:
        await early.read_next()
        async with open_event_stream(live_client, f"{conversation}/send", json={"message": "well?"}) as sender:
            await sender.read_until("request_prepared")
            async with open_event_stream(live_client, f"{conversation}/events") as late:
                streams = [await each.read_until("turn_ended") for each in (sender, early, late)]
        turns = [[each.data for each in stream if each.event != "branch_changed"] for stream in streams]
    # The sender had already read the first three.
    assert turns[1] == turns[2]
    assert turns[0] == turns[1][3:]
    assert [each["event"] for each in turns[1]][:3] == ["turn_started", "question_recorded", "request_prepared"]


async def test_a_turn_on_a_new_branch_is_streamed_too(
    live_client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, store: SqlStore
):
    scripted.set_script("on the branch")
    async with open_event_stream(live_client, f"{conversation}/events") as listener:
        await listener.read_next()
        created = await live_client.post(f"{conversation}/branches", json={"fork_seq": 0})
        await listener.read_until("branch_changed", branch=created.json()["number"])
        await live_client.post(f"{conversation}/send", json={"message": "x", "branch": created.json()["number"]})
        ended = (await listener.read_until("turn_ended"))[-1]
    assert ended.data["branch"] == 1


class LookCounter:
    """Counts the looks of the watcher at the heads of branches, and the conversations of each."""

    def __init__(self, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self._list_heads = store.all_tenants.list_branch_heads
        monkeypatch.setattr(store.all_tenants, "list_branch_heads", self._list_counted)

    async def _list_counted(self, keys: Collection[ConversationKey]) -> dict[ConversationKey, dict[int, int]]:
        self.sizes.append(len(keys))
        return await self._list_heads(keys)


@pytest.fixture
def looks(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> LookCounter:
    return LookCounter(store, monkeypatch)


async def test_many_subscribers_share_one_look(
    live_client: httpx2.AsyncClient, app: FastAPI, conversation: str, store: SqlStore, looks: LookCounter
):
    async with (
        assert_no_task_left(),
        open_event_stream(live_client, f"{conversation}/events") as one,
        open_event_stream(live_client, f"{conversation}/events") as two,
        open_event_stream(live_client, f"{conversation}/events") as three,
    ):
        for listener in (one, two, three):
            await listener.read_next()
        assert len(app.state.server_state.live_events) == 1
        [entry] = await store.append("c", Message.user("for all"))
        for listener in (one, two, three):
            await listener.read_until("branch_changed", head=entry.seq)
    assert len(app.state.server_state.live_events) == 0
    assert set(looks.sizes) == {1}
    looks.sizes.clear()
    await store.append("c", Message.user("for nobody"))
    await asyncio.sleep(0.3)
    assert looks.sizes == []


@pytest.mark.every_database
async def test_all_conversations_are_looked_at_by_one_query(
    live_client: httpx2.AsyncClient,
    app: FastAPI,
    conversation: str,
    store: SqlStore,
    looks: LookCounter,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(live_events, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(live_events, "SAFETY_POLL_SECONDS", 0.05)
    monkeypatch.setattr(store.all_tenants, "get_data_version", fail_data_version)
    await store.create_conversation("d")
    async with (
        open_event_stream(live_client, f"{conversation}/events") as one,
        open_event_stream(live_client, "/api/conversations/d/events") as two,
    ):
        await one.read_next()
        await two.read_next()
        looks.sizes.clear()
        await asyncio.sleep(0.5)
    assert len(looks.sizes) >= 2
    assert set(looks.sizes) == {2}


async def fail_data_version() -> None:
    """A database that cannot say whether it changed."""


@pytest.mark.parametrize("backend", ["sqlite", "postgres18"])  # PgBouncer passes no notifications on.
async def test_idle_streams_cost_no_queries(
    live_client: httpx2.AsyncClient, conversation: str, store: SqlStore, looks: LookCounter
):
    async with open_event_stream(live_client, f"{conversation}/events") as listener:
        await listener.read_next()
        # The first looks: of the new stream, and of a database that was not looked at before.
        await asyncio.sleep(1)
        looks.sizes.clear()
        await asyncio.sleep(2)
        assert looks.sizes == []
        [entry] = await store.append("c", Message.user("at once"))
        await listener.read_until("branch_changed", head=entry.seq)
    assert len(looks.sizes) == 1


@pytest.mark.every_database
@pytest.mark.every_postgres
async def test_without_notifications_changes_are_found_by_looking(
    live_client: httpx2.AsyncClient, conversation: str, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Notifications, "is_listening", False)
    monkeypatch.setattr(Notifications, "_on_payload", lambda *_: None)
    async with (
        SqlStore.open(database_url) as elsewhere,
        open_event_stream(live_client, f"{conversation}/events") as listener,
    ):
        await listener.read_next()
        [entry] = await elsewhere.append("c", Message.user("from elsewhere"))
        await listener.read_until("branch_changed", head=entry.seq)


async def test_disconnecting_during_a_turn_leaks_no_task(
    live_client: httpx2.AsyncClient, app: FastAPI, conversation: str, scripted: ScriptedAgent, server_state: ServerState
):
    scripted.set_script(DelayedReply(0.5, "done"))
    async with assert_no_task_left():
        async with (
            open_event_stream(live_client, f"{conversation}/send", json={"message": "x"}) as sender,
            open_event_stream(live_client, f"{conversation}/events") as listener,
        ):
            await sender.read_until("request_prepared")
            await listener.read_until("request_prepared")
        await asyncio.sleep(0.1)
        assert len(app.state.server_state.live_events) == 0
        assert len(server_state.turns) == 1
        await server_state.turns.wait_until_idle()


async def test_a_store_that_is_away_for_a_while_ends_nothing(
    live_client: httpx2.AsyncClient, conversation: str, store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    failed = asyncio.Event()

    async def fail(keys: object) -> None:
        failed.set()
        raise StoreUnavailable("down")

    async with open_event_stream(live_client, f"{conversation}/events") as listener:
        await listener.read_next()
        with monkeypatch.context() as outage:
            outage.setattr(store.all_tenants, "list_branch_heads", fail)
            [entry] = await store.append("c", Message.user("meanwhile"))
            await asyncio.wait_for(failed.wait(), 5)
        await listener.read_until("branch_changed", head=entry.seq)


async def test_a_stream_ends_if_watching_fails(
    live_client: httpx2.AsyncClient,
    app: FastAPI,
    conversation: str,
    store: SqlStore,
    monkeypatch: pytest.MonkeyPatch,
):
    async def fail(keys: object) -> None:
        raise ZeroDivisionError

    async with open_event_stream(live_client, f"{conversation}/events") as listener:
        await listener.read_next()
        monkeypatch.setattr(store.all_tenants, "list_branch_heads", fail)
        task = app.state.server_state.live_events._task  # pyright: ignore[reportPrivateUsage]
        assert task is not None
        await store.append("c", Message.user("x"))
        await listener.read_rest()
        with pytest.raises(ZeroDivisionError):
            await task


async def test_a_server_that_stops_notifies_subscribers(
    live_client: httpx2.AsyncClient, app: FastAPI, conversation: str
):
    async with assert_no_task_left(), open_event_stream(live_client, f"{conversation}/events") as listener:
        await listener.read_next()
        app.state.streams.begin_shutdown()
        assert "event: server_stopping" in await listener.read_rest()


async def test_what_is_not_there_cannot_be_listened_to(client: httpx2.AsyncClient):
    missing = await client.get("/api/conversations/nowhere/events")
    assert (missing.status_code, missing.json()["code"]) == (404, "conversation_not_found")


async def test_a_stream_ends_after_its_key_is_revoked_on_another_node(
    app: FastAPI, conversation: str, store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_stream, "KEY_RECHECK_SECONDS", 0.05)
    key, text = await store.keys.create("reader", ["read"])
    headers = {"Authorization": f"Bearer {text}"}
    async with serve_app(app) as address, httpx2.AsyncClient(base_url=address, headers=headers) as client:
        async with open_event_stream(client, f"{conversation}/events") as listener:
            await listener.read_next()
            [entry] = await store.append("c", Message.user("before"))
            await listener.read_until("branch_changed", branch=0, head=entry.seq)
            await store.keys.revoke(key.id)
            await listener.read_rest()
        assert not len(app.state.server_state.live_events)


@pytest.mark.every_database
async def test_a_turn_is_no_longer_streamed_after_its_key_is_revoked_on_another_node(
    app: FastAPI, conversation: str, store: SqlStore, scripted: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_stream, "KEY_RECHECK_SECONDS", 0.05)
    scripted.set_script(tool_call_reply("call-1"))
    key, text = await store.keys.create("writer", ["read", "chat"])
    headers = {"Authorization": f"Bearer {text}"}
    async with (
        serve_app(app) as address,
        httpx2.AsyncClient(base_url=address, headers=headers) as client,
        open_event_stream(client, f"{conversation}/send", json={"message": "Continue."}) as sender,
    ):
        # The turn waits for the approval, so the stream has no other reason to end.
        await sender.read_until("approval_requested")
        await store.keys.revoke(key.id)
        lines = await sender.read_rest()
    assert not [line for line in lines if line.startswith("event:")]


async def test_a_stream_outlasts_a_store_that_cannot_verify_its_key(
    app: FastAPI, live_client: httpx2.AsyncClient, conversation: str, store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_stream, "KEY_RECHECK_SECONDS", 0.05)
    failed = asyncio.Event()

    async def fail(text: str) -> None:
        failed.set()
        raise StoreUnavailable("down")

    async with open_event_stream(live_client, f"{conversation}/events") as listener:
        await listener.read_next()
        monkeypatch.setattr(get_key_verifier(app)._keys, "verify", fail)
        await asyncio.wait_for(failed.wait(), 5)
        [entry] = await store.append("c", Message.user("after"))
        await listener.read_until("branch_changed", branch=0, head=entry.seq)
