"""Background jobs: compaction, recall index, embeddings, vault index and document summaries, retention.

One interface, `Jobs`, and two implementations: a queue in PostgreSQL with workers, and this process. A job does the
same in both. Any job may be lost: the sweep finds in the log what is missing and enqueues it again.
"""

from quire.jobs.base import JOB_KINDS, EngineProvider, Job, JobKind, JobOutcome, Jobs
from quire.jobs.factory import open_jobs
from quire.jobs.local import LocalJobs
from quire.jobs.queue import JobQueue
from quire.jobs.runner import JobCounts, JobRunner
from quire.jobs.sweeper import Sweeper
from quire.jobs.worker import Worker, WorkerOptions

__all__ = [
    "JOB_KINDS",
    "EngineProvider",
    "Job",
    "JobCounts",
    "JobKind",
    "JobOutcome",
    "JobQueue",
    "JobRunner",
    "Jobs",
    "LocalJobs",
    "Sweeper",
    "Worker",
    "WorkerOptions",
    "open_jobs",
]
