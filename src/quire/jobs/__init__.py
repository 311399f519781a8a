"""Work that nobody waits for: compaction, recall index, vectors, a vault's index and summaries, retention.

One interface, `Jobs`, and two carriers: a queue in PostgreSQL with workers, and this process. What a job does is the
same, whoever carries it, and any of them may be lost: the sweep finds in the log what is missing.
"""

from quire.jobs.carrying import Jobs
from quire.jobs.engines import Engines
from quire.jobs.job import KINDS, Job, Kind, Outcome
from quire.jobs.local import LocalJobs
from quire.jobs.opening import open_jobs
from quire.jobs.queue import Queue
from quire.jobs.sweeping import Sweeper
from quire.jobs.trying import Tally
from quire.jobs.worker import Habits, Worker
from quire.jobs.workshop import Workshop

__all__ = [
    "KINDS",
    "Engines",
    "Habits",
    "Job",
    "Jobs",
    "Kind",
    "LocalJobs",
    "Outcome",
    "Queue",
    "Sweeper",
    "Tally",
    "Worker",
    "Workshop",
    "open_jobs",
]
