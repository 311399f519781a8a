"""Reads from a streaming replica: those that may lag, and only while it has what their tenant last wrote.

A commit on the primary has a position in the write-ahead log. This process remembers it for each tenant that it writes
for, and sends it to the other processes by a notification, before the one that names the changed conversation. A read
that may lag goes to the replica if that has replayed the position of its tenant; otherwise to the primary. So a list
right after a write has the write. Everything else never reads the replica.

Reads of one request share a `ReadSession`: after one of them went to the primary all later ones do, since the replica
may be behind what the first one saw.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from cachetools import LRUCache
from sqlalchemy import text
from sqlalchemy.sql import ClauseElement

from quire.db.database import LossCallback, PoolStats, ReplicaState, T, TenantFilter, TransactionOptions, Work
from quire.db.notifications import RESUMED, Notification, topic_of
from quire.db.postgres import PostgresDatabase
from quire.db.raw_sql import fetch
from quire.errors import StoreBusy, StoreError, StoreUnavailable

SAMPLE_INTERVAL_SECONDS = 2.0
"""Minimum time between two looks at how far the replica is. An unreachable replica is tried again at the next one."""
SAMPLE_SECONDS = 2.0
"""Maximum time of a look at the replica. One that does not answer in it is not used."""
MAX_SAMPLES = 64
"""Positions of the primary that are remembered to compute the lag: more than two minutes."""
MAX_LAG_SECONDS = 60.0
"""Lag above which the replica is not used: replication may have stopped."""
MAX_POSITIONS = 100_000
"""Tenants whose last position is remembered. Others have the highest position of those that were forgotten."""
WRITTEN = "written"
"""Kind of the notification of a tenant's last position. Its topic is the tenant."""

