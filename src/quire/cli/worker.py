"""`quire worker`: runs background jobs: from the queue in PostgreSQL, or on SQLite those that a sweep finds."""

import asyncio
import logging
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.common import EXIT_FAILED, SetOptions
from quire.cli.output import Result, make_table
from quire.cli.platforms import call_on_signals

if TYPE_CHECKING:
    from quire.errors import StoreUnavailable
    from quire.jobs import JobCounts


async def command(
    *,
    once: Annotated[bool, typer.Option("--once", help="Exit when no job is pending, for cron.")] = False,
    sweep_all: Annotated[
        bool, typer.Option("--all", help="Sweep every conversation first, not only those used since the last sweep.")
    ] = False,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Maximum concurrent jobs.")] = 4,
    overrides: SetOptions = None,
) -> Result | None:
    """Run background jobs: compaction, the recall index, embeddings, the vault's index and summaries, retention.

    On PostgreSQL any number of workers share the job queue of the servers. Each job logs one line of JSON to standard
    error, without content. SIGTERM shuts down gracefully. The exit code is 1 if a job failed with `--once`, or if the
    worker could not start.
    """
    with _log_jobs_to(sys.stderr):
        counts = await _run_worker(overrides, once=once, sweep_all=sweep_all, concurrency=concurrency)
    if not once:
        return None
    from quire.jobs import JOB_KINDS

    rows = [(kind, counts.done[kind], counts.failed[kind]) for kind in JOB_KINDS]
    return Result(
        {"jobs": [{"kind": kind, "done": done, "failed": failed} for kind, done, failed in rows]},
        lambda _: [make_table("kind", "done", "failed", rows=rows, right_aligned=("done", "failed"))],
        exit_code=EXIT_FAILED if counts.failed.total() else 0,
    )


async def _run_worker(overrides: Sequence[str] | None, *, once: bool, sweep_all: bool, concurrency: int) -> "JobCounts":
    from quire.cli.engine_setup import (
        build_embedder,
        build_summarizer,
        load_cli_settings,
        resolve_database_url,
        wait_for_database,
    )
    from quire.context.agent_loader import load_agent
    from quire.db.database_url import is_postgres
    from quire.db.tenant_keys import TenantKeys
    from quire.engine.tenants import TenantEngines
    from quire.jobs import JobRunner, Sweeper
    from quire.jobs.base import log_event
    from quire.store import SqlStore

    def report(error: "StoreUnavailable", pause_seconds: float) -> None:
        log_event("waiting_for_database", error=error, retry_in_seconds=pause_seconds)

    settings = load_cli_settings(overrides).settings
    url = resolve_database_url(settings)
    await wait_for_database(url, report=report)
    agent = load_agent(Path(settings.agent)) if settings.agent is not None else None
    if agent is not None:
        settings = settings.model_validate({**settings.model_dump(), **agent.setting_overrides})
    keys = TenantKeys.from_settings(settings.encryption, os.environ)
    async with SqlStore.open(
        url,
        masking=settings.tenant_masking,
        keys=keys,
        object_storage=settings.object_storage_url,
    ) as store:
        engines = TenantEngines(
            store,
            settings,
            agent=agent,
            summarizer=build_summarizer(settings),
            embedder=await build_embedder(settings),
        )
        sweeper, runner = Sweeper(store, engines), JobRunner(store, engines)
        if sweep_all:
            await sweeper.reset()
        if is_postgres(url):
            return await _run_with_queue(url, runner, sweeper, once=once, concurrency=concurrency)
        return await _run_locally(runner, sweeper, once=once, concurrency=concurrency)


async def _run_with_queue(url: str, runner: Any, sweeper: Any, *, once: bool, concurrency: int) -> "JobCounts":
    from quire.jobs import JobQueue, Worker, WorkerOptions, queue_schema

    await asyncio.to_thread(queue_schema.check_queue, url)
    async with JobQueue.open(url) as queue:
        worker = Worker(queue, runner, sweeper, WorkerOptions(concurrency=concurrency))
        with call_on_signals(worker.stop):
            if once:
                return await worker.run_once()
            await worker.run()
        return worker.counts


async def _run_locally(runner: Any, sweeper: Any, *, once: bool, concurrency: int) -> "JobCounts":
    from quire.jobs import LocalJobs
    from quire.jobs.base import log_event

    if once:
        jobs = LocalJobs(runner, max_concurrent=concurrency)
        await sweeper.sweep(jobs.defer)
        await jobs.wait_until_idle()
        return jobs.counts
    stop = asyncio.Event()
    with call_on_signals(stop.set):
        async with LocalJobs(runner, sweeper, max_concurrent=concurrency) as jobs:
            log_event("worker_started", concurrency=concurrency)
            await stop.wait()
        log_event("worker_stopped", done=jobs.counts.done.total(), failed=jobs.counts.failed.total())
    return jobs.counts


@contextmanager
def _log_jobs_to(stream: Any) -> Generator[None]:
    """Logs job events to the stream, and nothing of other packages, since that may quote content.

    Restores the loggers at the end, so that a caller in the same process never logs to a closed stream.
    """
    root, jobs, silent = logging.getLogger(), logging.getLogger("quire.jobs"), logging.NullHandler()
    previous = jobs.handlers, jobs.level, jobs.propagate
    root.addHandler(silent)
    jobs.handlers, jobs.propagate = [logging.StreamHandler(stream)], False
    jobs.setLevel(logging.INFO)
    try:
        yield
    finally:
        jobs.handlers, level, jobs.propagate = previous
        jobs.setLevel(level)
        root.removeHandler(silent)
