"""Runs jobs: `JobRunner` does the work of each kind, `RetryingRunner` adds retry with exponential backoff and
counts."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

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
from quire.engine.topic_indexer import find_unread, index_topics
from quire.errors import (
    BranchNotFound,
    ContextOverflow,
    ConversationNotFound,
    InvalidRequest,
    SpendCapReached,
    StorageQuotaReached,
    UnknownPrice,
)
from quire.index.types import IndexedDocument, vault_scope
from quire.jobs.base import NO_WORK, EngineProvider, Job, JobKind, JobOutcome, log_event
from quire.llm import Model
from quire.model import Compaction, Restore
from quire.model.ids import now
from quire.store import SqlStore
from quire.usage.insights import count_usage

DAY_MICROSECONDS = 86_400_000_000
MAX_ATTEMPTS = 5
"""Attempts after which a job is abandoned. A later sweep may enqueue it again."""
MAX_CONSECUTIVE_FAILURES = 3
"""Documents in a row without a usable summary after which the rest of the vault waits for the next run."""

NOT_FOUND_ERRORS = (ConversationNotFound, BranchNotFound)
"""The job's conversation or branch was deleted: there is nothing to do."""
PERMANENT_ERRORS = (SpendCapReached, StorageQuotaReached, UnknownPrice, ContextOverflow, InvalidRequest)
"""Errors that a retry would repeat."""


class JobRunner:
    """Does the work of a job, as its tenant. Every kind is idempotent."""

    def __init__(self, store: SqlStore, engines: EngineProvider, *, clock: Callable[[], int] = now) -> None:
        self._store, self._engines, self._clock = store, engines, clock

    async def run(self, job: Job) -> JobOutcome:
        """Does what is missing. Nothing if the conversation is gone."""
        try:
            return await self._dispatch(job)
        except NOT_FOUND_ERRORS:
            return NO_WORK

    async def _dispatch(self, job: Job) -> JobOutcome:
        engine, store = self._engines(job.tenant, None), self._store.for_tenant(job.tenant)
        match job.kind:
            case "compact":
                return await self._compact(job, store)
            case "index_messages":
                return JobOutcome(await index_messages(engine))
            case "index_topics":
                paying = await self._find_payer(job, store, engine)
                count = await index_topics(paying, job.conversation, job.branch)
                is_unfinished = count > 0 and await find_unread(store, job.conversation, job.branch) is not None
                return JobOutcome(count, (job,) if is_unfinished else ())
            case "count_usage":
                return JobOutcome(await count_usage(store.usage))
            case "embed":
                if engine.embedder is None:
                    return NO_WORK
                scopes = await store.passages.list_unembedded_scopes(embedder=engine.embedder.name)
                return JobOutcome(sum([await embed_scope(engine, scope) for scope in scopes]))
            case "index_vault":
                return await self._index_vault(job, engine)
            case "summarize_documents":
                if engine.vault is None or engine.document_summarizer is None:
                    return NO_WORK
                return JobOutcome(await summarize_documents(engine, engine.vault, engine.document_summarizer.model))
            case "purge":
                return JobOutcome(await self._purge(job, engine, store))
            case "offload":
                return JobOutcome(await self._offload(job, engine, store))
            case "thin_manifests":
                return JobOutcome(await self._thin_manifests(job, engine, store))
        assert_never(job.kind)

    async def _index_vault(self, job: Job, engine: Engine) -> JobOutcome:
        if engine.vault is None:
            return NO_WORK
        count = 0
        async for progress in engine.index_vault():
            count = progress.done
        needs_summaries = count > 0 and engine.document_summarizer is not None
        return JobOutcome(count, (Job("summarize_documents", job.tenant),) if needs_summaries else ())

    async def _thin_manifests(self, job: Job, engine: Engine, store: SqlStore) -> int:
        days = engine.settings.thin_manifests_after_days
        if days is None:
            return 0
        return await store.thin_manifests(job.conversation, before=self._clock() - days * DAY_MICROSECONDS)

    async def _purge(self, job: Job, engine: Engine, store: SqlStore) -> int:
        days = engine.settings.retention_days
        record = await store.get_conversation(job.conversation)
        is_used = days is None or record.updated_at > self._clock() - days * DAY_MICROSECONDS
        if is_used or await store.is_purged(job.conversation):
            return 0
        return len(await store.purge(job.conversation))

    async def _offload(self, job: Job, engine: Engine, store: SqlStore) -> int:
        """Moves large blobs of an idle conversation to object storage, and the conversation if it is unused for long.

        Without a conversation, those that were restored and not used since, and what an earlier job left behind."""
        offloading, days = store.offloading, engine.settings.offload_after_days
        if not offloading.is_enabled:
            return 0
        before = self._clock() - days * DAY_MICROSECONDS if days is not None else 0
        if not job.conversation:
            count = await offloading.collect()
            for conversation in await offloading.list_restored(before=before):
                count += await offloading.offload(conversation) is not None
            return count
        record = await store.get_conversation(job.conversation)
        count = await offloading.move_blobs(job.conversation)
        if record.updated_at <= before and not await offloading.is_restored(job.conversation):
            count += await offloading.offload(job.conversation) is not None
        return count

    async def _compact(self, job: Job, store: SqlStore) -> JobOutcome:
        if (await store.get_conversation(job.conversation)).owner is not None:
            return JobOutcome(await _undo_background_compactions(store, job))
        # The engine for the model of the last reply, because its context window is the one to stay within.
        manifests = await store.list_manifests(job.conversation, branch=job.branch, limit=1)
        engine = self._engines(job.tenant, manifests[-1][1].policy.model if manifests else None)
        paying = await self._find_payer(job, store, engine)
        entry = await Conversation(paying, job.conversation, job.branch).compact(trigger="background")
        # Assembling the window may have started background tasks; they are part of the job.
        await engine.wait_for_background()
        return NO_WORK if entry is None else JobOutcome(1)

    async def _find_payer(self, job: Job, store: SqlStore, engine: Engine) -> Engine:
        """The engine whose calls are charged to the API key of the conversation."""
        return engine.with_changes(spending_key=await store.spending.find_key(job.conversation))


