"""Routes for turns: streamed live, one at a time on a branch, independent of the connection."""

import asyncio
import time
from base64 import b64encode
from typing import Any

import httpx2
import pytest
from openapi_helpers import assert_conforms
from server_helpers import (
    ScriptedAgent,
    SseEvent,
    assert_no_task_left,
    open_event_stream,
    parse_events,
    tool_call_reply,
)

from fake_upstream import reply_in_wire_format, run_fake_upstream
from quire.errors import ModelRateLimited, ModelRefused, ModelUnavailable
from quire.llm import get_model
from quire.model import Message
from quire.server import event_stream
from quire.server.state import ServerState
from quire.store import SqlStore
from quire.testing.scripted_model import DelayedReply


async def send(client: httpx2.AsyncClient, conversation: str, message: Any, **more: Any) -> list[SseEvent]:
    """Sends a message and returns all events of its turn."""
    answer = await client.post(f"{conversation}/send", json={"message": message, **more})
    assert answer.status_code == 200, answer.text
    events = parse_events(answer.text)
    for each in events:
        assert_conforms(each.data, schema="TurnEventSchema")
    return events


def event_names(events: list[SseEvent]) -> list[str]:
    """Names of the events in order; consecutive text chunks count as one."""
    names = [each.event for each in events]
    return [name for place, name in enumerate(names) if place == 0 or name != "text" or names[place - 1] != "text"]


async def load_messages(store: SqlStore, conversation: str = "c") -> list[tuple[str | None, str]]:
    entries = await store.read_range(conversation, kinds=["message"])
    return [(entry.role, entry.message.text) for entry in entries]


@pytest.mark.every_database
async def test_a_message_is_answered_and_its_turn_streamed(
    client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, store: SqlStore
):
    scripted.set_script("The tide turns at noon.")
    events = await send(client, conversation, "When does the tide turn?")
    assert event_names(events) == [
        "turn_started",
        "question_recorded",
        "request_prepared",
        "text",
        "reply_recorded",
        "turn_ended",
    ]
    assert "".join(each.data["text"] for each in events if each.event == "text") == "The tide turns at noon."
    assert [each.id for each in events] == [str(number) for number in range(1, len(events) + 1)]
    assert all(each.data["event"] == each.event and each.data["branch"] == 0 for each in events)
    by_name = {each.event: each.data for each in events}
    assert by_name["turn_started"]["message"]["parts"][0]["text"] == "When does the tide turn?"
    assert by_name["request_prepared"]["window"] == 8_000
    assert by_name["turn_ended"]["reason"] == "answered"
    entries = (await client.get(f"{conversation}/entries", params={"kinds": "message"})).json()["items"]
    assert [by_name["question_recorded"]["entry"], by_name["reply_recorded"]["entry"]] == entries
    assert await load_messages(store) == [
        ("user", "When does the tide turn?"),
        ("assistant", "The tide turns at noon."),
    ]


