"""Every request is stored before its upstream is called, and completed with what came back: the refused, the broken
and the unanswered ones too."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from gateway_fixtures import MODEL, GatewayHarness, assistant_message, run_gateway, user_message
from sqlalchemy import Connection, select

from fake_upstream import UpstreamRequest, make_chunk_event, make_completion, respond_with_text, run_fake_upstream
from infra.database_dump import contains_text, dump_database
from quire.db.schema import exchanges
from quire.db.store_part import read
from quire.ledger.timeline import load_timeline
from quire.log.exchanges import ExchangeRecord, decode_request, encode_answer, encode_request
from quire.settings.schema import TenantMasking
from quire.store import SqlStore

Respond = Callable[[UpstreamRequest], Awaitable[None]]
POISON = "messages.41.content.3: image exceeds 5 MB maximum"
SECRET = "sk-ant-REDACTED"


def refuse(status: int, message: str = POISON) -> Respond:
    async def respond(request: UpstreamRequest) -> None:
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
        await request.respond(error, status, request_id="req_up", set_cookie="token=hidden-token")

    return respond


async def break_off(request: UpstreamRequest) -> None:
    await request.start_sse()
    await request.send_sse(make_chunk_event({"role": "assistant", "content": "Once"}), make_chunk_event(" upon"))
    await asyncio.sleep(0.05)
    request.abort_connection()


async def never_answer(request: UpstreamRequest) -> None:
    await request.wait_until_closed()


def read_rows(connection: Connection, tenant: str) -> list[Any]:
    return list(connection.execute(select(exchanges).where(exchanges.c.tenant == tenant)).mappings())


def contains_bytes(dump: bytes, packed: bytes) -> bool:
    part = packed[8:48]
    return part in dump or part.hex().encode() in dump


async def find(harness: GatewayHarness, id: str) -> dict[str, Any]:
    answer = await harness.http.get(f"/api/requests/{id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def wait_for_outcome(store: SqlStore, outcome: str) -> ExchangeRecord:
    async with asyncio.timeout(20):
        while True:
            found = [each for each in await store.list_unanswered() if each.outcome == outcome]
            if found:
                return found[-1]
            await asyncio.sleep(0.02)


@pytest.mark.every_database
@pytest.mark.parametrize("status", [400, 413, 529])
async def test_a_refused_request_is_stored_with_the_providers_words(store: SqlStore, status: int):
    async with run_fake_upstream(refuse(status)) as up, run_gateway(store, up.url) as harness:
        body = json.dumps({"model": MODEL, "messages": [user_message("Hello")], "seed": 7}).encode()
        headers = {
            "content-type": "application/json",
            "cookie": f"token={SECRET}",
            "openai-organization": SECRET,
            "x-app": "cli",
        }
        answer = await harness.http.post("/v1/chat/completions", content=body, headers=headers)
        assert answer.status_code == status
        found = await find(harness, answer.headers["x-quire-request"])
        assert (found["reply"], found["manifest"]) == (None, None)
        exchange, content = found["exchange"], found["content"]
        assert (exchange["outcome"], exchange["status"], exchange["error"]) == ("refused", status, POISON)
        assert (exchange["road"], exchange["reason"], exchange["model"]) == ("managed", "unchanged", MODEL)
        assert exchange["started_at"] <= exchange["first_byte_at"] <= exchange["completed_at"]
        assert content["request"] == body.decode()
        assert content["request_headers"]["x-app"] == "cli"
        assert POISON in content["response"]
        assert content["response_headers"]["request-id"] == "req_up"
        for text in (SECRET, "hidden-token"):
            assert text not in json.dumps(found)
            assert await store.find_value(text) == {}
        other, request = store.for_tenant("other"), exchange["id"]
        assert await other.list_unanswered() == []
        assert await other.find_exchange(request, conversation=found["conversation"]) is None
        assert await other.read_exchange(found["conversation"], request) is None
        # In a conversation that was not known before, at its place.
        [record] = await store.list_conversations()
        timeline = await load_timeline(store, record.id)
        assert [(each.id, each.after_seq) for each in timeline.unanswered] == [(exchange["id"], 0)]
        assert await store.verify_conversation(record.id) == []


@pytest.mark.every_database
async def test_a_broken_stream_is_stored_with_what_arrived(store: SqlStore):
    async with run_fake_upstream(break_off) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message("Tell"), stream=True)
        found = await find(harness, answer.headers["x-quire-request"])
        assert (found["reply"], found["exchange"]["outcome"], found["exchange"]["status"]) == (2, "broken", 200)
        assert "upon" in found["content"]["response"]
        assert "is incomplete" in found["exchange"]["error"]
        assert await store.verify_conversation(found["conversation"]) == []


async def test_an_upstream_that_never_answers_and_a_client_that_leaves(store: SqlStore):
    async with run_fake_upstream(never_answer) as up, run_gateway(store, up.url, timeout_seconds=0.3) as harness:
        answer = await harness.ask(user_message("Hello"))
        found = await find(harness, answer.headers["x-quire-request"])
        assert (found["exchange"]["outcome"], found["exchange"]["status"]) == ("unanswered", None)
        assert found["content"]["response"] == ""
    called = asyncio.Event()

    async def hang(request: UpstreamRequest) -> None:
        called.set()
        await request.wait_until_closed()

    async with run_fake_upstream(hang) as up, run_gateway(store, up.url, timeout_seconds=60) as harness:
        waiting = asyncio.ensure_future(harness.ask(user_message("Another")))
        await asyncio.wait_for(called.wait(), 10)
        # Stored before the upstream was called.
        assert [each.outcome for each in await store.list_unanswered()] == ["unanswered", None]
        waiting.cancel()
        assert (await wait_for_outcome(store, "cancelled")).completed_at is not None


async def test_attempts_of_a_first_request_are_one_conversation(store: SqlStore):
    answers = [refuse(529, "Overloaded"), refuse(400)]

    async def respond(request: UpstreamRequest) -> None:
        await (answers.pop(0)(request) if answers else request.respond(make_completion("Aye.")))

    async with run_fake_upstream(respond) as up, run_gateway(store, up.url) as harness:
        statuses = [(await harness.ask(user_message("Hello"))).status_code for _ in range(3)]
        assert statuses == [529, 400, 200]
        [record] = await store.list_conversations()
        timeline = await load_timeline(store, record.id)
        assert [each.describe() for each in timeline.unanswered] == ["529: Overloaded", f"400: {POISON}"]
        assert [row.reply for row in timeline.rows] == [2]
        # The place of a later one is after what it continued.
        answers.append(refuse(400))
        await harness.ask(user_message("Hello"), assistant_message("Aye."), user_message("And?"))
        assert [each.after_seq for each in (await load_timeline(store, record.id)).unanswered] == [0, 0, 2]
        # The same first message is another conversation once the attempt was answered.
        await harness.ask(user_message("Hello"))
        assert len(await store.list_conversations()) == 2


@pytest.mark.every_database
async def test_a_purge_reaches_the_bytes(store: SqlStore, admin_url: str):
    async with run_fake_upstream(refuse(400, f"{POISON} in plumcake-request")) as up:
        async with run_gateway(store, up.url) as harness:
            for text in ("plumcake-request", "other words"):
                await harness.ask(user_message(text), temperature=0.5)
            packed = [row["request"] for row in await store.run(read, read_rows)]
            assert all(contains_bytes(dump_database(admin_url), each) for each in packed)
            assert (await store.find_value("plumcake-request")) == {"exchanges": 2}
            purged = await store.purge_value("plumcake-request")
            assert (purged.rows, purged.remaining) == ({"exchanges": 2}, ())
            # Of the next attempt only the facts are stored: the client sends again what was purged.
            answer = await harness.ask(user_message("plumcake-request"))
            found = await find(harness, answer.headers["x-quire-request"])
            assert (found["exchange"]["status"], found["exchange"]["error"]) == (400, None)
            assert (found["content"]["request"], found["content"]["response"]) == (None, "")
        assert await store.find_value("plumcake-request") == {}
        for record in await store.list_conversations():
            assert await store.verify_conversation(record.id) == []
    dump = dump_database(admin_url)
    assert not contains_text(dump, "plumcake-request")
    assert not any(contains_bytes(dump, each) for each in packed)


async def test_a_purge_reaches_requests_that_were_not_understood(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    """They belong to no conversation, so that a purge cannot know which of them have its text."""
    async with run_fake_upstream(respond_with_text("Ahoy.")) as up, run_gateway(store, up.url) as harness:
        await harness.ask(user_message("plumcake-request"))
        [record] = await store.list_conversations()
        monkeypatch.setattr("quire.server.gateway.exchange.match_request", fail)
        await harness.ask(user_message("plumcake-request"), assistant_message("Ahoy."), user_message("More."))
        assert (await store.find_value("plumcake-request"))["exchanges"] == 2
    await store.purge(record.id)
    assert await store.find_value("plumcake-request") == {}


async def test_secrets_of_a_masked_tenant_are_in_neither_bytes_nor_words(database_url: str):
    key = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    masking = {"*": TenantMasking()}
    async with (
        SqlStore.open(database_url, masking=masking) as store,
        run_fake_upstream(refuse(400, f"bad token {key}")) as up,
        run_gateway(store, up.url) as harness,
    ):
        answer = await harness.ask(user_message(f"Use {key}"))
        assert key in answer.text
        found = await find(harness, answer.headers["x-quire-request"])
        assert key not in json.dumps(found)
        assert found["exchange"]["error"].startswith("bad token")
        [record] = await store.list_conversations()
        assert await store.verify_conversation(record.id) == []


async def test_an_export_has_refused_requests(store: SqlStore):
    async with run_fake_upstream(refuse(400)) as up, run_gateway(store, up.url) as harness:
        await harness.ask(user_message("Hello"))
    [record] = await store.list_conversations()
    lines = [line async for line in store.export_conversation(record.id)]
    other = store.for_tenant("other")
    await other.import_conversation(lines)
    assert [line async for line in other.export_conversation(record.id)] == lines
    assert [each.describe() for each in await other.list_unanswered(conversation=record.id)] == [f"400: {POISON}"]
    assert await other.verify_conversation(record.id) == []


async def test_a_request_that_cannot_be_parsed_is_stored_as_bytes(store: SqlStore):
    async with run_fake_upstream(refuse(400)) as up, run_gateway(store, up.url) as harness:
        body = json.dumps({"model": MODEL, "messages": [{"role": "critic", "content": "Hm."}]}).encode()
        answer = await harness.post(body)
        found = await find(harness, answer.headers["x-quire-request"])
        assert (found["conversation"], found["exchange"]["road"]) == ("", "unrecorded")
        assert found["content"]["request"] == body.decode()
        assert found["exchange"]["error"] == POISON
        assert await store.verify_tenant() == []


def test_a_request_is_its_line_chosen_headers_and_body():
    content = encode_request("messages", {"x-app": "cli"}, b'{"a":1}\n\n')
    assert decode_request(content) == ({"x-app": "cli"}, b'{"a":1}\n\n')
    assert decode_request(b'{"a":1}') == ({}, b'{"a":1}')
    assert encode_answer({}, b"") == b""


def fail(*_: object, **__: object) -> None:
    raise KeyError("a fault of ours")


@pytest.mark.parametrize(
    "name", ["exchange.match_request", "exchange.prepare_request", "relay.record_reply"], ids=lambda each: each
)
async def test_what_is_not_understood_reaches_the_client_and_is_stored(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, name: str
):
    """A fault of Quire costs no turn of the agent."""
    monkeypatch.setattr(f"quire.server.gateway.{name}", fail)
    async with run_fake_upstream(respond_with_text("Ahoy.")) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message("Greet."))
        assert (answer.status_code, answer.headers["x-quire-recorded"]) == (200, "no")
        assert "Ahoy." in answer.text
        assert len(up.requests) == 1
        async with asyncio.timeout(20):
            while not (kept := (await store.run(read, read_rows))[0])["outcome"]:  # noqa: ASYNC110 (of the database)
                await asyncio.sleep(0.02)
        assert kept["exchange"] == answer.headers["x-quire-request"]
        assert (kept["outcome"], kept["status"]) == ("answered", 200)
        assert len(kept["request"]) > 0
        assert len(kept["response"]) > 0
        monkeypatch.undo()
        assert (await harness.ask(user_message("Greet."))).headers.get("x-quire-recorded") is None


async def test_a_fault_under_a_spend_cap_is_an_error(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.server.gateway.exchange.match_request", fail)
    async with (
        run_fake_upstream(respond_with_text("Ahoy.")) as up,
        run_gateway(store, up.url, max_spend=1.0) as harness,
    ):
        assert (await harness.ask(user_message("Greet."))).status_code == 500
        assert up.requests == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_is_not_stored_leaves_nothing_if_settings_say_so(store: SqlStore, *, stream: bool):
    async with (
        run_fake_upstream(respond_with_text("Ahoy.")) as up,
        run_gateway(
            store, up.url, record_unstored=False, upstreams={"*": {"base_url": up.url, "speaks": ["responses"]}}
        ) as harness,
    ):
        body = {"model": MODEL, "input": "Secret", "store": False, "stream": stream}
        answer = await harness.http.post("/v1/responses", json=body)
        assert (answer.status_code, answer.headers["x-quire-recorded"]) == (200, "no")
        assert len(up.requests) == 1
        body = {**body, "previous_response_id": "resp_1"}
        assert (await harness.http.post("/v1/responses", json=body)).status_code in (200, 400)
    assert await store.list_conversations() == []
    assert await store.run(read, read_rows) == []
