"""Job values, the `Jobs` protocol and the job log, shared by the local runner and the PostgreSQL queue.

A job carries ids and never content, and is idempotent, so that losing or repeating one does no harm.
"""

import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Protocol, get_args

from quire.engine import Engine
from quire.engine.background_jobs import BackgroundJobs, EngineJobKind, TaskQueue, Work
from quire.log import MAIN_BRANCH

JobKind = Literal[
    "compact", "index_messages", "index_topics", "count_usage", "embed", "index_vault", "summarize_documents", "purge",
    "offload", "thin_manifests",
]  # fmt: skip
"""Background compaction, message index, topics of archived messages, usage roll-up, embeddings, vault index, summaries
of vault documents, retention, object storage, thinning of manifests."""
JOB_KINDS: tuple[JobKind, ...] = get_args(JobKind)
MAX_CONCURRENT_DEFERRALS = 8
"""Jobs of one engine that are handed over at the same time."""

EngineProvider = Callable[[str, str | None], Engine]
"""Returns the engine of a tenant, for its default model (None) or for another."""

logger = logging.getLogger("quire.jobs")


class Job(NamedTuple):
    """What to do, and for which tenant, conversation and branch."""

    kind: JobKind
    tenant: str
    conversation: str = ""
    """Empty for jobs on a vault, on all messages or on all objects."""
    branch: int = MAIN_BRANCH

    @property
    def lock(self) -> str:
        """Deduplication key: of jobs with the same lock, at most one waits and one runs at a time."""
        ids = json.dumps([self.tenant, self.conversation, self.branch])
        return f"{self.kind}:{sha256(ids.encode()).hexdigest()}"

    def to_args(self) -> dict[str, Any]:
        return {"tenant": self.tenant, "conversation": self.conversation, "branch": self.branch}


class JobOutcome(NamedTuple):
    """The number of items that a job created or removed, and the jobs to enqueue after it."""

    item_count: int = 0
    follow_ups: tuple[Job, ...] = ()


NO_WORK = JobOutcome()


Defer = Callable[[Sequence[Job]], Coroutine[Any, Any, None]]
"""Accepts jobs, for workers or for this process."""


class Jobs(Protocol):
    """Accepts jobs to run in the background, at least once each."""

    async def defer(self, jobs: Sequence[Job]) -> None: ...

    def for_tenant(self, tenant: str) -> BackgroundJobs:
        """The background jobs of this tenant's engine."""
        ...


class TenantJobs:
    """The background jobs of one tenant's engine: passes their ids to `defer`, which the engine does not wait for."""

    def __init__(self, defer: Defer, tenant: str) -> None:
        self._defer, self._tenant = defer, tenant
        self._tasks = TaskQueue(max_concurrent=MAX_CONCURRENT_DEFERRALS)

    def enqueue(
        self, kind: EngineJobKind, conversation: str, branch: int, work: Work, *, delay_seconds: float = 0.0
    ) -> None:
        job = Job(kind, self._tenant, conversation, branch)
        self._tasks.submit(job, partial(self._defer, [job]), delay_seconds=delay_seconds)

    async def wait(self) -> None:
        """Waits until all jobs are handed over to `defer`, but not until they have run."""
        await self._tasks.wait()


def log_event(event: str, *, job: Job | None = None, error: BaseException | None = None, **fields: Any) -> None:
    """Logs one event as JSON. Of an error only the class name is logged, because its message may quote content."""
    record: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
    if job is not None:
        record |= {"kind": job.kind, **job.to_args()}
    if error is not None:
        record["error"] = type(error).__name__
    logger.log(logging.WARNING if error is not None else logging.INFO, json.dumps(record | fields))
