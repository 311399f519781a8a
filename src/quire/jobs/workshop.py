"""Does jobs, whoever brings them. Each looks first whether it is due, so that doing one twice is doing it once."""

from collections.abc import Callable
from typing import assert_never

from quire.engine import Conversation, Engine
from quire.engine.embedding import embed_scope
from quire.errors import (
    BranchNotFound,
    ContextOverflow,
    ConversationNotFound,
    InvalidRequest,
    SpendCapReached,
)
from quire.jobs.describing import describe_documents
from quire.jobs.engines import Engines
from quire.jobs.job import NOTHING, Job, Outcome
from quire.log import SqlStore
from quire.log.fresh import now
from quire.view.strategies import strategy_named

DAY = 86_400_000_000

GONE = (ConversationNotFound, BranchNotFound)
REFUSED = (SpendCapReached, ContextOverflow, InvalidRequest)
"""Trying again would come to the same."""


class Workshop:
    def __init__(self, store: SqlStore, engines: Engines, *, clock: Callable[[], int] = now) -> None:
        self._store, self._engines, self._clock = store, engines, clock

    async def do(self, job: Job) -> Outcome:
        """Does what is still to be done of a job, as its tenant."""
        try:
            return await self._do(job)
        except GONE:
            return NOTHING

    async def _do(self, job: Job) -> Outcome:
        match job.kind:
            case "compact":
                return await self._compact(job)
            case "shelve":
                return await self._shelve(job)
            case "embed":
                return await self._embed(job)
            case "index":
                return await self._index(job)
            case "describe":
                return await self._describe(job)
            case "purge":
                return await self._purge(job)
        assert_never(job.kind)

    async def _compact(self, job: Job) -> Outcome:
        engine = await self._engine_of(job)
        entry = await Conversation(engine, job.conversation, job.branch).compact_if_due()
        # What looking at the window began in passing is part of the job.
        await engine.settle()
        return NOTHING if entry is None else Outcome(1, _embedding(engine, job))

    async def _engine_of(self, job: Job) -> Engine:
        """For the model that the conversation was last answered by: its window is the one that fills."""
        store = self._store.for_tenant(job.tenant)
        newest = await store.manifests(job.conversation, branch=job.branch, limit=1)
        return self._engines(job.tenant, newest[-1][1].policy.model if newest else None)

    async def _shelve(self, job: Job) -> Outcome:
        engine = self._engines(job.tenant, None)
        branch = await engine.store.branch(job.conversation, job.branch)
        if not strategy_named(engine.policy.strategy).recalls:
            return NOTHING
        made = 0
        async for done, _ in engine.recaller.archives.filling(branch):
            made = done
        return Outcome(made, _embedding(engine, job) if made else ())

    async def _embed(self, job: Job) -> Outcome:
        engine = self._engines(job.tenant, None)
        if engine.embedder is None:
            return NOTHING
        store = self._store.for_tenant(job.tenant)
        lacking = await store.scopes_without_vectors(job.conversation, embedder=engine.embedder.name)
        return Outcome(sum([await embed_scope(engine, scope) for scope in lacking]))

    async def _index(self, job: Job) -> Outcome:
        engine = self._engines(job.tenant, None)
        if engine.vault is None:
            return NOTHING
        read = 0
        async for progress in engine.index_vault():
            read = progress.done
        described = read > 0 and engine.summarizer is not None
        return Outcome(read, (Job("describe", job.tenant),) if described else ())

    async def _describe(self, job: Job) -> Outcome:
        engine = self._engines(job.tenant, None)
        if engine.vault is None or engine.summarizer is None:
            return NOTHING
        return Outcome(await describe_documents(engine, engine.vault, engine.summarizer.model))

    async def _purge(self, job: Job) -> Outcome:
        store, days = self._store.for_tenant(job.tenant), self._engines(job.tenant, None).settings.retention_days
        known = await store.conversation(job.conversation)
        if days is None or known.used_at > self._clock() - days * DAY:
            return NOTHING
        newest = await store.tail(job.conversation, 1, kinds=["message"])
        if not known.title and (not newest or newest[0].purged_at is not None):
            return NOTHING
        return Outcome(len(await store.purge(job.conversation)))


def _embedding(engine: Engine, job: Job) -> tuple[Job, ...]:
    """What was just made to be found lacks its vectors."""
    return () if engine.embedder is None else (Job("embed", job.tenant, job.conversation),)
