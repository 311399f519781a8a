"""The sweep: finds what the log says is missing and has it done, so that no job need be kept safe.

A conversation is looked at when it has been quiet for a minute, again after an hour and again after a day: a job that
gets lost in between is found the next time. How far each look has come stands in the store, so that whoever sweeps next
goes on from there, and a sweep costs what was used since, not what there is.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from quire.engine.shelving import missing
from quire.errors import NotFound
from quire.jobs.engines import Engines
from quire.jobs.job import Job, Kind
from quire.log import DEFAULT_TENANT, Branch, SqlStore
from quire.log.due import Used
from quire.log.fresh import now
from quire.view.strategies import strategy_named

SECOND = 1_000_000
DAY = 86_400 * SECOND
PAGE = 200
AT_ONCE = 8
BRANCHES = 32
"""Of a conversation with more, so many are looked at: those used last."""

Defer = Callable[[Sequence[Job]], Awaitable[None]]


class Look(NamedTuple):
    """Conversations that have been quiet for so long, under the name that it is remembered by."""

    name: str
    quiet: int
    backlog: bool = False
    """Whether the first time begins with the oldest conversation there is."""


LOOKS = (Look("minute", 60 * SECOND, backlog=True), Look("hour", 3_600 * SECOND), Look("day", DAY))
VAULT: dict[Kind, int] = {"index": 600 * SECOND, "describe": DAY}
"""How often the worker's own vault is looked through; notes change without anyone telling us."""


class Sweeper:
    def __init__(self, store: SqlStore, engines: Engines, *, clock: Callable[[], int] = now) -> None:
        self._store, self._engines, self._clock = store, engines, clock

    async def sweep(self, defer: Defer) -> int:
        """Has done all that is missing, and says how many jobs that is; what is noted as looked at was deferred."""
        found = await self._vault(defer)
        for look in LOOKS:
            async for page in self._quiet(look):
                jobs = await self._missing(page)
                await defer(jobs)
                found += len(jobs)
        for look in self._expiring():
            async for page in self._quiet(look):
                jobs = [Job("purge", used.tenant, used.conversation) for used in page]
                await defer(jobs)
                found += len(jobs)
        return found

    async def forget(self) -> None:
        """The next sweep looks at every conversation, however long ago it was used."""
        for look in (*LOOKS[:1], *self._expiring()):
            await self._store.note_look(look.name, 0)

    def _expiring(self) -> Iterable[Look]:
        days = self._engines(DEFAULT_TENANT, None).settings.retention_days
        if days is not None:
            yield Look("retention", days * DAY, backlog=True)
            yield Look("retention, again", (days + 1) * DAY, backlog=True)

    async def _quiet(self, look: Look) -> AsyncGenerator[list[Used]]:
        """Page by page; a page counts as looked at when the next is asked for."""
        upto = self._clock() - look.quiet
        since = await self._store.looked(look.name)
        if since is None:
            since = 0 if look.backlog else upto
        last: Used | None = None
        while page := await self._store.used(since=since, upto=upto, limit=PAGE, after=last):
            yield page
            last = page[-1]
            await self._store.note_look(look.name, last.used_at)
        if upto >= since:
            await self._store.note_look(look.name, upto + 1)

    async def _missing(self, page: Sequence[Used]) -> list[Job]:
        found: list[Job] = []
        for start in range(0, len(page), AT_ONCE):
            some = page[start : start + AT_ONCE]
            for jobs in await asyncio.gather(*map(self._missing_in, some)):
                found += jobs
        return found

    async def _missing_in(self, used: Used) -> list[Job]:
        """What a conversation may lack, read as its tenant."""
        engine, store = self._engines(used.tenant, None), self._store.for_tenant(used.tenant)
        tenant, conversation = used.tenant, used.conversation
        try:
            branches = sorted(await store.branches(conversation), key=lambda branch: -branch.used_at)[:BRANCHES]
        except NotFound:
            return []
        jobs: list[Job] = []
        if engine.compacts_in_background:
            # Whether the mark is passed is for the job to say: it takes the window and its model to know.
            jobs += [Job("compact", tenant, conversation, each.number) for each in branches if _grew(each)]
        if strategy_named(engine.policy.strategy).recalls:
            lacking = [each for each in branches if await self._lacks_shelves(store, each)]
            jobs += [Job("shelve", tenant, conversation, each.number) for each in lacking]
        embedder = engine.embedder
        if embedder is not None and await store.scopes_without_vectors(conversation, embedder=embedder.name):
            jobs.append(Job("embed", tenant, conversation))
        return jobs

    async def _lacks_shelves(self, store: SqlStore, branch: Branch) -> bool:
        active = branch.state.active
        if active is None or active.covers is None:
            return False
        marks = await store.shelves(branch.conversation, branch=branch.number)
        return bool(missing(branch, marks, upto=active.covers.last))

    async def _vault(self, defer: Defer) -> int:
        if self._engines(DEFAULT_TENANT, None).vault is None:
            return 0
        found = 0
        for kind, every in VAULT.items():
            name, at = f"vault {kind}", self._clock()
            if at - (await self._store.looked(name) or 0) >= every:
                await defer([Job(kind, DEFAULT_TENANT)])
                await self._store.note_look(name, at)
                found += 1
        return found


def _grew(branch: Branch) -> bool:
    """Whether it has entries that no compaction covers, besides the compaction's own."""
    active = branch.state.active
    covered = active.covers.last if active is not None and active.covers is not None else 0
    return branch.head_seq - covered > 2
