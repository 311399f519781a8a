"""A spend cap holds on two servers with one PostgreSQL: 200 concurrent requests, an alias and an unpriced model."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import psycopg
import pytest
from fleet import Fleet
from gateway_fixtures import user_message

from fake_upstream import UpstreamRequest, run_fake_upstream
from quire.store import SqlStore

REQUEST_COUNT = 200
MAX_TOKENS = 100
USAGE = {"prompt_tokens": 10, "completion_tokens": MAX_TOKENS, "total_tokens": 10 + MAX_TOKENS}
CALL_DOLLARS = (10 * 2.5 + MAX_TOKENS * 10.0) / 1e6
"""Cost of one call of gpt-4o with this usage."""
CAP_CALLS = 20
"""Calls that the cap pays for."""
MODELS = ("gpt-4o", "house", "up-7b")
"""A listed model, an alias of it, and a model without a price."""


CAP_DOLLARS = CAP_CALLS * CALL_DOLLARS


class SlowUpstream:
    """Responds so slowly that the calls of both servers overlap, and counts the calls in progress."""

    def __init__(self) -> None:
        self.calls_in_progress = self.most_calls_in_progress = 0

    async def respond(self, request: UpstreamRequest) -> None:
        self.calls_in_progress += 1
        self.most_calls_in_progress = max(self.most_calls_in_progress, self.calls_in_progress)
        await asyncio.sleep(0.3)
        self.calls_in_progress -= 1
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        await request.respond({"id": "x", "object": "chat.completion", "choices": [choice], "usage": USAGE})


@asynccontextmanager
async def run_servers(database_url: str, folder: Path, upstream_url: str, **settings: object) -> AsyncIterator[Fleet]:
    """Runs two servers with these settings."""
    upstreams = {"house": {"base_url": upstream_url, "model": "gpt-4o"}}
    overrides = {"QUIRE_BASE_URL": upstream_url, "QUIRE_UPSTREAMS": json.dumps(upstreams), "QUIRE_MODEL": "gpt-4o"}
    overrides |= {f"QUIRE_{name.upper()}": json.dumps(value) for name, value in settings.items()}
    fleet = Fleet(database_url, "", folder, overrides)
    try:
        fleet.start_server()
        fleet.start_server()
        await fleet.wait_ready()
        yield fleet
    finally:
        fleet.stop()


async def ask(client: httpx2.AsyncClient, fleet: Fleet, key: str, number: int) -> tuple[int, str, int]:
    """Sends a request, again while calls in progress hold the rest of the cap; returns port, model and status."""
    port, model = fleet.ports[number // len(MODELS) % 2], MODELS[number % len(MODELS)]
    body = {"model": model, "messages": [user_message(f"question {number}")], "max_tokens": MAX_TOKENS}
    url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"Authorization": f"Bearer {key}"}
    while True:
        response = await client.post(url, json=body, headers=headers)
        if response.status_code != 429:
            return port, model, response.status_code
        assert response.json()["error"]["code"] == "spend_reserved"
        await asyncio.sleep(0.2)


@pytest.mark.nightly
@pytest.mark.every_postgres
@pytest.mark.parametrize("capped", ["key", "tenant", "conversation"])
async def test_two_servers_spend_the_cap_to_within_one_call(
    database_url: str, admin_url: str, tmp_path: Path, capped: str
):
    upstream = SlowUpstream()
    settings = {
        "tenant": {"tenant_quotas": {"default": {"max_spend": CAP_DOLLARS}}},
        "conversation": {"max_spend": CAP_DOLLARS},
    }
    async with (
        SqlStore.open(database_url) as store,
        run_fake_upstream(upstream.respond) as up,
        run_servers(database_url, tmp_path, up.url, **settings.get(capped, {})) as fleet,
        httpx2.AsyncClient(timeout=120, limits=httpx2.Limits(max_connections=None)) as client,
    ):
        key, text = await store.keys.create("capped", ["chat"], max_spend=CAP_DOLLARS if capped == "key" else None)
        if capped == "conversation":
            client.headers["X-Quire-Conversation"] = "c"
        answers = await asyncio.gather(*(ask(client, fleet, text, number) for number in range(REQUEST_COUNT)))
        spent = (await store.spending.sum_by_key())[key.id]
    statuses = {model: Counter(status for _, name, status in answers if name == model) for model in MODELS}
    served = [(port, model) for port, model, status in answers if status == 200]
    assert set(statuses["up-7b"]) == {400}
    assert set(statuses["gpt-4o"]) | set(statuses["house"]) == {200, 402}
    assert len(served) == len(up.requests)
    # The last call is refused if the cap cannot pay its input, and may exceed the cap by its reply.
    assert CAP_DOLLARS - CALL_DOLLARS < spent <= CAP_DOLLARS + CALL_DOLLARS + 1e-9
    assert spent == pytest.approx(len(served) * CALL_DOLLARS)
    assert {port for port, _ in served} == set(fleet.ports)
    assert {model for _, model in served} == {"gpt-4o", "house"}
    assert upstream.most_calls_in_progress > 1
    with psycopg.connect(admin_url) as connection:
        assert connection.execute("SELECT count(*) FROM quire_spend_reservations").fetchone() == (0,)
