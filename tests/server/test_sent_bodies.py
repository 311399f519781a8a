"""Bodies of requests are given back as they were sent, to the byte: after a restart, on forks, from an export."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from gateway_fixtures import MODEL, GatewayHarness, assistant_message, run_gateway, system_message, user_message
from sqlalchemy import Connection, delete, func, select, update

from fake_upstream import respond_with_text, run_fake_upstream
from infra.agent_captures import SESSIONS, load_capture, replay_script
from infra.scripted_provider import run_scripted_provider
from quire.db.schema import exchanges
from quire.db.store_part import read, write
from quire.engine import Engine, EngineConfig
from quire.errors import EntryNotFound, ImportFailed, IntegrityViolation
from quire.log.exchanges import MAX_CHAIN_DELTAS
from quire.proxy.sent_requests import load_sent_request
from quire.settings import Settings
from quire.store import SqlStore

SECRET = "hunter2-in-a-field-that-is-no-message"


def make_engine(store: SqlStore) -> Engine:
    return Engine(store, EngineConfig.create(Settings(model=MODEL)))


async def read_all(store: SqlStore) -> dict[tuple[str, int, int], bytes]:
    """The body of every recorded request, by conversation, branch and reply."""
    bodies: dict[tuple[str, int, int], bytes] = {}
    for record in await store.list_conversations():
        for branch in await store.list_branches(record.id):
            for seq, manifest in await store.list_manifests(record.id, branch=branch.number):
                replay = await (await make_engine(store).conversation(record.id, branch=branch.number)).replay(seq)
                assert replay.sent_body is not None, replay.unknown
                assert replay.unknown is None
                bodies[record.id, manifest.branch, seq] = replay.sent_body
    return bodies


async def count_bodies(store: SqlStore, *, whole: bool = False) -> int:
    def count(connection: Connection, tenant: str) -> int:
        query = select(func.count()).where(exchanges.c.tenant == tenant, exchanges.c.size > 0)
        return connection.execute(query.where(exchanges.c.base.is_(None)) if whole else query).scalar_one()

    return await store.run(read, count)


async def ask_turns(harness: GatewayHarness, count: int, *, start: Sequence[dict[str, Any]] = ()) -> list[bytes]:
    """Sends a list that grows by a question and its reply; returns the bodies."""
    messages, bodies = [*start], list[bytes]()
    for number in range(count):
        messages.append(user_message(f"Question {number}?"))
        fields = {"model": MODEL, "messages": messages, "user": SECRET, "seed": number}
        bodies.append(json.dumps(fields).encode())
        answer = await harness.post(bodies[-1])
        assert answer.status_code == 200, answer.text
        messages.append(assistant_message(answer.json()["choices"][0]["message"]["content"]))
    return bodies


@pytest.mark.parametrize("name", SESSIONS)
async def test_captured_sessions_are_given_back_after_a_restart(database_url: str, name: str):
    captured = load_capture(name)
    speaks = "responses" if name.startswith("codex") else "messages"
    with run_scripted_provider(replay_script(captured)) as provider:
        upstreams = {"*": {"base_url": provider.openai_url, "speaks": [speaks]}}
        async with (
            SqlStore.open(database_url) as store,
            run_gateway(store, provider.openai_url, upstreams=upstreams, context_limit=200_000) as harness,
        ):
            for request in captured:
                answer = await harness.http.post(request.path, content=request.raw, headers=request.headers)
                assert answer.status_code == 200, answer.text
    async with SqlStore.open(database_url) as store:
        bodies = await read_all(store)
        assert sorted(bodies.values()) == sorted(request.raw for request in provider.requests)
        for conversation, branch, seq in bodies:
            sent = await load_sent_request(store, conversation, seq, branch=branch)
            assert sent is not None
            assert sent.items == sent.fields["input" if speaks == "responses" else "messages"]
            assert await store.verify_conversation(conversation) == []


async def test_a_long_conversation_has_a_whole_body_now_and_then(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Aye.")) as up, run_gateway(store, up.url) as harness:
        sent = await ask_turns(harness, MAX_CHAIN_DELTAS + 3, start=[system_message("Be brief. " * 100)])
    assert list((await read_all(store)).values()) == sent == [request.raw for request in up.requests]
    assert await count_bodies(store, whole=True) == 2


async def test_a_fork_is_a_delta_to_the_last_body_whatever_its_branch(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Aye.")) as up, run_gateway(store, up.url) as harness:
        first = await ask_turns(harness, 4)
        opening = [user_message("Question 0?"), assistant_message("Aye."), user_message("Other question?")]
        answer = await harness.ask(*opening)
        assert answer.headers["x-quire-branch"] == "1"
        bodies = await read_all(store)
    assert sorted(bodies.values()) == sorted([*first, up.requests[-1].raw])
    assert await count_bodies(store, whole=True) == 1


@pytest.mark.every_database
async def test_a_purge_deletes_the_bodies_and_later_ones_are_not_stored(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Aye.")) as up, run_gateway(store, up.url) as harness:
        sent = await ask_turns(harness, 3)
        [record] = await store.list_conversations()
        await store.purge(record.id, [3])
        assert await count_bodies(store) == 0
        # The client still has the purged message, and sends it again.
        await ask_turns(harness, 2, start=[*json.loads(sent[-1])["messages"], assistant_message("Aye.")])
        assert len(await store.list_manifests(record.id)) == 5
        assert await count_bodies(store) == 0
        conversation = await make_engine(store).conversation(record.id)
        replay = await conversation.replay(8)
        assert replay.sent_body is None
        assert replay.unknown is not None
        assert "purged" in replay.unknown
        assert await store.verify_conversation(record.id) == []
        # Another conversation is not affected.
        await ask_turns(harness, 1, start=[user_message("Another"), assistant_message("Aye.")])
        assert await count_bodies(store) == 1


@pytest.mark.every_database
async def test_a_purge_by_value_finds_what_only_the_bodies_have(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Aye.")) as up, run_gateway(store, up.url) as harness:
        await ask_turns(harness, 3)
        assert (await store.find_value(SECRET)) == {"exchanges": 3}
        # Between what is copied and what is new.
        assert (await store.find_value('"seed": 2}')) == {"exchanges": 1}
        purged = await store.purge_value(SECRET)
        assert (purged.rows, purged.remaining) == ({"exchanges": 3}, ())
        assert await count_bodies(store) == 0


async def test_an_export_has_the_bodies(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Aye.")) as up, run_gateway(store, up.url) as harness:
        sent = await ask_turns(harness, 3)
    [record] = await store.list_conversations()
    lines = [line async for line in store.export_conversation(record.id)]
    other = store.for_tenant("other")
    await other.import_conversation(lines)
    assert list((await read_all(other)).values()) == sent
    assert [line async for line in other.export_conversation(record.id)] == lines
    damaged = [line.replace('"size":', '"size":1') for line in lines]
    with pytest.raises(ImportFailed, match="Line"):
        await store.for_tenant("third").import_conversation(damaged)


async def test_a_changed_body_is_not_given_back(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Aye.")) as up, run_gateway(store, up.url) as harness:
        await ask_turns(harness, 3)
        [record] = await store.list_conversations()

        def damage(connection: Connection, _: str) -> None:
            connection.execute(update(exchanges).where(exchanges.c.seq == 4).values(base=exchanges.c.exchange))
            connection.execute(delete(exchanges).where(exchanges.c.seq == 2))

        await store.run(write, damage)
        faults = await store.verify_conversation(record.id)
        assert [fault.seq for fault in faults] == [4, 6]
        conversation = await make_engine(store).conversation(record.id)
        with pytest.raises(IntegrityViolation):
            await conversation.replay(6)


async def test_the_api_gives_the_bytes(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Aye.")) as up, run_gateway(store, up.url) as harness:
        [sent] = await ask_turns(harness, 1)
        [record] = await store.list_conversations()
        path = f"/api/conversations/{record.id}/requests"
        assert (await harness.http.get(f"{path}/2/body")).content == sent
        replay = (await harness.http.get(f"{path}/2/replay")).json()
        assert (replay["is_as_sent"], replay["body"], replay["unknown"]) == (True, sent.decode(), None)
        assert (await harness.http.get(f"{path}/1/body")).status_code == 404
    with pytest.raises(EntryNotFound):
        await load_sent_request(store, record.id, 1)