async def _undo_background_compactions(store: SqlStore, job: Job) -> int:
    """Undoes the active compactions that an earlier version made in the background of an agent's conversation: they
    stay in the log, and are no part of what the agent saw."""
    count = 0
    while (active := (await store.get_branch(job.conversation, job.branch)).state.active_compaction) is not None:
        body = (await store.get_entry(job.conversation, active.seq, branch=job.branch)).body
        if not isinstance(body, Compaction) or body.trigger != "background":
            break
        await store.append(job.conversation, Restore(compaction=active.seq), branch=job.branch)
        count += 1
    return count


class AttemptResult(NamedTuple):
    """What to enqueue after an attempt."""

    follow_ups: tuple[Job, ...] = ()
    retry_after_seconds: float | None = None
    """Delay before the next attempt, or None if there is none."""


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
    """Writes a sentence by the model for documents whose first paragraph says too little. Returns their number.

    The index is built without a model, so that it never waits for one. Such a document then has its leading sentences
    as its summary. This function looks for those, so that each document is summarized once, and again after a change.
    """
    store, count, failures = engine.store, 0, 0
    for document in await store.documents.list(vault.name):
        passages = await store.passages.get(vault_scope(vault.name), document.path)
        text = "\n\n".join(passage.text for passage in passages)
        leading = extract_leading_sentences(text, MAX_SUMMARY_CHARS)
        if document.summary != leading or leading == extract_first_paragraph(text):
            # A model wrote the summary, or it is a first paragraph that says enough.
            continue
        summary = await summarize_document(text, model=model)
        if summary == document.summary:
            failures += 1
            if failures == MAX_CONSECUTIVE_FAILURES:
                break
            continue
        failures = 0
        stored = await store.documents.list(vault.name, paths=[document.path])
        # Not if the document has changed since it was read. The vectors of its passages stay.
        if [each.digest for each in stored] == [document.digest]:
            unchanged = tuple(passage._replace(embedder=None) for passage in passages)
            indexed = IndexedDocument(document._replace(summary=summary), unchanged)
            await store.documents.put(vault.name, [indexed])
            count += 1
    return count