_COMMITTED = text("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
# A replica that was promoted replays nothing more.
_REPLAYED = text(
    "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END"
    " - '0/0')::bigint"
)


class _Sample(NamedTuple):
    """The primary's position at a time."""

    at: float
    position: int


class _Positions(LRUCache[str, int]):
    """The last known position of each tenant, by its topic."""

    floor = 0
    """Position of the tenants that are not listed."""

    def popitem(self) -> tuple[str, int]:
        topic, position = super().popitem()
        self.floor = max(self.floor, position)
        return topic, position

    def find(self, topic: str) -> int:
        return max(self.get(topic, 0), self.floor)

    def advance(self, topic: str, position: int) -> None:
        self[topic] = max(position, self.get(topic, 0))


class ReplicaDatabase:
    """A primary with one replica; implements `Database`."""

    cells: tuple[str, ...] = ()

    def __init__(self, primary: PostgresDatabase, replica: PostgresDatabase) -> None:
        self._primary, self._replica = primary, replica
        self.notifications = primary.notifications
        self._positions = _Positions(MAX_POSITIONS)
        self._replayed = 0
        self._samples: deque[_Sample] = deque(maxlen=MAX_SAMPLES)
        self._sampled_at = -SAMPLE_INTERVAL_SECONDS
        self._sampling: asyncio.Task[None] | None = None
        self._state = ReplicaState("unknown", None, 0, 0)
        self._is_subscribed = False
        self._resumes = self._known_resumes = 0
        """Times after which notifications may have been missed, and how many of them have been made up for."""
        primary.on_commit = self._record_commit
        # Behind the same address there may be another server now, which is further back.
        replica.on_connection_loss(self._forget_replayed)

    async def read(self, work: Work[T], options: TransactionOptions) -> T:
        session = options.session
        if session is not None and not session.is_on_primary:
            if await self._has_position(options.tenant):
                try:
                    found = await self._replica.read(work, options)
                except (StoreUnavailable, StoreBusy) as error:
                    # Busy: replay cancels queries that stand in its way.
                    if isinstance(error, StoreUnavailable):
                        self._mark_unreachable()
                else:
                    self._state = self._state._replace(replica_reads=self._state.replica_reads + 1)
                    return found
            session.is_on_primary = True
            self._state = self._state._replace(primary_reads=self._state.primary_reads + 1)
        return await self._primary.read(work, options)

    async def _has_position(self, tenant: str) -> bool:
        """Whether the replica can be used, and has what the tenant last wrote."""
        if not self._is_subscribed:
            self._is_subscribed = True
            self.notifications.subscribe(self._on_notification)
        if time.monotonic() - self._sampled_at >= SAMPLE_INTERVAL_SECONDS and self._sampling is None:
            self._sampling = asyncio.get_running_loop().create_task(self._sample())
            if self._state.status == "unknown":
                await self._sampling
        if self._state.status != "ok":
            return False
        if self._known_resumes < self._resumes or not self.notifications.is_listening:
            # Other processes may have written what this one does not know yet.
            resumes = self._resumes
            [(self._positions.floor,)] = await self._primary.fetch(_COMMITTED, {}, "")
            self._known_resumes = resumes
        position = self._positions.find(topic_of(tenant))
        if self._replayed < position:
            try:
                await self._read_replayed()
            except StoreError:
                self._mark_unreachable()
                return False
        return self._replayed >= position

    async def _read_replayed(self) -> None:
        options = TransactionOptions("", statement_seconds=SAMPLE_SECONDS)
        [(self._replayed,)] = await self._replica.read(lambda connection: fetch(connection, _REPLAYED, {}), options)

    async def _sample(self) -> None:
        """Measures the lag, and finds out whether the replica can be reached again."""
        self._sampled_at = time.monotonic()
        try:
            [(position,)] = await self._primary.fetch(_COMMITTED, {}, "")
            self._samples.append(_Sample(time.monotonic(), position))
            await self._read_replayed()
        except StoreError:
            self._mark_unreachable()
            return
        finally:
            self._sampling = None
        while len(self._samples) > 1 and self._samples[1].position <= self._replayed:
            self._samples.popleft()
        lag = 0.0 if self._replayed >= position else time.monotonic() - self._samples[0].at
        self._state = self._state._replace(status="ok" if lag <= MAX_LAG_SECONDS else "behind", lag_seconds=lag)

    def _mark_unreachable(self) -> None:
        self._state = self._state._replace(status="unreachable", lag_seconds=None)

    def _forget_replayed(self, _: TenantFilter) -> None:
        self._replayed = 0

    def _record_commit(self, tenant: str, position: int) -> None:
        topic = topic_of(tenant)
        self._positions.advance(topic, position)
        self.notifications.publish(WRITTEN, topic, str(position), replaces=True)

    def _on_notification(self, notification: Notification) -> None:
        """Learns what other processes wrote. Any role of the database can notify, so a detail may be no number."""
        if notification.kind == WRITTEN and notification.detail.isdecimal():
            self._positions.advance(notification.topic, int(notification.detail))
        elif notification.kind == RESUMED:
            self._resumes += 1

    def get_replica_state(self) -> ReplicaState:
        return self._state

    async def find_cell(self, tenant: str) -> None:
        return None

    async def fetch(self, statement: ClauseElement, params: Mapping[str, Any], tenant: str) -> list[Any]:
        return await self._primary.fetch(statement, params, tenant)

    async def write(self, work: Work[T], options: TransactionOptions) -> T:
        return await self._primary.write(work, options)

    async def write_unread(self, work: Work[T], options: TransactionOptions) -> T:
        return await self._primary.write_unread(work, options)

    async def check_writable(self, *, max_age_seconds: float) -> None:
        await self._primary.check_writable(max_age_seconds=max_age_seconds)

    async def check_recordable(self, tenant: str) -> None:
        await self._primary.check_recordable(tenant)

    def list_lost_cells(self) -> list[str]:
        return []

    def on_connection_loss(self, callback: LossCallback) -> None:
        self._primary.on_connection_loss(callback)

    def get_pool_stats(self) -> PoolStats:
        return self._primary.get_pool_stats()

    async def scrub(self) -> None:
        await self._primary.scrub()

    async def close(self) -> None:
        if self._sampling is not None:
            await asyncio.wait([self._sampling])
        await self._replica.close()
        await self._primary.close()