async def test_the_stream_is_neither_cached_nor_buffered(
    client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent
):
    scripted.set_script("yes")
    answer = await client.post(f"{conversation}/send", json={"message": "well?"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"


async def test_without_a_message_the_turn_continues_from_the_log(
    client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, store: SqlStore
):
    await store.append("c", Message.user("still there?"))
    scripted.set_script("I am.")
    events = await send(client, conversation, None)
    assert "question_recorded" not in event_names(events)
    assert await load_messages(store) == [("user", "still there?"), ("assistant", "I am.")]


async def test_an_image_is_sent_with_its_question_and_replays(
    client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent
):
    model = scripted.set_script("a mill")
    stored = await client.post("/api/blobs", content=b"\x89PNG...", headers={"Content-Type": "image/png"})
    image = {"type": "image", "blob": stored.json()["blob"], "media_type": "image/png"}
    await send(client, conversation, {"role": "user", "parts": [{"type": "text", "text": "What is this?"}, image]})
    [prompt] = model.prompts
    assert prompt.load_blob is not None
    assert prompt.load_blob(image["blob"]) == b64encode(b"\x89PNG...").decode()
    assert (await client.get(f"{conversation}/requests/2/replay")).json()["matches"] is True


@pytest.mark.parametrize("model", ["openai:gpt-4o", "anthropic:claude-x"])
async def test_an_image_is_on_the_wire_of_its_request_in_both_wire_formats(
    client: httpx2.AsyncClient,
    conversation: str,
    scripted: ScriptedAgent,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
):
    stored = await client.post("/api/blobs", content=b"\x89PNG...", headers={"Content-Type": "image/png"})
    image = {"type": "image", "blob": stored.json()["blob"], "media_type": "image/png"}
    question = {"role": "user", "parts": [{"type": "text", "text": "What is this?"}, image]}
    async with run_fake_upstream(reply_in_wire_format("A mill.")) as upstream:
        monkeypatch.setattr(scripted, "model", get_model(model, base_url=upstream.url, api_key="k"))
        events = await send(client, conversation, question, model=model)
    assert events[-1].data["reason"] == "answered"
    [text, picture] = upstream.bodies[0]["messages"][-1]["content"]
    assert text["text"] == "What is this?"
    data = picture["image_url"]["url"] if "image_url" in picture else picture["source"]["data"]
    assert data.rpartition(",")[2] == b64encode(b"\x89PNG...").decode()
    assert (await client.get(f"{conversation}/requests/2/replay")).json()["matches"] is True


async def test_another_model_can_be_requested(client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent):
    scripted.set_script("a", "b")
    events = await send(client, conversation, "x", model="gpt-4o-mini")
    assert scripted.requested_models == ["gpt-4o-mini"]
    assert events[-1].data["reason"] == "answered"
    await send(client, conversation, "y")
    assert scripted.requested_models == ["gpt-4o-mini", "gpt-4o"]


async def test_only_what_a_user_says_is_sent(client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent):
    message = Message.assistant("I say so").model_dump(mode="json")
    refused = await client.post(f"{conversation}/send", json={"message": message})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    scripted.set_script("ok")
    question = Message.user("hi", name="Ada").model_dump(mode="json")
    events = await send(client, conversation, question)
    assert events[1].data["entry"]["body"] == question


@pytest.mark.every_database
async def test_a_branch_has_one_turn_at_a_time(
    live_client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, store: SqlStore
):
    await store.fork("c", at=0)
    scripted.set_script(DelayedReply(30, "late"), "at once")
    async with open_event_stream(live_client, f"{conversation}/send", json={"message": "first"}) as listener:
        await listener.read_until("question_recorded")
        refused = await live_client.post(f"{conversation}/send", json={"message": "second"})
        assert (refused.status_code, refused.json()["code"]) == (409, "turn_in_progress")
        other = await live_client.post(f"{conversation}/send", json={"message": "elsewhere", "branch": 1})
        assert parse_events(other.text)[-1].data["reason"] == "answered"
        await live_client.post(f"{conversation}/stop", json={})
        await listener.read_until("turn_ended")
    assert await load_messages(store) == [("user", "first")]


async def test_a_turn_continues_when_its_client_disconnects_and_leaks_no_task(
    live_client: httpx2.AsyncClient,
    conversation: str,
    scripted: ScriptedAgent,
    server_state: ServerState,
    store: SqlStore,
):
    scripted.set_script(DelayedReply(0.3, "here it is"))
    async with assert_no_task_left():
        async with open_event_stream(live_client, f"{conversation}/send", json={"message": "slowly"}) as listener:
            await listener.read_until("request_prepared")
        await asyncio.sleep(0.1)
        assert len(server_state.turns) == 1
        await server_state.turns.wait_until_idle()
    assert await load_messages(store) == [("user", "slowly"), ("assistant", "here it is")]


async def test_a_disconnected_client_is_dropped_at_once_even_without_events(
    live_client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, server_state: ServerState
):
    scripted.set_script(DelayedReply(30, "much later"))
    async with open_event_stream(live_client, f"{conversation}/send", json={"message": "slowly"}) as listener:
        await listener.read_until("request_prepared")
        tasks = asyncio.all_tasks()
    async with asyncio.timeout(2):
        # Only the turn itself remains: the tasks of the connection are gone.
        while len([task for task in tasks if not task.done() and "_next" in str(task.get_coro())]) > 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert len(server_state.turns) == 1


async def test_stopping_records_the_partial_reply(
    live_client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, store: SqlStore
):
    scripted.set_script(" ".join(["word"] * 50_000))
    async with open_event_stream(live_client, f"{conversation}/send", json={"message": "go on and on"}) as listener:
        await listener.read_until("text")
        stopped = await live_client.post(f"{conversation}/stop", json={"branch": 0})
        assert (stopped.status_code, stopped.json()) == (202, {"was_running": True})
        by_name = {each.event: each.data for each in await listener.read_until("turn_ended", timeout_seconds=20)}
    assert by_name["turn_ended"]["reason"] == "stopped"
    assert by_name["reply_recorded"]["incomplete"] is True
    [question, reply] = await load_messages(store)
    assert question == ("user", "go on and on")
    assert 0 < len(reply[1].split()) < 50_000
    again = await live_client.post(f"{conversation}/stop", json={})
    assert (again.status_code, again.json()) == (202, {"was_running": False})


@pytest.mark.parametrize("approve", [True, False])
async def test_a_tool_that_needs_approval_waits_for_it(
    approve: bool, live_client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent
):
    scripted.set_script(tool_call_reply("call-1"), "so be it")
    early = await live_client.post(f"{conversation}/approvals/call-1", json={"approve": approve})
    assert early.status_code == 404
    async with open_event_stream(live_client, f"{conversation}/send", json={"message": "do it"}) as listener:
        request = (await listener.read_until("approval_requested"))[-1]
        assert request.data["call"]["id"] == "call-1"
        unknown = await live_client.post(f"{conversation}/approvals/call-2", json={"approve": True})
        assert unknown.status_code == 404
        decided = await live_client.post(f"{conversation}/approvals/call-1", json={"approve": approve})
        assert decided.status_code == 204
        rest = await listener.read_until("turn_ended")
    result = next(each.data["result"] for each in rest if each.event == "tool_completed")
    assert result["is_error"] is not approve
    if not approve:
        assert [part["text"] for part in result["content"]] == ["guarded was not run: the user denied it."]
    assert scripted.ran_call_ids == (["call-1"] if approve else [])
    late = await live_client.post(f"{conversation}/approvals/call-1", json={"approve": approve})
    assert late.status_code == 404


async def test_a_failure_ends_the_stream_with_its_problem(
    client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, store: SqlStore
):
    scripted.set_script(ModelRefused("It is against the policy."))
    events = await send(client, conversation, "tell me")
    assert events[-1].event == "turn_failed"
    assert events[-1].data["problem"] == {
        "type": "about:blank",
        "title": "Bad Gateway",
        "status": 502,
        "detail": "It is against the policy.",
        "code": "model_refused",
    }
    assert await load_messages(store) == [("user", "tell me")]


async def test_a_retry_of_the_model_is_streamed(client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent):
    scripted.set_script(ModelRateLimited("Slowly.", retry_after=0.01), "now")
    events = await send(client, conversation, "again?")
    retry = next(each.data for each in events if each.event == "retry_scheduled")
    assert retry["problem"]["code"] == "model_rate_limited"
    assert events[-1].data["reason"] == "answered"


async def test_an_unexpected_error_is_a_failure_without_details(
    client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent
):
    scripted.set_script(ZeroDivisionError("the secret of the house"))
    answer = await client.post(f"{conversation}/send", json={"message": "divide"})
    last = parse_events(answer.text)[-1]
    assert (last.event, last.data["problem"]["code"]) == ("turn_failed", "unexpected")
    assert "secret" not in answer.text


async def test_an_idle_stream_of_a_turn_sends_heartbeats(
    live_client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_stream, "HEARTBEAT_SECONDS", 0.05)
    scripted.set_script(DelayedReply(0.3, "at last"))
    started_at = time.monotonic()
    async with open_event_stream(live_client, f"{conversation}/send", json={"message": "well?"}) as listener:
        events = await listener.read_until("turn_ended")
    assert 3 <= listener.comments <= 1 + (time.monotonic() - started_at) / event_stream.HEARTBEAT_SECONDS
    assert "".join(each.data["text"] for each in events if each.event == "text") == "at last"
    assert event_stream.HEARTBEAT_SECONDS < 15.0


@pytest.mark.every_database
class TestRetry:
    """With `after` as idempotency key, a retried question is recorded and answered once."""

    async def test_an_answered_question_is_replayed_from_the_log(
        self, client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, store: SqlStore
    ):
        scripted.set_script("noon")
        first = await send(client, conversation, "when?", after=0)
        again = await send(client, conversation, "when?", after=0)
        assert event_names(again) == ["turn_started", "question_recorded", "reply_recorded", "turn_ended"]
        by_name, replayed = ({each.event: each.data for each in events} for events in (first, again))
        for event in ("turn_started", "question_recorded", "turn_ended"):
            assert replayed[event] == by_name[event]
        assert replayed["reply_recorded"]["entry"] == by_name["reply_recorded"]["entry"]
        assert await load_messages(store) == [("user", "when?"), ("assistant", "noon")]

    async def test_a_question_without_an_answer_is_answered(
        self, client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, store: SqlStore
    ):
        scripted.set_script(ModelUnavailable("gone"), "back again")
        assert (await send(client, conversation, "there?", after=0))[-1].event == "turn_failed"
        events = await send(client, conversation, "there?", after=0)
        assert "question_recorded" not in event_names(events)
        assert events[-1].data["reason"] == "answered"
        assert await load_messages(store) == [("user", "there?"), ("assistant", "back again")]

    async def test_a_running_question_is_not_started_twice(
        self, live_client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, store: SqlStore
    ):
        scripted.set_script(DelayedReply(0.4, "slowly"))
        body = {"message": "well?", "after": 0}
        async with open_event_stream(live_client, f"{conversation}/send", json=body) as listener:
            await listener.read_until("question_recorded")
        refused = await live_client.post(f"{conversation}/send", json=body | {"message": "another"})
        assert (refused.status_code, refused.json()["code"]) == (409, "stale_head")
        attempts = await asyncio.gather(*(send(live_client, conversation, "well?", after=0) for _ in range(3)))
        for events in attempts:
            assert event_names(events)[:3] == ["turn_started", "question_recorded", "request_prepared"]
            assert events[-1].data["reason"] == "answered"
        assert await load_messages(store) == [("user", "well?"), ("assistant", "slowly")]
        assert await store.leases.get("c", 0) is None

    async def test_where_something_else_was_said_it_is_refused(
        self, client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, store: SqlStore
    ):
        scripted.set_script("a", "b", "c")
        await send(client, conversation, "one", after=0)
        for message, after in (("two", 0), ("two", 1), (None, 0)):
            refused = await client.post(f"{conversation}/send", json={"message": message, "after": after})
            assert (refused.status_code, refused.json()["code"]) == (409, "stale_head")
        ahead = await client.post(f"{conversation}/send", json={"message": "two", "after": 9})
        assert (ahead.status_code, ahead.json()["code"]) == (404, "entry_not_found")
        head = (await client.get(f"{conversation}/entries")).json()["head"]
        await send(client, conversation, "one", after=head)
        assert [text for _, text in await load_messages(store)] == ["one", "a", "one", "b"]

    async def test_a_stopped_reply_is_replayed_as_stopped(
        self,
        client: httpx2.AsyncClient,
        conversation: str,
        scripted: ScriptedAgent,
        store: SqlStore,
        server_state: ServerState,
    ):
        engine = server_state.engine_for("default")
        talk = await engine.conversation("c")
        head = (await store.get_branch("c")).head_seq
        request = await talk.prepare("go")
        await talk.record("half", incomplete=True, request=request)
        events = await send(client, conversation, "go", after=head)
        assert (events[-1].data["reason"], events[-2].data["incomplete"]) == ("stopped", True)

    async def test_a_question_that_another_followed_unanswered_is_refused(
        self, client: httpx2.AsyncClient, conversation: str, store: SqlStore
    ):
        head = (await store.get_branch("c")).head_seq
        await store.append("c", Message.user("one"), Message.user("two"), Message.assistant("to both"))
        refused = await client.post(f"{conversation}/send", json={"message": "one", "after": head})
        assert (refused.status_code, refused.json()["code"]) == (409, "stale_head")
