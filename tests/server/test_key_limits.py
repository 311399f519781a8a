"""Limits of an API key at the gateway and at `/send`: spend caps of the key and of its tenant, and allowed models."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from gateway_fixtures import GatewayHarness, run_gateway, user_message
from server_helpers import ScriptedAgent, parse_events

from fake_upstream import UpstreamRequest, respond_with_text, run_fake_upstream
from quire.access.keys import MAX_MODEL_PATTERN_CHARS, MAX_MODEL_PATTERNS
from quire.access.spending import Spending
from quire.errors import ModelUnavailable, StoreUnavailable
from quire.store import SqlStore

USAGE = {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100}
CALL_DOLLARS = (1_000 * 2.5 + 100 * 10.0) / 1e6
"""Cost of one call of gpt-4o with this usage."""


def make_response(text: str | None = "yes", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"id": "x", "object": "chat.completion", "model": "gpt-4o", "choices": [choice], "usage": USAGE, **more}


async def respond(request: UpstreamRequest) -> None:
    await request.respond(make_response())


async def ask(harness: GatewayHarness, key: str, text: str = "one", *, model: str = "gpt-4o", **more: Any):
    body = {"model": model, "messages": [user_message(text)], "max_tokens": 100, **more}
    return await harness.post(body, authorization=f"Bearer {key}")


@asynccontextmanager
async def open_gateway(store: SqlStore, **settings: Any) -> AsyncIterator[tuple[GatewayHarness, Any]]:
    async with run_fake_upstream(respond) as up:
        upstreams = {"house": {"base_url": up.url, "model": "gpt-4o"}}
        async with run_gateway(store, up.url, upstreams=upstreams, **settings) as harness:
            yield harness, up


async def test_a_tenant_cannot_multiply_its_rate_by_further_keys(store: SqlStore):
    """Each key has a rate of its own, and an admin key creates others."""
    keys = [(await store.keys.create(f"key {number}", ["chat"]))[1] for number in range(3)]
    _, other = await store.for_tenant("other").keys.create("other", ["chat"])
    quotas = {"default": {"requests_per_minute": 4}, "*": {"requests_per_minute": 1_000}}
    async with open_gateway(store, tenant_quotas=quotas) as (harness, up):
        answers = [await ask(harness, key, f"question {turn}", model="house") for turn in range(2) for key in keys]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 429, 429]
        refused = answers[-1]
        assert "tenant 'default' is limited to 4 requests a minute" in refused.json()["error"]["message"]
        assert 0 < int(refused.headers["Retry-After"]) <= 15
        assert refused.headers["RateLimit-Policy"] == '"tenant";q=4;w=60'
        assert len(up.requests) == 4
        assert (await ask(harness, other, model="house")).status_code == 200


class TestSpendCapOfKey:
    async def test_calls_stop_when_the_key_has_spent_its_cap_whatever_the_conversation(self, store: SqlStore):
        key, text = await store.keys.create("capped", ["chat"], max_spend=1.5 * CALL_DOLLARS)
        async with open_gateway(store) as (harness, up):
            answers = [await ask(harness, text, f"question {number}", model="house") for number in range(3)]
            assert [answer.status_code for answer in answers] == [200, 200, 402]
            error = answers[-1].json()["error"]
            assert (error["code"], "--max-spend" in error["message"]) == ("spend_cap_reached", True)
            assert len(up.requests) == 2
            assert await store.spending.sum_by_key() == {key.id: pytest.approx(2 * CALL_DOLLARS)}
            other = await harness.ask(user_message("with another key"))
            assert other.status_code == 200

    async def test_a_call_whose_input_costs_more_than_is_left_never_leaves(self, store: SqlStore):
        key, text = await store.keys.create("capped", ["chat"], max_spend=0.001)
        async with open_gateway(store) as (harness, up):
            refused = await ask(harness, text, "word " * 1_000, model="house")
            assert (refused.status_code, refused.json()["error"]["code"]) == (402, "spend_cap_reached")
            assert "$0.0010 is left, and the input of this call is estimated at $0.0025" in refused.text
            assert (up.requests, await store.spending.sum_by_key()) == ([], {})
            assert (await ask(harness, text, "a short one", model="house")).status_code == 200
            assert await store.spending.sum_by_key() == {key.id: pytest.approx(CALL_DOLLARS)}

    async def test_a_model_of_unknown_price_is_refused_for_a_capped_key_only(self, store: SqlStore):
        _, text = await store.keys.create("capped", ["chat"], max_spend=1.0)
        async with open_gateway(store) as (harness, up):
            refused = await ask(harness, text, model="up-7b")
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unknown_price")
            assert not up.requests
            assert (await harness.ask(user_message("one"), model="up-7b")).status_code == 200

    @pytest.mark.every_database
    async def test_calls_in_progress_hold_their_estimate_and_a_retry_succeeds(self, store: SqlStore):
        _, text = await store.keys.create("capped", ["chat"], max_spend=0.001)
        received, release = asyncio.Event(), asyncio.Event()

        async def wait(request: UpstreamRequest) -> None:
            received.set()
            await release.wait()
            await request.respond(make_response(usage={"prompt_tokens": 1, "completion_tokens": 1}))

        async with run_fake_upstream(wait) as up, run_gateway(store, up.url) as harness:
            first = asyncio.create_task(ask(harness, text))
            await received.wait()
            held = await ask(harness, text, "two")
            assert (held.status_code, held.json()["error"]["code"]) == (429, "spend_reserved")
            assert int(held.headers["retry-after"]) > 0
            release.set()
            assert (await first).status_code == 200
            assert (await ask(harness, text, "two")).status_code == 200

    @pytest.mark.parametrize("status", [400, 429, 500])
    async def test_a_call_that_the_upstream_refuses_costs_nothing(self, store: SqlStore, status: int):
        _, text = await store.keys.create("capped", ["chat"], max_spend=0.001)

        async def refuse(request: UpstreamRequest) -> None:
            await request.respond({"error": {"message": "no"}}, status)

        async with run_fake_upstream(refuse, respond) as up, run_gateway(store, up.url) as harness:
            assert (await ask(harness, text)).status_code == status
            assert (await ask(harness, text)).status_code == 200

    async def test_an_empty_reply_costs_what_the_upstream_reports(self, store: SqlStore):
        key, text = await store.keys.create("capped", ["chat"], max_spend=1.0)

        async def respond_empty(request: UpstreamRequest) -> None:
            await request.respond(make_response(None))

        async with run_fake_upstream(respond_empty) as up, run_gateway(store, up.url) as harness:
            assert (await ask(harness, text)).status_code == 200
            assert (await store.spending.sum_by_key())[key.id] == pytest.approx(CALL_DOLLARS)

    async def test_a_client_that_disconnects_before_the_reply_pays_for_its_input(self, store: SqlStore):
        key, text = await store.keys.create("capped", ["chat"], max_spend=1.0)

        received = asyncio.Event()

        async def hang(request: UpstreamRequest) -> None:
            received.set()
            await request.wait_until_closed()

        async with run_fake_upstream(hang) as up:
            async with run_gateway(store, up.url) as harness:
                call = asyncio.create_task(ask(harness, text, "word " * 1_000))
                await received.wait()
                call.cancel()
            assert (await store.spending.sum_by_key())[key.id] == pytest.approx(1_000 * 2.5 / 1e6, rel=0.1)

    async def test_an_outage_does_not_pass_a_capped_call_through(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ):
        _, text = await store.keys.create("capped", ["chat"], max_spend=1.0)
        async with open_gateway(store, on_store_failure="pass_through") as (harness, up):
            assert (await ask(harness, text)).status_code == 200

            async def fail(*_: object, **__: object) -> None:
                raise StoreUnavailable

            for part, method in ((SqlStore, "match_history"), (Spending, "check"), (Spending, "reserve")):
                with monkeypatch.context() as outage:
                    outage.setattr(part, method, fail)
                    assert (await ask(harness, text, method)).status_code == 503
            assert len(up.requests) == 1

    async def test_a_request_that_cannot_be_recorded_is_refused(self, store: SqlStore):
        _, text = await store.keys.create("capped", ["chat"], max_spend=1.0)
        async with open_gateway(store) as (harness, up):
            body = {"model": "gpt-4o", "messages": [{"role": "weird", "content": "x"}]}
            assert (await harness.post(body, authorization=f"Bearer {text}")).status_code == 400
            assert not up.requests


class TestSpendCapOfTenant:
    @pytest.mark.every_database
    @pytest.mark.parametrize("name", ["default", "def*"])
    async def test_it_holds_for_all_keys_together(self, store: SqlStore, name: str):
        keys = [(await store.keys.create(f"key {number}", ["chat"]))[1] for number in range(3)]
        _, theirs = await store.for_tenant("other").keys.create("theirs", ["chat"])
        async with open_gateway(store, tenant_quotas={name: {"max_spend": 1.5 * CALL_DOLLARS}}) as (harness, _):
            statuses = [(await ask(harness, key, f"by {number}")).status_code for number, key in enumerate(keys)]
            assert statuses == [200, 200, 402]
            refused = await ask(harness, keys[0])
            assert "tenant_quotas" in refused.json()["error"]["message"]
            assert (await ask(harness, theirs)).status_code == 200


class TestQuotaOfTenant:
    async def test_a_turn_that_exceeds_the_stored_bytes_is_not_sent(self, store: SqlStore):
        _, key = await store.keys.create("full", ["chat", "write"])
        _, theirs = await store.for_tenant("other").keys.create("theirs", ["chat"])
        quotas = {"default": {"stored_bytes": 60_000}}
        async with open_gateway(store, tenant_quotas=quotas, reserved_response_tokens=100) as (harness, up):
            assert (await ask(harness, key, "x" * 10_000)).status_code == 200
            refused = await ask(harness, key, "y" * 50_000)
            assert refused.status_code == 413
            error = refused.json()["error"]
            assert (error["code"], "quire conversation purge" in error["message"]) == ("storage_quota_reached", True)
            headers = {"authorization": f"Bearer {key}"}
            upload = await harness.http.post("/api/blobs", content=b"z" * 50_000, headers=headers)
            assert (upload.status_code, upload.json()["code"]) == (413, "storage_quota_reached")
            assert (await ask(harness, theirs, "y" * 50_000)).status_code == 200
            assert (await ask(harness, key, "short")).status_code == 200
            assert len(up.requests) == 3
            [newest] = [record.id for record in await store.list_conversations(limit=1)]
            assert [entry.role for entry in await store.read_range(newest)] == ["user", "assistant"]

    async def test_a_tenant_that_computes_too_much_waits(self, store: SqlStore):
        _, key = await store.keys.create("busy", ["chat"])
        _, theirs = await store.for_tenant("other").keys.create("theirs", ["chat"])
        async with open_gateway(store, tenant_quotas={"default": {"worker_seconds": 0.001}}) as (harness, up):
            assert (await ask(harness, key, "small")).status_code == 200
            assert (await ask(harness, key, "word " * 100_000)).status_code == 200
            refused = await ask(harness, key, "small")
            assert refused.status_code == 429
            assert "0.001 seconds of computation" in refused.json()["detail"]
            assert int(refused.headers["Retry-After"]) > 0
            assert (await ask(harness, theirs, "word " * 100_000)).status_code == 200
            assert len(up.requests) == 3


class TestSpendCapAtSend:
    @pytest.fixture
    def options(self) -> dict[str, object]:
        return {"models": {"*": {"input_price": 100.0, "output_price": 100.0}}, "reserved_response_tokens": 10}

    async def test_a_turn_fails_when_its_key_has_spent_its_cap(
        self, client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, store: SqlStore
    ):
        key, text = await store.keys.create("capped", ["chat", "read"], max_spend=0.004)
        scripted.set_script("It is noon.", repeat=True)
        headers = {"Authorization": f"Bearer {text}"}
        first = await client.post(f"{conversation}/send", json={"message": "one"}, headers=headers)
        assert parse_events(first.text)[-1].event == "turn_ended"
        assert (await store.spending.sum_by_key())[key.id] > 0.004
        second = parse_events(
            (await client.post(f"{conversation}/send", json={"message": "two"}, headers=headers)).text
        )
        assert (second[-1].event, second[-1].data["problem"]["code"]) == ("turn_failed", "spend_cap_reached")
        compacted = await client.post(f"{conversation}/compaction", json={}, headers=headers)
        assert compacted.status_code == 402

    @pytest.mark.every_database
    async def test_a_failed_call_releases_its_reservation(
        self, client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, store: SqlStore
    ):
        _, text = await store.keys.create("capped", ["chat"], max_spend=0.005)
        headers = {"Authorization": f"Bearer {text}"}
        scripted.set_script(ModelUnavailable("gone"), "back")
        failed = await client.post(f"{conversation}/send", json={"message": "one"}, headers=headers)
        assert parse_events(failed.text)[-1].event == "turn_failed"
        again = await client.post(f"{conversation}/send", json={"message": "two"}, headers=headers)
        assert parse_events(again.text)[-1].event == "turn_ended"


class TestAllowedModels:
    @pytest.mark.parametrize(
        ("models", "model", "status"),
        [
            (["gpt-4o*"], "gpt-4o-mini", 200),
            (["gpt-4o"], "gpt-4o-mini", 403),
            (["gpt-4o"], "house", 200),
            (["house"], "house", 200),
            (["house"], "gpt-4o", 403),
            (["claude-*", "hou[st]e"], "house", 200),
            (["GPT-4O"], "gpt-4o", 403),
        ],
    )
    async def test_the_name_of_the_client_or_of_the_upstream_must_match(
        self, store: SqlStore, models: list[str], model: str, status: int
    ):
        _, text = await store.keys.create("limited", ["chat"], models=models)
        async with open_gateway(store) as (harness, up):
            answer = await ask(harness, text, model=model)
            assert answer.status_code == status
            assert len(up.requests) == (status == 200)
            if status == 403:
                error = answer.json()["error"]
                assert (error["code"], error["type"]) == ("model_not_allowed", "invalid_request_error")
                assert all(name in error["message"] for name in (model, *models))

    @pytest.mark.parametrize(
        ("fields", "status"),
        [
            (b'"model":"gpt-4o"', 200),
            (b'"metadata":{"model":"gpt-4"},"model":"gpt-4o"', 200),
            (b'"model":"gpt-4","model":"gpt-4o"', 400),
            (b'"mod\\u0065l":"gpt-4","model":"gpt-4o"', 400),
            (b'"model":"gpt-4o","models":["gpt-4"]', 403),
            (b'"model":["gpt-4o"]', 403),
        ],
    )
    async def test_a_body_cannot_name_a_second_model(self, store: SqlStore, fields: bytes, status: int):
        _, text = await store.keys.create("limited", ["chat"], models=["gpt-4o"])
        async with open_gateway(store) as (harness, up):
            body = b'{"messages":[{"role":"user","content":"one"}],' + fields + b"}"
            answer = await harness.post(body, authorization=f"Bearer {text}")
            assert answer.status_code == status, answer.text
            assert len(up.requests) == (status == 200)

    async def test_only_allowed_models_are_listed(self, store: SqlStore):
        _, text = await store.keys.create("limited", ["chat"], models=["house", "up-1*"])

        async def list_models(request: UpstreamRequest) -> None:
            await request.respond({"data": [{"id": "up-1b"}, {"id": "up-2b"}, {"id": "gpt-4o"}]})

        async with run_fake_upstream(list_models) as up:
            upstreams = {name: {"base_url": up.url} for name in ("house", "other")}
            async with run_gateway(store, up.url, upstreams=upstreams) as harness:
                listed = await harness.http.get("/v1/models", headers={"Authorization": f"Bearer {text}"})
                assert sorted(each["id"] for each in listed.json()["data"]) == ["house", "up-1b"]
                everything = await harness.http.get("/v1/models")
                assert len(everything.json()["data"]) == 5

    async def test_send_refuses_other_models_and_the_default_model_too(
        self, client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent, store: SqlStore
    ):
        _, text = await store.keys.create("limited", ["chat"], models=["claude-*"])
        scripted.set_script("yes", repeat=True)
        headers = {"Authorization": f"Bearer {text}"}
        for fields, status in (({}, 403), ({"model": "gpt-4o"}, 403), ({"model": "claude-sonnet-4-5"}, 200)):
            answer = await client.post(f"{conversation}/send", json={"message": "one", **fields}, headers=headers)
            assert answer.status_code == status
            assert status == 200 or answer.json()["code"] == "model_not_allowed"
        assert scripted.requested_models == ["claude-sonnet-4-5"]

    async def test_an_outage_does_not_pass_other_models_through(self, store: SqlStore, monkeypatch: pytest.MonkeyPatch):
        _, text = await store.keys.create("limited", ["chat"], models=["gpt-4o"])
        async with (
            run_fake_upstream(respond_with_text("a")) as up,
            run_gateway(store, up.url, on_store_failure="pass_through") as harness,
        ):
            assert (await ask(harness, text)).status_code == 200

            async def fail(*_: object, **__: object) -> None:
                raise StoreUnavailable

            monkeypatch.setattr(SqlStore, "match_history", fail)
            assert (await ask(harness, text, model="gpt-4")).status_code == 403


class TestCreation:
    @pytest.mark.parametrize(
        "fields",
        [
            {"max_spend": 0},
            {"max_spend": -1},
            {"max_spend": 1e10},
            {"models": []},
            {"models": [""]},
            {"models": ["x" * (MAX_MODEL_PATTERN_CHARS + 1)]},
            {"models": ["m"] * (MAX_MODEL_PATTERNS + 1)},
            {"models": ["a\0b"]},
        ],
    )
    async def test_limits_out_of_range_are_refused(
        self, client: httpx2.AsyncClient, store: SqlStore, fields: dict[str, Any]
    ):
        before = len(await store.keys.list())
        answer = await client.post("/api/keys", json={"name": "n", "scopes": ["chat"], **fields})
        assert answer.status_code in (400, 422)
        assert len(await store.keys.list()) == before

    async def test_the_largest_limits_are_stored_and_listed_with_what_was_spent(
        self, client: httpx2.AsyncClient, store: SqlStore
    ):
        models = [str(number).rjust(MAX_MODEL_PATTERN_CHARS, "*") for number in range(MAX_MODEL_PATTERNS)]
        fields = {"name": "n", "scopes": ["chat"], "models": models, "max_spend": 12.5}
        created = (await client.post("/api/keys", json=fields)).json()
        await store.create_conversation("c")
        await store.spending.add_cost("c", 0.25, key_id=created["id"])
        await store.spending.add_cost("c", 0.5)
        [listed] = [each for each in (await client.get("/api/keys")).json()["items"] if each["id"] == created["id"]]
        assert (listed["models"], listed["max_spend"], listed["spent_usd"]) == (models, 12.5, 0.25)
        assert (await client.get("/api/keys/spending")).json() == {"spent_usd": 0.75, "max_spend": None}

    async def test_a_capped_key_creates_no_key_that_calls_models(self, client: httpx2.AsyncClient, store: SqlStore):
        _, text = await store.keys.create("limited", ["admin", "chat", "read"], max_spend=5.0)
        headers = {"Authorization": f"Bearer {text}"}
        for scopes, status in ((["read"], 201), (["read", "chat"], 403)):
            answer = await client.post("/api/keys", json={"name": "n", "scopes": scopes}, headers=headers)
            assert answer.status_code == status
