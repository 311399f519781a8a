"""Turns over HTTP: told as they happen, one at a time, for the conversation and not for the connection."""

import asyncio
import time
from typing import Any

import httpx
import pytest
from calling import Heard, Teller, all_events, calling, listening, no_task_left
from contract_document import conforms

from quire.errors import ModelRefused, ModelThrottled, ModelUnavailable
from quire.log import SqlStore
from quire.model import Message
from quire.server import streams
from quire.server.serving import Serving
from quire.testing.scripted import Slow


async def sent(client: httpx.AsyncClient, conversation: str, message: Any, **more: Any) -> list[Heard]:
    """What is told of a turn, from its beginning to its end."""
    answer = await client.post(f"{conversation}/send", json={"message": message, **more})
    assert answer.status_code == 200, answer.text
    heard = all_events(answer.text)
    for each in heard:
        conforms(each.data, to="TurnEventShown")
    return heard


def names(heard: list[Heard]) -> list[str]:
    """The events in their order; pieces of text that follow each other count as one."""
    told = [each.event for each in heard]
    return [name for place, name in enumerate(told) if place == 0 or name != "text" or told[place - 1] != "text"]


async def messages(store: SqlStore, conversation: str = "c") -> list[tuple[str | None, str]]:
    found = await store.range(conversation, kinds=["message"])
    return [(entry.role, entry.message.text) for entry in found]


async def test_a_message_is_answered_and_its_turn_told(
    client: httpx.AsyncClient, conversation: str, teller: Teller, store: SqlStore
):
    teller.says("The tide turns at noon.")
    heard = await sent(client, conversation, "When does the tide turn?")
    assert names(heard) == [
        "turn_started",
        "question_kept",
        "request_prepared",
        "text",
        "reply_kept",
        "turn_ended",
    ]
    assert "".join(each.data["text"] for each in heard if each.event == "text") == "The tide turns at noon."
    assert [each.id for each in heard] == [str(number) for number in range(1, len(heard) + 1)]
    assert all(each.data["event"] == each.event and each.data["branch"] == 0 for each in heard)
    told = {each.event: each.data for each in heard}
    assert told["turn_started"]["message"]["parts"][0]["text"] == "When does the tide turn?"
    assert told["request_prepared"]["window"] == 8_000
    assert told["turn_ended"]["reason"] == "answered"
    shown = (await client.get(f"{conversation}/entries", params={"kinds": "message"})).json()["items"]
    assert [told["question_kept"]["entry"], told["reply_kept"]["entry"]] == shown
    assert await messages(store) == [("user", "When does the tide turn?"), ("assistant", "The tide turns at noon.")]


