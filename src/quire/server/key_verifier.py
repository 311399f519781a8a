"""API key verification with a cache.

Verified keys are cached for `KEY_CACHE_SECONDS`, so that a turn costs no look-up; a revoked key therefore stops working
within that time on every node.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from cachetools import LRUCache

from quire.errors import StoreUnavailable
from quire.log import ApiKey, KeyStore
from quire.log.ids import now

KEY_CACHE_SECONDS = 10.0
"""Seconds before a cached key is verified again."""
KEY_CACHE_OUTAGE_SECONDS = 3_600.0
"""Seconds that a cached key stays valid while the store is down, where the gateway then passes requests through."""
KEY_CACHE_SIZE = 10_000
"""Maximum keys in the LRU cache."""


class _CachedKey(NamedTuple):
    key: ApiKey
    verified_at: float


class KeyVerifier:
    """Verifies API keys, with an LRU cache. Simultaneous requests with one key share a look-up."""

    def __init__(self, keys: KeyStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys, self._clock = keys, clock
        self._cache: LRUCache[bytes, _CachedKey] = LRUCache(KEY_CACHE_SIZE)
        self._lookups: dict[bytes, asyncio.Task[_CachedKey | None]] = {}

    async def verify(
        self, presented: str | None, *, allow_stale: bool = False, max_age_seconds: float = KEY_CACHE_SECONDS
    ) -> ApiKey | None:
        """Returns the key with this text if it is valid; a cached key counts up to `max_age_seconds`. With
        `allow_stale`, the cache outlives a store outage."""
        if presented is None:
            return None
        # Cached by digest: the timing of a look-up says nothing about the text, and no secret stays in memory.
        digest = sha256(presented.encode(errors="replace")).digest()
        cached = self._cache.get(digest)
        if cached is None or self._clock() - cached.verified_at >= max_age_seconds:
            cached = await self._look_up(
                presented, digest, cached, grace_seconds=KEY_CACHE_OUTAGE_SECONDS if allow_stale else 0.0
            )
        return cached.key if cached is not None and cached.key.is_valid_at(now()) else None

    def evict(self, key_id: str) -> None:
        """Drops a key from the cache, so that its next use is verified in the store."""
        self._lookups.clear()
        for digest in [digest for digest, cached in self._cache.items() if cached.key.id == key_id]:
            del self._cache[digest]

    async def _look_up(
        self, presented: str, digest: bytes, cached: _CachedKey | None, *, grace_seconds: float
    ) -> _CachedKey | None:
        lookup = self._lookups.get(digest)
        if lookup is None:
            lookup = self._lookups[digest] = asyncio.get_running_loop().create_task(self._verify(presented))
            lookup.add_done_callback(partial(self._end_lookup, digest))
        try:
            # Shielded: a request that ends does not end the look-up of others.
            return await asyncio.shield(lookup)
        except StoreUnavailable:
            if cached is None or self._clock() - cached.verified_at >= grace_seconds:
                raise
            return cached

    async def _verify(self, presented: str) -> _CachedKey | None:
        started_at = self._clock()
        key = await self._keys.verify_key(presented)
        return _CachedKey(key, started_at) if key is not None else None

    def _end_lookup(self, digest: bytes, lookup: asyncio.Task[_CachedKey | None]) -> None:
        is_current = self._lookups.get(digest) is lookup
        if is_current:
            del self._lookups[digest]
        if lookup.cancelled() or lookup.exception() is not None or not is_current:
            # Where a key was evicted meanwhile, what this look-up found may be outdated.
            return
        verified = lookup.result()
        if verified is None:
            self._cache.pop(digest, None)
        else:
            self._cache[digest] = verified
