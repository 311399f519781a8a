"""Rate limits of API keys and tenants: token buckets, shared by all servers of a PostgreSQL database.

A server takes permits from the bucket in the database in batches, each a small share of a minute's permits, so that
most requests cost no round trip. While the database is away each server uses a local bucket, so that together they may
allow the rate once for each server. SQLite has one server, and its buckets are in memory.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Literal, NamedTuple

from cachetools import LRUCache

from quire.errors import StoreError
from quire.store import SqlStore

MAX_TRACKED_KEYS = 10_000
"""Maximum token buckets in memory, evicted least recently used first. An evicted key starts with a full bucket."""
BATCH_SHARE = 0.02
"""Share of a minute's requests that a server takes at once: what it does not use, no server can."""
BATCH_SECONDS = 10.0
"""Seconds in which a server may use the permits that it took."""
RATE_LIMIT_SCOPE_KEY = "quire.rate"
"""ASGI scope key of the caller's `RateLimitStatus`."""


class RateLimitStatus(NamedTuple):
    """Requests that a key or tenant has left, and the seconds until its bucket is full again."""

    limit: int
    remaining: int
    reset_seconds: int
    retry_after: int | None
    """Seconds until the next request is allowed, or None if this one is."""
    holder: Literal["key", "tenant"] = "key"
    """Whose requests are counted."""


class RateLimiter:
    """Token bucket rate limiter of one process: a request takes a token; an empty bucket refills in a minute.

    An idle key may therefore send a minute's worth of requests in one burst.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(MAX_TRACKED_KEYS)

    def acquire(self, key: str, per_minute: int) -> RateLimitStatus:
        current = self._clock()
        tokens, updated_at = self._buckets.get(key, (float(per_minute), current))
        tokens = min(per_minute, tokens + (current - updated_at) * per_minute / 60)
        is_allowed = tokens >= 1
        tokens -= is_allowed
        self._buckets[key] = tokens, current
        return _build_status(per_minute, tokens, is_allowed=is_allowed)


def _build_status(per_minute: int, tokens: float, *, is_allowed: bool) -> RateLimitStatus:
    retry_after = None if is_allowed else _refill_seconds(1 - tokens, per_minute)
    return RateLimitStatus(per_minute, int(tokens), _refill_seconds(per_minute - tokens, per_minute), retry_after)


def _refill_seconds(tokens: float, per_minute: int) -> int:
    return max(1, ceil(tokens * 60 / per_minute))


@dataclass
class _PermitBatch:
    """Permits that this server took for a key, and the tokens that stayed in the bucket."""

    per_minute: int = 0
    permits: int = 0
    tokens: float = 0.0
    usable_until: float = 0.0
    refused_until: float = 0.0
    """Time at which the bucket has a token again."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Concurrent requests of a key wait for the same batch."""


class SharedRateLimiter:
    """Rate limiter whose buckets all servers of a database share."""

    def __init__(self, store: SqlStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._own = RateLimiter(clock=clock)
        self._batches: LRUCache[str, _PermitBatch] = LRUCache(MAX_TRACKED_KEYS)

    async def acquire(self, tenant: str, key_id: str, per_minute: int) -> RateLimitStatus:
        if not self._store.notifications.has_transport:
            return self._own.acquire(key_id, per_minute)
        batch = self._batches.get(key_id)
        if batch is None or batch.per_minute != per_minute:
            batch = self._batches[key_id] = _PermitBatch(per_minute)
        if (status := self._use(batch)) is not None:
            return status
        async with batch.lock:
            if (status := self._use(batch)) is not None:
                return status
            permits = ceil(per_minute * BATCH_SHARE)
            try:
                grant = await self._store.for_tenant(tenant).rate_limits.take(
                    key_id, per_minute=per_minute, permits=permits
                )
            except StoreError:
                return self._own.acquire(key_id, per_minute)
            batch.permits, batch.tokens = max(0, grant.permits - 1), grant.tokens
            if grant.permits:
                batch.usable_until = self._clock() + BATCH_SECONDS
            else:
                batch.refused_until = self._clock() + (1 - grant.tokens) * 60 / per_minute
            return _build_status(per_minute, batch.tokens + batch.permits, is_allowed=grant.permits > 0)

    async def acquire_for_tenant(self, tenant: str, per_minute: int) -> RateLimitStatus:
        """Takes from the bucket of all keys of the tenant. Its name is no id of a key."""
        return (await self.acquire(tenant, f"tenant {tenant}", per_minute))._replace(holder="tenant")

    def _use(self, batch: _PermitBatch) -> RateLimitStatus | None:
        """Allows or refuses a request by what this server knows, or None if it must take a batch first."""
        current = self._clock()
        if batch.permits > 0 and current < batch.usable_until:
            batch.permits -= 1
            return _build_status(batch.per_minute, batch.tokens + batch.permits, is_allowed=True)
        if current < batch.refused_until:
            tokens = 1 - (batch.refused_until - current) * batch.per_minute / 60
            return _build_status(batch.per_minute, max(0.0, tokens), is_allowed=False)
        return None


def rate_limit_headers(status: RateLimitStatus) -> dict[str, str]:
    """Builds the headers of the IETF draft on RateLimit header fields."""
    return {
        "RateLimit-Policy": f'"{status.holder}";q={status.limit};w=60',
        "RateLimit": f'"{status.holder}";r={status.remaining};t={status.reset_seconds}',
    }
