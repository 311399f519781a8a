"""Finds what agents have stored on this machine, imports what is new of it, and reports findings."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from quire.engine.file_import import ImportOptions, ImportReport, import_files
from quire.engine.state import EngineState
from quire.errors import QuireError
from quire.findings.report import ExpiringFile, FindingsReport, build_report
from quire.log.observations import FileVersion, make_file_key
from quire.sources.base import DeletesFiles, FileWatcher, Source, SourceError, get_fingerprint
from quire.sources.registry import SOURCES
from quire.store import SqlStore

_logger = logging.getLogger(__name__)

FIRST_BYTES = 100_000_000
"""Bytes of the newest files, which are imported before all others: their findings come within a minute."""
EXPIRY_WARNING_SECONDS = 7 * 86_400
IDLE_SECONDS, MIN_WATCH_SECONDS = 60.0, 2.0
"""Time between two looks for changed files: where nothing was ever imported, and at least."""
MAX_CPU_SHARE = 0.004
"""Share of a core that looking takes: the pause after a look is as much longer."""
MAX_GROUPS = 20
"""Projects and models that a report lists."""


class FoundFile(NamedTuple):
    path: Path
    size: int
    modified_ns: int


class FoundSource(NamedTuple):
    """A program with stored conversations, and its files, the newest first."""

    source: Source
    paths: Sequence[Path]
    files: Sequence[FoundFile]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def find_sources(env: Mapping[str, str]) -> list[FoundSource]:
    """The programs whose usual places have files. Reads names, sizes and times only."""
    found: list[FoundSource] = []
    for source in SOURCES.values():
        paths = source.find_default_paths(env)
        files: list[FoundFile] = []
        for file in (file for path in paths for file in source.find_files(path)):
            with suppress(OSError):
                files.append(FoundFile(file, *get_fingerprint(file)))
        if files:
            found.append(FoundSource(source, paths, sorted(files, key=lambda each: -each.modified_ns)))
    return found


def select_changed(
    found: Sequence[FoundSource], known: Mapping[bytes, FileVersion], *, rereads: bool = False
) -> list[FoundSource]:
    """The sources with only the files that were not imported as they are now. With `rereads`, also those that an
    earlier version of their reader read."""
    changed: list[FoundSource] = []
    for each in found:
        files = [
            file
            for file in each.files
            if (version := known.get(make_file_key(each.source.name, str(file.path)))) is None
            or (version.size, version.modified_ns) != (file.size, file.modified_ns)
            or (rereads and version.reads < each.source.reads)
        ]
        if files:
            changed.append(each._replace(files=files))
    return changed


def select_outdated(found: Sequence[FoundSource], known: Mapping[bytes, FileVersion]) -> list[FoundSource]:
    """The sources with only the files that an earlier version of their reader read."""
    outdated: list[FoundSource] = []
    for each in found:
        versions = ((file, known.get(make_file_key(each.source.name, str(file.path)))) for file in each.files)
        files = [file for file, version in versions if version is not None and version.reads < each.source.reads]
        if files:
            outdated.append(each._replace(files=files))
    return outdated


def split_newest(found: Sequence[FoundSource]) -> tuple[list[FoundSource], list[FoundSource]]:
    """The newest files of all sources, up to `FIRST_BYTES`, and the others."""
    everything = sorted((file for each in found for file in each.files), key=lambda file: -file.modified_ns)
    total, newest = 0, set[Path]()
    for file in everything:
        total += file.size
        if newest and total > FIRST_BYTES:
            break
        newest.add(file.path)
    parts = ([file for file in each.files if file.path in newest] for each in found)
    first = [each._replace(files=files) for each, files in zip(found, parts, strict=True) if files]
    others = ([file for file in each.files if file.path not in newest] for each in found)
    return first, [each._replace(files=files) for each, files in zip(found, others, strict=True) if files]


async def import_sources(
    engine: EngineState,
    found: Sequence[FoundSource],
    options: ImportOptions,
    *,
    on_progress: Callable[[str, int], None] | None = None,
    prepare_reread: Callable[[], Awaitable[None]] | None = None,
) -> ImportReport:
    """Imports these files. Calls `on_progress` with the title of the source and the number of files that are done."""
    total = ImportReport(total_files=sum(len(each.files) for each in found))
    for each in found:
        before = total.files

        def report_progress(so_far: ImportReport, title: str = each.source.title, before: int = before) -> None:
            if on_progress is not None:
                on_progress(title, before + so_far.files)

        files = [file.path for file in each.files]
        done = await import_files(
            engine, each.source, files, options, on_progress=report_progress, prepare_reread=prepare_reread
        )
        total.reread |= done.reread
        total.merged |= done.merged
        total.unmerged |= done.unmerged
        total.files += done.files
        total.conversations += done.conversations
        total.messages += done.messages
        total.known_messages += done.known_messages
        total.live_conversations += done.live_conversations
        total.unfinished_replies += done.unfinished_replies
        for error in done.errors:
            total.add_error(SourceError.of(f"{each.source.title}: {error.item}", error.reason))
        total.error_count += done.error_count - len(done.errors)
    return total


def find_expiring(found: Sequence[FoundSource]) -> Iterator[ExpiringFile]:
    """Files that their programs will delete within a week."""
    now = time.time()
    for each in found:
        source = each.source
        if not isinstance(source, DeletesFiles):
            continue
        for root in each.paths:
            files = {
                file.path: file.modified_ns / 1e9
                for file in each.files
                if len(each.paths) == 1 or file.path.is_relative_to(root)
            }
            for path, session, at, reason in source.find_deletions(root, files):
                if at <= now + EXPIRY_WARNING_SECONDS:
                    deleted_at = int(at * 1_000_000) if at > now else None
                    yield ExpiringFile(source.name, source.title, session, str(path), deleted_at, reason)


async def read_findings(store: SqlStore, found: Sequence[FoundSource] = ()) -> FindingsReport:
    """All findings of what is in the usage roll-up and was noticed in imports."""
    usage = await store.usage.read_report(groupings=("day", "model", "project", "source"), limit=MAX_GROUPS)
    costs = await store.usage.list_conversation_costs()
    observed = await store.imports.read_observations()
    return await asyncio.to_thread(lambda: build_report(usage, costs, observed, list(find_expiring(found))))


@asynccontextmanager
async def watch_sources(engine: EngineState, env: Mapping[str, str]) -> AsyncGenerator[None]:
    """Imports what the programs write, in the background, from the sources that were imported before.

    A server imports nothing of a program from which the user has never imported.
    """
    task = asyncio.create_task(_watch(engine, env))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _watch(engine: EngineState, env: Mapping[str, str]) -> None:
    known: dict[bytes, FileVersion] = {}
    while not known:
        known = await engine.store.imports.list_files()
        if not known:
            await asyncio.sleep(IDLE_SECONDS)
    watchers = await asyncio.to_thread(_create_watchers, env, known)
    while True:
        started_at = time.thread_time()
        pause = MIN_WATCH_SECONDS
        try:
            changed, used = await asyncio.to_thread(_find_changed, watchers)
            # What was imported before the start is new to the watchers only.
            changed, known = select_changed(changed, known), {}
            pause = max(pause, (used + time.thread_time() - started_at) / MAX_CPU_SHARE)
            if changed:
                await import_sources(engine, changed, ImportOptions())
        except (QuireError, OSError) as error:
            _logger.warning("the files of agents were not imported: %s", error)
        await asyncio.sleep(pause)


def _create_watchers(env: Mapping[str, str], known: Mapping[bytes, FileVersion]) -> list[tuple[Source, FileWatcher]]:
    """Watchers of the sources of which a file was imported before."""
    return [
        (each.source, FileWatcher(each.source, each.paths))
        for each in find_sources(env)
        if any(make_file_key(each.source.name, str(file.path)) in known for file in each.files)
    ]


def _find_changed(watchers: Sequence[tuple[Source, FileWatcher]]) -> tuple[list[FoundSource], float]:
    """The files that changed since the last look, and the CPU seconds that it took."""
    started_at = time.thread_time()
    changed: list[FoundSource] = []
    for source, watcher in watchers:
        files: list[FoundFile] = []
        for file in watcher.find_changed():
            with suppress(OSError):
                files.append(FoundFile(file, *get_fingerprint(file)))
        if files:
            changed.append(FoundSource(source, (), files))
    return changed, time.thread_time() - started_at
