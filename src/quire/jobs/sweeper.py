"""The sweep: finds missing work in the log and enqueues it, so that jobs need no durable storage.

A conversation is checked when it has been idle for a minute, an hour and a day: a job that is lost in between is found
the next time. The store records how far each interval has been swept, so any process can continue the sweep, and its
cost depends on the conversations used since, not on all of them.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import NamedTuple

from quire.engine.topic_indexer import find_unread
from quire.errors import NotFound
from quire.jobs.base import Defer, EngineProvider, Job, JobKind
from quire.model.ids import now
from quire.store import DEFAULT_TENANT, SqlStore
from quire.store.all_tenants import ConversationActivity
from quire.store.archives import UPLOAD_MICROS

SECOND_MICROSECONDS = 1_000_000
DAY_MICROSECONDS = 86_400 * SECOND_MICROSECONDS
PAGE_SIZE = 200
"""Conversations read from the store at once."""
CONVERSATION_BATCH_SIZE = 8
"""Conversations checked concurrently."""
MAX_BRANCHES = 32
"""Branches of a conversation that are checked: the most recently used."""


class SweepInterval(NamedTuple):
    """Selects conversations that have been idle for this time; `name` is the key of its stored position."""

    name: str
    idle_microseconds: int
    backlog: bool = False
    """Whether the first sweep starts at the oldest conversation."""


SWEEP_INTERVALS = (
    SweepInterval("idle_minute", 60 * SECOND_MICROSECONDS, backlog=True),
    SweepInterval("hour", 3_600 * SECOND_MICROSECONDS),
    SweepInterval("day", DAY_MICROSECONDS),
)
VAULT_INTERVALS: dict[JobKind, int] = {
    "index_vault": 600 * SECOND_MICROSECONDS,
    "summarize_documents": DAY_MICROSECONDS,
}
"""Microseconds between two jobs on the vault. Notes change without notice, so they are polled."""


class Sweeper:
    """Finds missing work of all tenants."""

    def __init__(self, store: SqlStore, engines: EngineProvider, *, clock: Callable[[], int] = now) -> None:
        self._all_tenants = store.all_tenants
        self._store_for, self._engines, self._clock = store.for_tenant, engines, clock

    async def sweep(self, defer: Defer) -> int:
        """Defers all missing jobs and returns their number. A position is recorded only after its jobs were
        deferred."""
        count = await self._sweep_vault(defer)
        for interval in SWEEP_INTERVALS:
            async for page in self._iter_idle(interval):
                found: list[Job] = []
                for start in range(0, len(page), CONVERSATION_BATCH_SIZE):
                    batch = page[start : start + CONVERSATION_BATCH_SIZE]
                    for jobs in await asyncio.gather(*map(self._find_jobs, batch)):
                        found += jobs
                found = list(dict.fromkeys(found))
                await defer(found)
                count += len(found)
        kinds: tuple[tuple[JobKind, Iterable[SweepInterval]], ...] = (
            ("purge", self._retention_intervals()),
            ("thin_manifests", self._thinning_intervals()),
            ("offload", self._offload_intervals()),
        )
        for kind, intervals in kinds:
            for interval in intervals:
                async for page in self._iter_idle(interval):
                    jobs = [Job(kind, each.tenant, each.conversation) for each in page]
                    await defer(jobs)
                    count += len(jobs)
        return count + await self._sweep_objects(defer)

    async def reset(self) -> None:
        """Makes the next sweep check every conversation, however long ago it was used."""
        for interval in (
            *SWEEP_INTERVALS[:1],
            *self._retention_intervals(),
            *self._thinning_intervals(),
            *self._offload_intervals(),
        ):
            await self._all_tenants.record_sweep(interval.name, 0)

    def _retention_intervals(self) -> Iterable[SweepInterval]:
        days = self._engines(DEFAULT_TENANT, None).settings.retention_days
        if days is not None:
            yield SweepInterval("retention", days * DAY_MICROSECONDS, backlog=True)
            yield SweepInterval("retention_repeat", (days + 1) * DAY_MICROSECONDS, backlog=True)

    def _thinning_intervals(self) -> Iterable[SweepInterval]:
        days = self._engines(DEFAULT_TENANT, None).settings.thin_manifests_after_days
        if days is not None:
            # A conversation that is used every day has old requests too.
            yield SweepInterval("thinning_hour", 3_600 * SECOND_MICROSECONDS)
            yield SweepInterval("thinning", days * DAY_MICROSECONDS, backlog=True)

    def _offload_intervals(self) -> Iterable[SweepInterval]:
        settings = self._engines(DEFAULT_TENANT, None).settings
        if settings.object_storage_url is None:
            return
        # Each again a day later: the object storage may have been away.
        for repeat in (1, 2):
            yield SweepInterval(f"blobs_{repeat}", repeat * DAY_MICROSECONDS, backlog=True)
        days = settings.offload_after_days
        if days is not None:
            yield SweepInterval("offload", days * DAY_MICROSECONDS, backlog=True)
            yield SweepInterval("offload_repeat", (days + 1) * DAY_MICROSECONDS, backlog=True)

    async def _sweep_objects(self, defer: Defer) -> int:
        """Jobs for tenants with objects to remove, and with conversations to offload again."""
        settings, current = self._engines(DEFAULT_TENANT, None).settings, self._clock()
        if settings.object_storage_url is None:
            return 0
        days = settings.offload_after_days
        tenants = await self._all_tenants.list_object_work(
            pending_before=current - UPLOAD_MICROS,
            restored_before=current - days * DAY_MICROSECONDS if days is not None else 0,
        )
        await defer([Job("offload", tenant) for tenant in tenants])
        return len(tenants)

    async def _iter_idle(self, interval: SweepInterval) -> AsyncGenerator[list[ConversationActivity]]:
        """Yields pages of idle conversations. A page is recorded as swept when the next one is requested."""
        until = self._clock() - interval.idle_microseconds
        since = await self._all_tenants.get_sweep_time(interval.name)
        if since is None:
            since = 0 if interval.backlog else until
        last: ConversationActivity | None = None
        while page := await self._all_tenants.list_updated_conversations(
            since=since, until=until, limit=PAGE_SIZE, after=last
        ):
            yield page
            last = page[-1]
            await self._all_tenants.record_sweep(interval.name, last.updated_at)
        if until >= since:
            await self._all_tenants.record_sweep(interval.name, until + 1)

    async def _find_jobs(self, activity: ConversationActivity) -> list[Job]:
        """The jobs that a conversation may need, read as its tenant (row-level security)."""
        tenant, conversation = activity.tenant, activity.conversation
        engine, store = self._engines(tenant, None), self._store_for(tenant)
        try:
            branches = await store.list_branches(conversation)
        except NotFound:
            return []
        if any(branch.state.offloaded for branch in branches):
            return []
        jobs: list[Job] = []
        newest = sorted(branches, key=lambda branch: -branch.updated_at)[:MAX_BRANCHES]
        if engine.config.has_topic_index:
            jobs += [
                Job("index_topics", tenant, conversation, branch.number)
                for branch in newest
                if await find_unread(store, conversation, branch.number) is not None
            ]
        if engine.config.has_background_compaction:
            for branch in newest:
                active = branch.state.active_compaction
                covered = active.covers.last if active is not None and active.covers is not None else 0
                # Entries that no compaction covers, other than the compaction's own. The job itself checks the
                # threshold, since that needs the window and the model of the last reply, and who owns the conversation.
                if branch.head_seq - covered > 2:
                    jobs.append(Job("compact", tenant, conversation, branch.number))
        if await store.message_index.has_unindexed(conversations=[conversation]):
            jobs.append(Job("index_messages", tenant))
        if await store.usage.has_uncounted():
            jobs.append(Job("count_usage", tenant))
        embedder = engine.embedder
        if embedder is not None and await store.passages.list_unembedded_scopes(embedder=embedder.name):
            jobs.append(Job("embed", tenant))
        return jobs

    async def _sweep_vault(self, defer: Defer) -> int:
        named = self._engines(DEFAULT_TENANT, None).settings.trusted_tenants
        tenants = [each for each in {DEFAULT_TENANT, *named} if self._engines(each, None).vault is not None]
        if not tenants:
            return 0
        count = 0
        for kind, interval in VAULT_INTERVALS.items():
            name, current = f"vault_{kind}", self._clock()
            if current - (await self._all_tenants.get_sweep_time(name) or 0) >= interval:
                await defer([Job(kind, tenant) for tenant in sorted(tenants)])
                await self._all_tenants.record_sweep(name, current)
                count += len(tenants)
        return count
