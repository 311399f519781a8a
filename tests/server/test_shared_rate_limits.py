"""The rate limit of a key holds for all servers of a database together."""

import asyncio
import time
from collections.abc import AsyncIterator

import psycopg
import pytest

from quire.access.keys import RateLimits
from quire.errors import StoreUnavailable
from quire.server.rate_limits import BATCH_SHARE, SharedRateLimiter
from quire.store import SqlStore

PER_MINUTE = 60
TOLERANCE = 0.1

pytestmark = pytest.mark.every_postgres


@pytest.fixture
async def nodes(store: SqlStore, database_url: str) -> AsyncIterator[list[SharedRateLimiter]]:
    """The rate limiters of two servers."""
    async with SqlStore.open(database_url) as other:
        yield [SharedRateLimiter(store), SharedRateLimiter(other)]


def refilled_since(started_at: float, per_minute: int) -> float:
    return (time.monotonic() - started_at) * per_minute / 60


async def count_allowed(nodes: list[SharedRateLimiter], requests: int, per_minute: int) -> int:
    statuses = [await nodes[number % len(nodes)].acquire("default", "key", per_minute) for number in range(requests)]
    return sum(status.retry_after is None for status in statuses)


@pytest.mark.parametrize("per_minute", [3, PER_MINUTE])
async def test_two_nodes_together_hold_the_rate(nodes: list[SharedRateLimiter], per_minute: int):
    started_at = time.monotonic()
    allowed = await count_allowed(nodes, 3 * per_minute, per_minute)
    assert (1 - TOLERANCE) * per_minute <= allowed
    assert allowed <= per_minute + refilled_since(started_at, per_minute) + 1


async def test_concurrent_requests_hold_it_too(nodes: list[SharedRateLimiter]):
    started_at = time.monotonic()
    statuses = await asyncio.gather(
        *(nodes[number % 2].acquire("default", "key", PER_MINUTE) for number in range(3 * PER_MINUTE))
    )
    allowed = sum(status.retry_after is None for status in statuses)
    assert (1 - TOLERANCE) * PER_MINUTE <= allowed <= PER_MINUTE + refilled_since(started_at, PER_MINUTE) + 1


async def test_most_requests_cost_no_round_trip(store: SqlStore, nodes: list[SharedRateLimiter]):
    transactions: list[str] = []
    store.observe_transactions(lambda kind, *_: transactions.append(kind))
    assert await count_allowed(nodes[:1], 500, 1_000) == 500
    # The first transaction of a process reads whether the tenant is encrypted.
    assert transactions == ["read", *["write"] * int(500 / (1_000 * BATCH_SHARE))]


async def test_a_key_that_was_refused_waits_without_asking_the_database(
    store: SqlStore, nodes: list[SharedRateLimiter]
):
    await count_allowed(nodes[:1], 2, 1)
    transactions: list[str] = []
    store.observe_transactions(lambda kind, *_: transactions.append(kind))
    status = await nodes[0].acquire("default", "key", 1)
    assert status.retry_after is not None
    assert 0 < status.retry_after <= 60
    assert transactions == []


async def test_buckets_refill_by_the_clock_of_the_database(nodes: list[SharedRateLimiter], admin_url: str):
    await count_allowed(nodes, 3 * PER_MINUTE, PER_MINUTE)
    with psycopg.connect(admin_url, autocommit=True) as owner:
        owner.execute("UPDATE quire_rate_limits SET updated_at = updated_at - 30")
    for node in nodes:
        node._batches.clear()
    started_at = time.monotonic()
    allowed = await count_allowed(nodes, 3 * PER_MINUTE, PER_MINUTE)
    assert allowed >= (1 - TOLERANCE) * PER_MINUTE / 2
    assert allowed <= PER_MINUTE / 2 + refilled_since(started_at, PER_MINUTE) + 5


async def test_keys_and_tenants_have_buckets_of_their_own(nodes: list[SharedRateLimiter]):
    for tenant, key in (("default", "a"), ("default", "b"), ("elsewhere", "c")):
        statuses = [await nodes[0].acquire(tenant, key, 2) for _ in range(3)]
        assert [status.retry_after is None for status in statuses] == [True, True, False]


async def test_while_the_database_is_away_each_node_counts_by_itself(
    nodes: list[SharedRateLimiter], monkeypatch: pytest.MonkeyPatch
):
    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(RateLimits, "take", fail)
    started_at = time.monotonic()
    for node in nodes:
        allowed = await count_allowed([node], 2 * PER_MINUTE, PER_MINUTE)
        assert PER_MINUTE <= allowed <= PER_MINUTE + refilled_since(started_at, PER_MINUTE) + 1
