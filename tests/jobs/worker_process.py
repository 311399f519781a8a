"""A worker in a process of its own: `python worker_process.py URL SECONDS`, where a summary takes so many seconds.

It says on standard output when a summary is asked for; what it tells of its jobs goes to standard error.
"""

import asyncio
import logging
import signal
import sys

from jobbing import Shop

from quire.jobs import Habits, Queue, Worker
from quire.llm import Prompt
from quire.log import SqlStore
from quire.testing.scripted import ScriptedModel, Slow

HABITS = Habits(concurrency=2, poll=0.1, heartbeat=0.2, stalled=1.0, grace=5.0, sweeps="* * * * * *")


async def main(url: str, seconds: float) -> None:
    def asked(_prompt: Prompt) -> Slow:
        sys.stdout.write("asked\n")
        sys.stdout.flush()
        return Slow(seconds, "Task: talk about rivers [#1].")

    async with SqlStore.open(url) as store, Queue.opened(url) as queue:
        shop = Shop(store, ScriptedModel(asked, repeat=True))
        worker = Worker(queue, shop.workshop, shop.sweeper, HABITS)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    logging.getLogger("quire.jobs").setLevel(logging.INFO)
    logging.getLogger("quire.jobs").addHandler(logging.StreamHandler())
    logging.getLogger("quire.jobs").propagate = False
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
