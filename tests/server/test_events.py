"""Listening to a conversation: whoever moves it, everyone who listens knows within a second."""

import asyncio
import time
from collections.abc import Mapping

import httpx
import pytest
from calling import Teller, listening, no_task_left
from fastapi import FastAPI

from quire.errors import StoreUnavailable
from quire.log import SqlStore
from quire.model import Message
from quire.server import listening as hearing
from quire.server.listening import Heads, listening_of
from quire.server.serving import Serving
from quire.server.told import BranchChanged
from quire.testing.scripted import Slow


async def test_at_first_every_branch_is_told_as_it_stands(live: httpx.AsyncClient, conversation: str, store: SqlStore):
    head = (await store.append("c", Message.user("a"), Message.user("b")))[-1].seq
    await store.fork("c", at=head - 1)
    async with listening(live, f"{conversation}/events") as listener:
        told = [await listener.next(), await listener.next()]
        assert listener.response.headers["cache-control"] == "no-store"
    assert [each.data for each in told] == [
        {"event": "changed", "branch": 0, "head": head},
        {"event": "changed", "branch": 1, "head": head - 1},
    ]
    assert [each.id for each in told] == ["1", "2"]


async def test_what_another_process_adds_is_told_within_a_second(
    live: httpx.AsyncClient, conversation: str, store: SqlStore, database_url: str
):
    async with SqlStore.open(database_url) as elsewhere, listening(live, f"{conversation}/events") as listener:
        await listener.next()
        for number in range(3):
            [entry] = await elsewhere.append("c", Message.user(f"from elsewhere {number}"))
            began = time.monotonic()
            await listener.until("changed", branch=0, head=entry.seq)
            assert time.monotonic() - began < 1
        branch = await elsewhere.fork("c", at=1)
        await listener.until("changed", branch=branch.number, head=1, within=1)


async def test_a_turn_is_told_as_it_happens_and_to_who_comes_later_from_its_beginning(
    live: httpx.AsyncClient, conversation: str, teller: Teller, serving: Serving
):
    teller.says(Slow(0.4, "here it is"))
    async with listening(live, f"{conversation}/events") as early:
        await early.next()
        async with listening(live, f"{conversation}/send", json={"message": "well?"}) as sender:
            await sender.until("request_prepared")
            async with listening(live, f"{conversation}/events") as late:
                told = [await each.until("turn_ended") for each in (sender, early, late)]
        turns = [[each.data for each in heard if each.event != "changed"] for heard in told]
    # The sender had heard the first three before.
    assert turns[1] == turns[2]
    assert turns[0] == turns[1][3:]
    assert [each["event"] for each in turns[1]][:3] == ["turn_started", "question_kept", "request_prepared"]


async def test_a_turn_on_a_branch_made_meanwhile_is_told_too(
    live: httpx.AsyncClient, conversation: str, teller: Teller, store: SqlStore
):
    teller.says("on the branch")
    async with listening(live, f"{conversation}/events") as listener:
        await listener.next()
        made = await live.post(f"{conversation}/branches", json={"at": 0})
        await listener.until("changed", branch=made.json()["number"])
        await live.post(f"{conversation}/send", json={"message": "x", "branch": made.json()["number"]})
        ended = (await listener.until("turn_ended"))[-1]
    assert ended.data["branch"] == 1


async def test_many_listeners_are_one_look_at_the_store(
    live: httpx.AsyncClient, app: FastAPI, conversation: str, store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    looks: list[str] = []
    heads_of = hearing._heads_of  # pyright: ignore[reportPrivateUsage]

    async def counted(store: SqlStore, conversation: str) -> Mapping[int, int]:
        looks.append(conversation)
        return await heads_of(store, conversation)

    monkeypatch.setattr(hearing, "_heads_of", counted)
    monkeypatch.setattr(hearing, "LOOK", 0.1)
    async with (
        no_task_left(),
        listening(live, f"{conversation}/events") as one,
        listening(live, f"{conversation}/events") as two,
        listening(live, f"{conversation}/events") as three,
    ):
        for listener in (one, two, three):
            await listener.next()
        assert len(listening_of(app)) == 1
        looks.clear()
        await asyncio.sleep(1)
        assert 4 <= len(looks) <= 11
        [entry] = await store.append("c", Message.user("all hear it"))
        for listener in (one, two, three):
            await listener.until("changed", head=entry.seq)
    assert len(listening_of(app)) == 0
    looks.clear()
    await asyncio.sleep(0.3)
    assert looks == []


async def test_who_leaves_in_the_middle_of_a_turn_leaves_no_task_behind(
    live: httpx.AsyncClient, app: FastAPI, conversation: str, teller: Teller, serving: Serving
):
    teller.says(Slow(0.5, "done"))
    async with no_task_left():
        async with (
            listening(live, f"{conversation}/send", json={"message": "x"}) as sender,
            listening(live, f"{conversation}/events") as listener,
        ):
            await sender.until("request_prepared")
            await listener.until("request_prepared")
        await asyncio.sleep(0.1)
        assert len(listening_of(app)) == 0
        assert len(serving.turns) == 1
        assert [task for task in asyncio.all_tasks() if "_Listener" in str(task.get_coro())] == []
        await serving.turns.ended()


async def test_a_store_that_is_away_for_a_while_ends_nothing():
    heads = {0: 1}
    away = False

    async def look() -> Mapping[int, int]:
        if away:
            raise StoreUnavailable
        return dict(heads)

    told: list[BranchChanged | None] = []
    watched = Heads(look)
    watched.join(told.append)
    await asyncio.sleep(0.05)
    away = True
    await asyncio.sleep(0.6)
    heads[0], away = 2, False
    await asyncio.sleep(0.6)
    assert [each.head for each in told if each is not None] == [1, 2]
    assert watched.leave(told.append) is True


async def test_listeners_are_not_left_waiting_if_looking_breaks():
    async def look() -> Mapping[int, int]:
        raise ZeroDivisionError

    told: list[BranchChanged | None] = []
    watched = Heads(look)
    watched.join(told.append)
    with pytest.raises(ZeroDivisionError):
        await watched._task  # pyright: ignore[reportPrivateUsage]
    assert told == [None]


async def test_a_server_that_stops_says_so_to_who_listens(live: httpx.AsyncClient, app: FastAPI, conversation: str):
    async with no_task_left(), listening(live, f"{conversation}/events") as listener:
        await listener.next()
        app.state.stopping.begin()
        assert "event: server_stopping" in await listener.rest()


async def test_what_is_not_there_cannot_be_listened_to(client: httpx.AsyncClient):
    missing = await client.get("/api/conversations/nowhere/events")
    assert (missing.status_code, missing.json()["code"]) == (404, "conversation_not_found")
