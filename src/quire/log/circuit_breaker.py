"""Circuit breaker of a database: once it is known to be unavailable, transactions are refused until a probe succeeds.

Callers share one probe, so that an outage costs one connection attempt at a time, and no request waits for more than
one.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable

from quire.errors import StoreFull, StoreReadOnly, StoreUnavailable

PROBE_INTERVAL_SECONDS = 0.2
"""Time after a failed probe in which callers are refused without another one."""


class CircuitBreaker:
    """Closed while the database works. `probe` raises `StoreUnavailable` unless the database accepts writes."""

    def __init__(self, probe: Callable[[], Awaitable[None]]) -> None:
        self._probe = probe
        self._failure: StoreUnavailable | None = None
        self._probed_at = -math.inf
        self._running_probe: asyncio.Task[None] | None = None

    def trip(self, failure: StoreUnavailable) -> None:
        """Opens the circuit; the next caller probes the database."""
        self._failure, self._probed_at = failure, -math.inf

    async def check(self, *, is_write: bool) -> None:
        """Raises `StoreUnavailable` if the circuit is open and a probe fails. Reads need no writable database."""
        if self._failure is None or (not is_write and isinstance(self._failure, StoreReadOnly | StoreFull)):
            return
        await self.probe(max_age_seconds=PROBE_INTERVAL_SECONDS)

    async def probe(self, *, max_age_seconds: float) -> None:
        """Raises what the last probe raised; runs one unless the last is recent."""
        loop = asyncio.get_running_loop()
        if self._running_probe is None and loop.time() - self._probed_at >= max_age_seconds:
            self._running_probe = loop.create_task(self._run_probe())
        if self._running_probe is not None:
            # Shielded: the probe serves other callers too.
            await asyncio.shield(self._running_probe)
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))

    async def _run_probe(self) -> None:
        try:
            await self._probe()
            self._failure = None
        except StoreUnavailable as failure:
            self._failure = failure
        finally:
            self._probed_at = asyncio.get_running_loop().time()
            self._running_probe = None

    async def close(self) -> None:
        """Waits for a running probe."""
        if self._running_probe is not None:
            await asyncio.wait([self._running_probe])
