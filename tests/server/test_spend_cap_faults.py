"""A spend cap on two servers that are killed: what a dead server had reserved counts until it expires, not longer."""

import asyncio
from pathlib import Path

import httpx2
import psycopg
import pytest
from fleet import Fleet
from gateway_fixtures import user_message
from test_spend_cap_fleet import CALL_DOLLARS, MAX_TOKENS, USAGE, run_servers

from fake_upstream import UpstreamRequest, run_fake_upstream
from quire.store import SqlStore

pytestmark = [
    pytest.mark.every_postgres,
    pytest.mark.nightly,
]

CAP_DOLLARS = 1.5 * CALL_DOLLARS
"""Admits a second call while the first is in progress, and no third."""


class HeldUpstream:
    """Holds every call until it is released, so that a server can be killed between reservation and reply."""

    def __init__(self) -> None:
        self.arrived, self.released = asyncio.Semaphore(0), asyncio.Event()

    async def respond(self, request: UpstreamRequest) -> None:
        self.arrived.release()
        await self.released.wait()
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        await request.respond({"id": "x", "object": "chat.completion", "choices": [choice], "usage": USAGE})


async def ask(client: httpx2.AsyncClient, fleet: Fleet, node: int, number: int) -> int | None:
    """Returns the status; None if the server died."""
    body = {"model": "gpt-4o", "messages": [user_message(f"question {number}")], "max_tokens": MAX_TOKENS}
    try:
        url = f"http://127.0.0.1:{fleet.ports[node]}/v1/chat/completions"
        return (await client.post(url, json=body)).status_code
    except httpx2.HTTPError:
        return None


async def test_the_reservation_of_a_killed_server_counts_until_it_expires(
    database_url: str, admin_url: str, tmp_path: Path
):
    upstream = HeldUpstream()
    async with (
        SqlStore.open(database_url) as store,
        run_fake_upstream(upstream.respond) as up,
        run_servers(database_url, tmp_path, up.url) as fleet,
    ):
        key, text = await store.keys.create("capped", ["chat"], max_spend=CAP_DOLLARS)
        async with httpx2.AsyncClient(timeout=120, headers={"Authorization": f"Bearer {text}"}) as client:
            calls = [asyncio.create_task(ask(client, fleet, node, node)) for node in (0, 1)]
            await upstream.arrived.acquire()
            await upstream.arrived.acquire()
            # Both calls are reserved: neither server admits another.
            assert [await ask(client, fleet, node, 2 + node) for node in (0, 1)] == [429, 429]
            fleet.servers[0].kill()
            assert await calls[0] is None
            assert await ask(client, fleet, 1, 4) == 429
            upstream.released.set()
            assert await calls[1] == 200
            assert (await store.spending.sum_by_key())[key.id] == pytest.approx(CALL_DOLLARS)
            with psycopg.connect(admin_url, autocommit=True) as owner:
                [(left,)] = owner.execute("SELECT count(*) FROM quire_spend_reservations").fetchall()
                assert left == 1
                assert await ask(client, fleet, 1, 5) == 429
                owner.execute("UPDATE quire_spend_reservations SET expires_at = 0")
            statuses = [await ask(client, fleet, 1, 6 + number) for number in range(4)]
        spent = (await store.spending.sum_by_key())[key.id]
    assert statuses[0] == 200
    assert statuses[-1] == 402
    assert spent == pytest.approx(2 * CALL_DOLLARS)
