"""Imports of uploaded files, which run in this process after their request has ended.

A file is imported in batches, each of which is one transaction with its ledger. An import that a shutdown ends is
completed by the same upload.
"""

import asyncio
import logging
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from quire.concurrency.worker_threads import IMPORT_THREADS
from quire.engine import Engine
from quire.engine.file_import import ImportOptions, ImportReport, import_files
from quire.errors import Conflict, NotFound, QuireError, TooManyRequests
from quire.model.ids import new_id, now
from quire.schemas.imports import ImportCountsSchema, ImportJobSchema, ImportStatus
from quire.sources.base import Source

_log = logging.getLogger(__name__)

MAX_RUNNING_IMPORTS = IMPORT_THREADS
"""Imports of all tenants that run at the same time. A tenant has one."""
MAX_UPLOADS = 4
"""Unfinished uploads of all tenants, each of which may fill the disk up to the limit of a file. A tenant has one."""
MAX_SENT_ERRORS = 200
"""Errors in one response; the rest are counted."""
MAX_LISTED_IMPORTS = 50
"""Imports of a tenant that are listed. Older ones are forgotten."""


class ImportJob:
    """An import and what it has done so far."""

    def __init__(self, source: Source, folder: Path) -> None:
        self.id, self.created_at = new_id(), now()
        self.status: ImportStatus = "running"
        self.failure: str | None = None
        self._source, self._folder, self._report = source, folder, ImportReport()

    async def run(self, engine: Engine, path: Path, options: ImportOptions) -> None:
        def set_report(report: ImportReport) -> None:
            self._report = report

        try:
            self._report = await import_files(engine, self._source, [path], options, on_progress=set_report)
        except asyncio.CancelledError:
            self.failure = "The server stopped; upload the file again to complete the import."
            raise
        except QuireError as error:
            self.failure = str(error)
        except Exception:  # noqa: BLE001 (logged, and reported as a failed import)
            self.failure = "An unexpected error occurred; the server log has the details."
            _log.exception("An import failed")
        finally:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self.status = "done" if self.failure is None else "failed"

    def to_schema(self) -> ImportJobSchema:
        counts = dict(ImportCountsSchema.model_validate(self._report))
        counts["errors"] = counts["errors"][:MAX_SENT_ERRORS]
        return ImportJobSchema(
            **counts,
            id=self.id,
            source=self._source.name,
            status=self.status,
            failure=self.failure,
            created_at=self.created_at,
        )


class ImportJobs:
    """The imports of this process, by tenant."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, ImportJob]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._uploading: set[str] = set()

    @contextmanager
    def reserve_upload(self, tenant: str) -> Generator[None]:
        """Reserves the upload of a file, until it has arrived and its import has started or was refused."""
        self.check_capacity(tenant)
        if tenant in self._uploading or len(self._uploading) >= MAX_UPLOADS:
            raise TooManyRequests("Another upload is in progress; wait until it is done.", retry_after=5)
        self._uploading.add(tenant)
        try:
            yield
        finally:
            self._uploading.remove(tenant)

    def check_capacity(self, tenant: str) -> None:
        """Raises `Conflict` if no further import may start now."""
        newest = {key: next(reversed(self._jobs[key].values())) for key in self._tasks}
        running = [key for key, job in newest.items() if job.status == "running"]
        if tenant in running or len(running) >= MAX_RUNNING_IMPORTS:
            raise Conflict("Another import is in progress; wait until it is done.")

    def start(self, engine: Engine, source: Source, path: Path, options: ImportOptions) -> ImportJob:
        """Starts the import of a file, whose folder is deleted at its end."""
        tenant = engine.store.tenant
        self.check_capacity(tenant)
        job = ImportJob(source, path.parent)
        jobs = self._jobs.setdefault(tenant, {})
        jobs[job.id] = job
        for oldest in list(jobs)[:-MAX_LISTED_IMPORTS]:
            del jobs[oldest]
        task = self._tasks[tenant] = asyncio.get_running_loop().create_task(job.run(engine, path, options))

        def forget_task(task: asyncio.Task[None]) -> None:
            if self._tasks.get(tenant) is task:
                del self._tasks[tenant]

        task.add_done_callback(forget_task)
        return job

    def list_jobs(self, tenant: str) -> list[ImportJob]:
        """The newest first."""
        return list(self._jobs.get(tenant, {}).values())[::-1]

    def get(self, tenant: str, id: str) -> ImportJob:
        job = self._jobs.get(tenant, {}).get(id)
        if job is None:
            raise NotFound(f"There is no import {id!r} in this process; upload the file again to see what is missing.")
        return job

    async def stop_all(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
