"""`max_spend` at the gateway: aliases cost what their upstream's model costs, and an unknown price is an error."""

from typing import Any

import pytest
from gateway_fixtures import run_gateway, user_message

from fake_upstream import UpstreamRequest, run_fake_upstream
from quire.store import SqlStore

USAGE = {"prompt_tokens": 1_000, "completion_tokens": 1_000, "total_tokens": 2_000}
GPT_4O_DOLLARS = (1_000 * 2.5 + 1_000 * 10.0) / 1e6
GPT_4O_MINI_DOLLARS = (1_000 * 0.15 + 1_000 * 0.6) / 1e6


def make_responder(reported_model: str | None):
    async def respond(request: UpstreamRequest) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        await request.respond(
            {"id": "x", "object": "chat.completion", "model": reported_model, "choices": [choice], "usage": USAGE}
        )

    return respond


@pytest.mark.parametrize(
    ("upstream_model", "reported_model", "dollars"),
    [
        ("gpt-4o", None, GPT_4O_DOLLARS),
        ("gpt-4o", "served-by-house", GPT_4O_DOLLARS),
        ("gpt-4o", "gpt-4o-mini-2024-07-18", GPT_4O_MINI_DOLLARS),
    ],
)
async def test_an_alias_costs_what_the_model_behind_it_costs(
    store: SqlStore, upstream_model: str, reported_model: str | None, dollars: float
):
    async with run_fake_upstream(make_responder(reported_model)) as up:
        upstreams = {"house": {"base_url": up.url, "model": upstream_model}}
        async with run_gateway(store, up.url, upstreams=upstreams, max_spend=dollars) as harness:
            first = await harness.ask(user_message("one"), model="house", x_quire_conversation="c")
            assert first.status_code == 200
            assert await store.spending.get_cost("c") == pytest.approx(dollars)
            second = await harness.ask(user_message("two"), model="house", x_quire_conversation="c")
            assert second.status_code == 402
        assert len(up.requests) == 1


async def test_with_a_cap_a_model_of_unknown_price_is_refused_before_the_call(store: SqlStore):
    async with (
        run_fake_upstream(make_responder("up-7b")) as up,
        run_gateway(store, up.url, max_spend=1.0) as harness,
    ):
        refused = await harness.ask(user_message("one"), model="up-7b")
        assert refused.status_code == 400
        message = refused.json()["error"]["message"]
        assert all(name in message for name in ("up-7b", "max_spend", "input_price", "output_price"))
        assert not up.requests


@pytest.mark.parametrize("where", ["*", "house", "up-*"])
async def test_a_configured_price_admits_an_unlisted_model(store: SqlStore, where: str):
    prices = {"input_price": 100.0, "output_price": 100.0}
    async with run_fake_upstream(make_responder("up-7b")) as up:
        upstream: dict[str, Any] = {"base_url": up.url, "model": "up-7b"}
        settings: dict[str, Any] = {"models": {where: prices}}
        async with run_gateway(store, up.url, upstreams={"house": upstream}, max_spend=1.0, **settings) as harness:
            answered = await harness.ask(user_message("one"), model="house", x_quire_conversation="c")
            assert answered.status_code == 200
            assert await store.spending.get_cost("c") == pytest.approx(0.2)


async def test_without_a_cap_a_model_of_unknown_price_costs_nothing(store: SqlStore):
    async with (
        run_fake_upstream(make_responder("up-7b")) as up,
        run_gateway(store, up.url) as harness,
    ):
        assert (await harness.ask(user_message("one"), model="up-7b", x_quire_conversation="c")).status_code == 200
        assert await store.spending.get_cost("c") == 0


@pytest.mark.parametrize(("max_spend", "status"), [(1.0, 400), (None, 200)])
async def test_with_a_cap_a_request_that_cannot_be_recorded_is_refused(
    store: SqlStore, max_spend: float | None, status: int
):
    async with (
        run_fake_upstream(make_responder("gpt-4o")) as up,
        run_gateway(store, up.url, max_spend=max_spend) as harness,
    ):
        answer = await harness.ask({"role": "weird", "content": "x"})
        assert answer.status_code == status
        assert len(up.requests) == (status == 200)
        assert status == 200 or "max_spend" in answer.json()["error"]["message"]
