"""Runs jobs: `JobRunner` does the work of each kind, `RetryingRunner` adds retry with exponential backoff and
counts."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from quire.backtest.shards import run_shard
from quire.compaction.document_summaries import (
    MAX_SUMMARY_CHARS,
    extract_first_paragraph,
    extract_leading_sentences,
    summarize_document,
)
from quire.context.vault import Vault
from quire.engine import Conversation, Engine
from quire.engine.embeddings import embed_scope
from quire.engine.message_index import index_messages
from quire.errors import (
    BranchNotFound,
    ContextOverflow,
    ConversationNotFound,
    InvalidRequest,
    SpendCapReached,
    UnknownPrice,
)
from quire.jobs.base import NO_WORK, EngineProvider, Job, JobKind, JobOutcome, log_event
from quire.llm import Model
from quire.log import SqlStore
from quire.log.ids import now
from quire.log.search_types import IndexedDocument, Passage, VaultDocument, vault_scope
from quire.log.usage.insights import count_usage

DAY_MICROSECONDS = 86_400_000_000
MAX_ATTEMPTS = 5
"""Attempts after which a job is abandoned; a later sweep may enqueue it again."""
MAX_CONSECUTIVE_FAILURES = 3
"""Documents in a row without a usable summary after which the rest of the vault waits for the next run."""

NOT_FOUND_ERRORS = (ConversationNotFound, BranchNotFound)
"""The job's conversation or branch was deleted: there is nothing to do."""
PERMANENT_ERRORS = (SpendCapReached, UnknownPrice, ContextOverflow, InvalidRequest)
"""Errors that a retry would repeat."""


class JobRunner:
    """Does the work of a job, as its tenant. Every kind is idempotent."""

    def __init__(self, store: SqlStore, engines: EngineProvider, *, clock: Callable[[], int] = now) -> None:
        self._store, self._engines, self._clock = store, engines, clock

    async def run(self, job: Job) -> JobOutcome:
        """Does what is missing; nothing if the conversation is gone."""
        try:
            return await self._dispatch(job)
        except NOT_FOUND_ERRORS:
            return NO_WORK

    async def _dispatch(self, job: Job) -> JobOutcome:
        match job.kind:
            case "compact":
                return await self._compact(job)
            case "index_messages":
                return JobOutcome(await index_messages(self._engines(job.tenant, None)))
            case "count_usage":
                return JobOutcome(await count_usage(self._store.for_tenant(job.tenant)))
            case "embed":
                return await self._embed(job)
            case "index_vault":
                return await self._index_vault(job)
            case "summarize_documents":
                return await self._summarize_documents(job)
            case "purge":
                return await self._purge(job)
            case "backtest":
                return await self._run_backtest_shard(job)
        assert_never(job.kind)

    async def _compact(self, job: Job) -> JobOutcome:
        engine = await self._find_engine(job)
        key = await self._store.for_tenant(job.tenant).find_spending_key(job.conversation)
        paying = engine.with_changes(spending_key=key)
        entry = await Conversation(paying, job.conversation, job.branch).compact_if_needed()
        # Assembling the window may have started background tasks; they are part of the job.
        await engine.wait_for_background()
        return NO_WORK if entry is None else JobOutcome(1)

    async def _find_engine(self, job: Job) -> Engine:
        """The engine for the model of the last reply, because its context window is the one to stay within."""
        store = self._store.for_tenant(job.tenant)
        manifests = await store.list_manifests(job.conversation, branch=job.branch, limit=1)
        return self._engines(job.tenant, manifests[-1][1].policy.model if manifests else None)

    async def _embed(self, job: Job) -> JobOutcome:
        engine = self._engines(job.tenant, None)
        if engine.embedder is None:
            return NO_WORK
        store = self._store.for_tenant(job.tenant)
        scopes = await store.list_unembedded_scopes(embedder=engine.embedder.name)
        return JobOutcome(sum([await embed_scope(engine, scope) for scope in scopes]))

    async def _index_vault(self, job: Job) -> JobOutcome:
        engine = self._engines(job.tenant, None)
        if engine.vault is None:
            return NO_WORK
        count = 0
        async for progress in engine.index_vault():
            count = progress.done
        needs_summaries = count > 0 and engine.document_summarizer is not None
        return JobOutcome(count, (Job("summarize_documents", job.tenant),) if needs_summaries else ())

    async def _summarize_documents(self, job: Job) -> JobOutcome:
        engine = self._engines(job.tenant, None)
        if engine.vault is None or engine.document_summarizer is None:
            return NO_WORK
        return JobOutcome(await summarize_documents(engine, engine.vault, engine.document_summarizer.model))

    async def _purge(self, job: Job) -> JobOutcome:
        store, days = self._store.for_tenant(job.tenant), self._engines(job.tenant, None).settings.retention_days
        record = await store.get_conversation(job.conversation)
        if days is None or record.updated_at > self._clock() - days * DAY_MICROSECONDS:
            return NO_WORK
        if await store.is_purged(job.conversation):
            return NO_WORK
        return JobOutcome(len(await store.purge(job.conversation)))

    async def _run_backtest_shard(self, job: Job) -> JobOutcome:
        engine, store = self._engines(job.tenant, None), self._store.for_tenant(job.tenant)
        return JobOutcome(await run_shard(engine, store, job.conversation, job.branch))


