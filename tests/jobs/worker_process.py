"""A worker in its own process: `python worker_process.py URL SECONDS`, where a summary takes SECONDS.

It prints a line on standard output when a summary is requested; its job log goes to standard error.
"""

import asyncio
import logging
import signal
import sys

from job_harness import JobHarness

from quire.jobs import JobQueue, Worker, WorkerOptions
from quire.llm import Prompt
from quire.store import SqlStore
from quire.testing.scripted_model import DelayedReply, ScriptedModel

OPTIONS = WorkerOptions(
    concurrency=2,
    poll_seconds=0.1,
    heartbeat_seconds=0.2,
    stalled_seconds=1.0,
    shutdown_seconds=5.0,
    sweep_cron="* * * * * *",
)


async def main(url: str, seconds: float) -> None:
    def reply_later(_prompt: Prompt) -> DelayedReply:
        sys.stdout.write("summary requested\n")
        sys.stdout.flush()
        return DelayedReply(seconds, "Task: talk about rivers [#1].")

    async with SqlStore.open(url) as store, JobQueue.open(url) as queue:
        harness = JobHarness(store, ScriptedModel(reply_later, repeat=True))
        worker = Worker(queue, harness.runner, harness.sweeper, OPTIONS)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    logging.getLogger("quire.jobs").setLevel(logging.INFO)
    logging.getLogger("quire.jobs").addHandler(logging.StreamHandler())
    logging.getLogger("quire.jobs").propagate = False
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