async def test_the_stream_is_one_that_nobody_keeps_or_holds_back(
    client: httpx.AsyncClient, conversation: str, teller: Teller
):
    teller.says("yes")
    answer = await client.post(f"{conversation}/send", json={"message": "well?"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"


async def test_without_a_message_the_turn_goes_on_from_the_log(
    client: httpx.AsyncClient, conversation: str, teller: Teller, store: SqlStore
):
    await store.append("c", Message.user("still there?"))
    teller.says("I am.")
    heard = await sent(client, conversation, None)
    assert "question_kept" not in names(heard)
    assert await messages(store) == [("user", "still there?"), ("assistant", "I am.")]


async def test_another_model_can_be_asked(client: httpx.AsyncClient, conversation: str, teller: Teller):
    teller.says("a", "b")
    heard = await sent(client, conversation, "x", model="gpt-4o-mini")
    assert teller.asked_for == ["gpt-4o-mini"]
    assert heard[-1].data["reason"] == "answered"
    await sent(client, conversation, "y")
    assert teller.asked_for == ["gpt-4o-mini", "gpt-4o"]


async def test_only_what_a_user_says_is_sent(client: httpx.AsyncClient, conversation: str, teller: Teller):
    message = Message.assistant("I say so").model_dump(mode="json")
    refused = await client.post(f"{conversation}/send", json={"message": message})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    teller.says("ok")
    asked = Message.user("hi", name="Ada").model_dump(mode="json")
    heard = await sent(client, conversation, asked)
    assert heard[1].data["entry"]["body"] == asked


async def test_a_branch_that_is_being_answered_is_not_asked_again(
    live: httpx.AsyncClient, conversation: str, teller: Teller, store: SqlStore
):
    await store.fork("c", at=0)
    teller.says(Slow(30, "late"), "at once")
    async with listening(live, f"{conversation}/send", json={"message": "first"}) as listener:
        await listener.until("question_kept")
        refused = await live.post(f"{conversation}/send", json={"message": "second"})
        assert (refused.status_code, refused.json()["code"]) == (409, "turn_under_way")
        other = await live.post(f"{conversation}/send", json={"message": "elsewhere", "branch": 1})
        assert all_events(other.text)[-1].data["reason"] == "answered"
        await live.post(f"{conversation}/stop", json={})
        await listener.until("turn_ended")
    assert await messages(store) == [("user", "first")]


async def test_a_turn_goes_on_when_its_client_leaves_and_leaves_no_task_behind(
    live: httpx.AsyncClient, conversation: str, teller: Teller, serving: Serving, store: SqlStore
):
    teller.says(Slow(0.3, "here it is"))
    async with no_task_left():
        async with listening(live, f"{conversation}/send", json={"message": "slowly"}) as listener:
            await listener.until("request_prepared")
        await asyncio.sleep(0.1)
        assert len(serving.turns) == 1
        await serving.turns.ended()
    assert await messages(store) == [("user", "slowly"), ("assistant", "here it is")]


async def test_a_client_that_leaves_is_forgotten_at_once_although_nothing_is_told(
    live: httpx.AsyncClient, conversation: str, teller: Teller, serving: Serving
):
    teller.says(Slow(30, "much later"))
    async with listening(live, f"{conversation}/send", json={"message": "slowly"}) as listener:
        await listener.until("request_prepared")
        told = asyncio.all_tasks()
    async with asyncio.timeout(2):
        # What is left of it is the turn itself: the connection's task and what it waited with are gone.
        while len([task for task in told if not task.done() and "_next" in str(task.get_coro())]) > 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert len(serving.turns) == 1


async def test_stopping_keeps_what_had_come(
    live: httpx.AsyncClient, conversation: str, teller: Teller, store: SqlStore
):
    teller.says(" ".join(["word"] * 50_000))
    async with listening(live, f"{conversation}/send", json={"message": "go on and on"}) as listener:
        await listener.until("text")
        stopped = await live.post(f"{conversation}/stop", json={"branch": 0})
        assert (stopped.status_code, stopped.json()) == (202, {"under_way": True})
        told = {each.event: each.data for each in await listener.until("turn_ended", within=20)}
    assert told["turn_ended"]["reason"] == "stopped"
    assert told["reply_kept"]["unfinished"] is True
    [question, reply] = await messages(store)
    assert question == ("user", "go on and on")
    assert 0 < len(reply[1].split()) < 50_000
    again = await live.post(f"{conversation}/stop", json={})
    assert (again.status_code, again.json()) == (202, {"under_way": False})


@pytest.mark.parametrize("approve", [True, False])
async def test_a_tool_that_needs_leave_waits_for_it(
    approve: bool, live: httpx.AsyncClient, conversation: str, teller: Teller
):
    teller.says(calling("call-1"), "so be it")
    early = await live.post(f"{conversation}/approvals/call-1", json={"approve": approve})
    assert early.status_code == 404
    async with listening(live, f"{conversation}/send", json={"message": "do it"}) as listener:
        asked = (await listener.until("approval_asked"))[-1]
        assert asked.data["call"]["id"] == "call-1"
        unknown = await live.post(f"{conversation}/approvals/call-2", json={"approve": True})
        assert unknown.status_code == 404
        decided = await live.post(f"{conversation}/approvals/call-1", json={"approve": approve})
        assert decided.status_code == 204
        rest = await listener.until("turn_ended")
    result = next(each.data["result"] for each in rest if each.event == "tool_answered")
    assert result["is_error"] is not approve
    assert teller.ran == (["call-1"] if approve else [])
    late = await live.post(f"{conversation}/approvals/call-1", json={"approve": approve})
    assert late.status_code == 404


async def test_a_failure_ends_the_stream_with_its_problem(
    client: httpx.AsyncClient, conversation: str, teller: Teller, store: SqlStore
):
    teller.says(ModelRefused("It is against the policy."))
    heard = await sent(client, conversation, "tell me")
    assert heard[-1].event == "turn_failed"
    assert heard[-1].data["problem"] == {
        "type": "about:blank",
        "title": "Bad Gateway",
        "status": 502,
        "detail": "It is against the policy.",
        "code": "model_refused",
    }
    assert await messages(store) == [("user", "tell me")]


async def test_waiting_for_a_model_is_told(client: httpx.AsyncClient, conversation: str, teller: Teller):
    teller.says(ModelThrottled("Slowly.", retry_after=0.01), "now")
    heard = await sent(client, conversation, "again?")
    retrying = next(each.data for each in heard if each.event == "retrying")
    assert retrying["problem"]["code"] == "model_throttled"
    assert heard[-1].data["reason"] == "answered"


async def test_what_nobody_foresaw_is_a_failure_without_its_details(
    client: httpx.AsyncClient, conversation: str, teller: Teller
):
    teller.says(ZeroDivisionError("the secret of the house"))
    answer = await client.post(f"{conversation}/send", json={"message": "divide"})
    last = all_events(answer.text)[-1]
    assert (last.event, last.data["problem"]["code"]) == ("turn_failed", "unexpected")
    assert "secret" not in answer.text


async def test_a_quiet_stream_shows_that_it_lives(
    live: httpx.AsyncClient, conversation: str, teller: Teller, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streams, "BEAT", 0.05)
    teller.says(Slow(0.3, "at last"))
    began = time.monotonic()
    async with listening(live, f"{conversation}/send", json={"message": "well?"}) as listener:
        heard = await listener.until("turn_ended")
    assert 3 <= listener.comments <= 1 + (time.monotonic() - began) / streams.BEAT
    assert "".join(each.data["text"] for each in heard if each.event == "text") == "at last"
    assert streams.BEAT < 15.0


class TestSentAgain:
    """With `after`, what was asked is asked once, however often the request is repeated."""

    async def test_an_answered_question_is_told_from_the_log(
        self, client: httpx.AsyncClient, conversation: str, teller: Teller, store: SqlStore
    ):
        teller.says("noon")
        first = await sent(client, conversation, "when?", after=0)
        again = await sent(client, conversation, "when?", after=0)
        assert names(again) == ["turn_started", "question_kept", "reply_kept", "turn_ended"]
        told, retold = ({each.event: each.data for each in heard} for heard in (first, again))
        for event in ("turn_started", "question_kept", "turn_ended"):
            assert retold[event] == told[event]
        assert retold["reply_kept"]["entry"] == told["reply_kept"]["entry"]
        assert await messages(store) == [("user", "when?"), ("assistant", "noon")]

    async def test_a_question_without_an_answer_is_answered(
        self, client: httpx.AsyncClient, conversation: str, teller: Teller, store: SqlStore
    ):
        teller.says(ModelUnavailable("gone"), "back again")
        assert (await sent(client, conversation, "there?", after=0))[-1].event == "turn_failed"
        heard = await sent(client, conversation, "there?", after=0)
        assert "question_kept" not in names(heard)
        assert heard[-1].data["reason"] == "answered"
        assert await messages(store) == [("user", "there?"), ("assistant", "back again")]

    async def test_one_that_is_being_answered_is_not_asked_beside_it(
        self, live: httpx.AsyncClient, conversation: str, teller: Teller, store: SqlStore
    ):
        teller.says(Slow(0.4, "slowly"))
        asked = {"message": "well?", "after": 0}
        async with listening(live, f"{conversation}/send", json=asked) as listener:
            await listener.until("question_kept")
        refused = await live.post(f"{conversation}/send", json=asked)
        assert (refused.status_code, refused.json()["code"]) == (409, "turn_under_way")
        await asyncio.sleep(0.6)
        heard = await sent(live, conversation, "well?", after=0)
        assert heard[-1].data["reason"] == "answered"
        assert await messages(store) == [("user", "well?"), ("assistant", "slowly")]

    async def test_where_something_else_was_said_it_is_refused(
        self, client: httpx.AsyncClient, conversation: str, teller: Teller, store: SqlStore
    ):
        teller.says("a", "b", "c")
        await sent(client, conversation, "one", after=0)
        for message, after in (("two", 0), ("two", 1), (None, 0)):
            refused = await client.post(f"{conversation}/send", json={"message": message, "after": after})
            assert (refused.status_code, refused.json()["code"]) == (409, "stale_head")
        ahead = await client.post(f"{conversation}/send", json={"message": "two", "after": 9})
        assert (ahead.status_code, ahead.json()["code"]) == (404, "entry_not_found")
        head = (await client.get(f"{conversation}/entries")).json()["head"]
        await sent(client, conversation, "one", after=head)
        assert [text for _, text in await messages(store)] == ["one", "a", "one", "b"]

    async def test_a_stopped_reply_is_told_as_stopped(
        self, client: httpx.AsyncClient, conversation: str, teller: Teller, store: SqlStore, serving: Serving
    ):
        engine = serving.engine("default")
        talk = await engine.conversation("c")
        head = (await store.branch("c")).head_seq
        await talk.prepare("go")
        await talk.record("half", unfinished=True)
        heard = await sent(client, conversation, "go", after=head)
        assert (heard[-1].data["reason"], heard[-2].data["unfinished"]) == ("stopped", True)

    async def test_a_question_that_another_followed_unanswered_is_refused(
        self, client: httpx.AsyncClient, conversation: str, store: SqlStore
    ):
        head = (await store.branch("c")).head_seq
        await store.append("c", Message.user("one"), Message.user("two"), Message.assistant("to both"))
        refused = await client.post(f"{conversation}/send", json={"message": "one", "after": head})
        assert (refused.status_code, refused.json()["code"]) == (409, "stale_head")