class AttemptResult(NamedTuple):
    """What to enqueue after an attempt."""

    follow_ups: tuple[Job, ...] = ()
    retry_after_seconds: float | None = None
    """Delay before the next attempt; None if there is none."""


@dataclass(slots=True)
class JobCounts:
    """Counts of finished attempts, by job kind."""

    done: Counter[JobKind] = field(default_factory=Counter["JobKind"])
    failed: Counter[JobKind] = field(default_factory=Counter["JobKind"])
    """Attempts that failed, whether the job is retried or abandoned."""

    @property
    def total(self) -> int:
        return self.done.total() + self.failed.total()


class RetryingRunner:
    """Runs attempts of jobs, logs and counts their outcome, and schedules retries with exponential backoff."""

    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner
        self.counts = JobCounts()

    async def attempt(self, job: Job, number: int) -> AttemptResult:
        started = time.monotonic()
        try:
            outcome = await self._runner.run(job)
        except asyncio.CancelledError:
            log_event("job_released", job=job, attempt=number)
            raise
        except PERMANENT_ERRORS as error:
            self.counts.done[job.kind] += 1
            log_event("job_rejected", job=job, error=error, attempt=number)
            return AttemptResult()
        except Exception as error:  # noqa: BLE001 (one failed job must not stop the worker)
            self.counts.failed[job.kind] += 1
            delay = backoff_seconds(number) if number < MAX_ATTEMPTS else None
            event = "job_failed" if delay is not None else "job_abandoned"
            log_event(event, job=job, error=error, attempt=number, wait_seconds=delay)
            return AttemptResult(retry_after_seconds=delay)
        self.counts.done[job.kind] += 1
        seconds = round(time.monotonic() - started, 3)
        log_event("job_done", job=job, count=outcome.item_count, seconds=seconds, attempt=number)
        return AttemptResult(outcome.follow_ups)


def backoff_seconds(attempt: int) -> float:
    """Exponential backoff: 5 seconds after the first attempt, then five times longer each, 13 minutes in total."""
    return float(5**attempt)


async def summarize_documents(engine: Engine, vault: Vault, model: Model) -> int:
    """Writes a sentence by the model for documents whose first paragraph says too little; returns their number.

    The index is built without a model, so that it never waits for one; such a document then has its leading sentences
    as its summary. Those are looked for here, so that each document is summarized once, and again after a change.
    """
    count = failures = 0
    for document in await engine.store.list_documents(vault.name):
        passages = await engine.store.get_passages(vault_scope(vault.name), document.path)
        text = "\n\n".join(passage.text for passage in passages)
        if _has_good_summary(document, text):
            continue
        summary = await summarize_document(text, model=model)
        if summary == document.summary:
            failures += 1
            if failures == MAX_CONSECUTIVE_FAILURES:
                break
            continue
        failures = 0
        count += await _store_summary(engine, vault, document._replace(summary=summary), passages)
    return count


def _has_good_summary(document: VaultDocument, text: str) -> bool:
    """Whether the summary is a sufficient first paragraph or was written by a model, not just the leading sentences."""
    leading = extract_leading_sentences(text, MAX_SUMMARY_CHARS)
    return document.summary != leading or leading == extract_first_paragraph(text)


async def _store_summary(engine: Engine, vault: Vault, document: VaultDocument, passages: list[Passage]) -> bool:
    """Stores the summary unless the document has changed since it was read; its passages' vectors stay."""
    stored = await engine.store.list_documents(vault.name, paths=[document.path])
    if [each.digest for each in stored] != [document.digest]:
        return False
    unchanged = tuple(passage._replace(embedder=None) for passage in passages)
    await engine.store.put_documents(vault.name, [IndexedDocument(document, unchanged)])
    return True
