"""`quire worker`: does the jobs that others leave: in PostgreSQL's queue, or, on SQLite, what a sweep finds."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.output import give, table
from quire.cli.running import FAILED, AsJson, Given, run

if TYPE_CHECKING:
    from quire.engine.tenants import TenantEngines
    from quire.jobs import Tally
    from quire.log import SqlStore
    from quire.settings import Settings

Once = Annotated[bool, typer.Option("--once", help="End when nothing is left to be done now, as for cron.")]
Everything = Annotated[
    bool, typer.Option("--all", help="Look at every conversation first, not only at those used since the last look.")
]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="So many jobs at a time.")]
Poll = Annotated[
    float,
    typer.Option("--poll", min=0.1, metavar="SECONDS", help="Look for jobs so often, besides being told of them."),
]
Grace = Annotated[
    float, typer.Option("--grace", min=0, metavar="SECONDS", help="Let jobs go on for so long when told to stop.")
]


def command(
    *,
    once: Once = False,
    everything: Everything = False,
    concurrency: Concurrency = 4,
    poll: Poll = 5.0,
    grace: Grace = 30.0,
    given: Given = None,
    as_json: AsJson = False,
) -> None:
    """Do what nobody waits for: background compaction, the recall index, vectors, the vault's index and summaries,
    retention.

    On PostgreSQL any number of workers share the queue that servers put jobs into. One line of JSON about every job
    goes to standard error, without content. SIGTERM lets the jobs under way end. The exit code is 1 if a job failed
    with `--once`, or if the worker could not start.
    """
    _log_to(sys.stderr)
    options = {"concurrency": concurrency, "poll": poll, "grace": grace}
    tally = run(_work(tuple(given or ()), once=once, everything=everything, options=options))
    if once:
        _report(tally, as_json=as_json)
        if tally.failed.total():
            raise typer.Exit(FAILED)


def _report(tally: "Tally", *, as_json: bool) -> None:
    from quire.jobs import KINDS

    counts = [{"kind": kind, "done": tally.done[kind], "failed": tally.failed[kind]} for kind in KINDS]
    rows = [tuple(each.values()) for each in counts]
    document = {"jobs": counts}
    give(document, lambda _: [table("kind", "done", "failed", rows=rows, right=("done", "failed"))], as_json=as_json)


async def _work(given: Sequence[str], *, once: bool, everything: bool, options: dict[str, Any]) -> "Tally":
    from quire.cli.opening import as_options, database_url, settings_from
    from quire.jobs import Sweeper, Workshop
    from quire.log import SqlStore

    settings = settings_from(as_options(given)).settings
    url = database_url(settings)
    async with SqlStore.open(url) as store:
        engines = await _engines(store, settings)
        sweeper, workshop = Sweeper(store, engines), Workshop(store, engines)
        if everything:
            await sweeper.forget()
        carry = _in_the_queue if url.startswith("postgresql") else _here
        return await carry(url, workshop, sweeper, once=once, options=options)


async def _engines(store: "SqlStore", settings: "Settings") -> "TenantEngines":
    from pathlib import Path

    from quire.cli.opening import embedder_from, summarizer_from
    from quire.context.agents import load_agent
    from quire.engine.tenants import TenantEngines

    agent = load_agent(Path(settings.agent)) if settings.agent is not None else None
    if agent is not None:
        settings = settings.model_validate({**settings.model_dump(), **agent.own_settings})
    return TenantEngines(
        store,
        settings,
        agent=agent,
        summarizer=summarizer_from(settings),
        embedder=await embedder_from(settings),
    )


async def _in_the_queue(url: str, workshop: Any, sweeper: Any, *, once: bool, options: dict[str, Any]) -> "Tally":
    from quire.jobs import Habits, Queue, Worker, schema

    await asyncio.to_thread(schema.check, url)
    async with Queue.opened(url) as queue:
        worker = Worker(queue, workshop, sweeper, Habits(**options))
        async with _stopped_by_signals(worker.stop):
            if once:
                return await worker.once()
            await worker.run()
        return worker.tally


async def _here(_url: str, workshop: Any, sweeper: Any, *, once: bool, options: dict[str, Any]) -> "Tally":
    from quire.jobs import LocalJobs
    from quire.jobs.telling import tell

    at_once, stop = options["concurrency"], asyncio.Event()
    if once:
        jobs = LocalJobs(workshop, at_once=at_once)
        await sweeper.sweep(jobs.defer)
        await jobs.settle()
        return jobs.tally
    async with _stopped_by_signals(stop.set):
        async with LocalJobs(workshop, sweeper, at_once=at_once) as jobs:
            tell("worker_started", concurrency=at_once)
            await stop.wait()
        tell("worker_stopped", done=jobs.tally.done.total(), failed=jobs.tally.failed.total())
    return jobs.tally


@asynccontextmanager
async def _stopped_by_signals(stop: Callable[[], None]) -> AsyncGenerator[None]:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for each in signals:
        loop.add_signal_handler(each, stop)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


def _log_to(stream: Any) -> None:
    """Ours alone: what other packages log may quote what was said."""
    logging.getLogger().addHandler(logging.NullHandler())
    ours = logging.getLogger("quire.jobs")
    ours.handlers = [logging.StreamHandler(stream)]
    ours.setLevel(logging.INFO)
    ours.propagate = False
