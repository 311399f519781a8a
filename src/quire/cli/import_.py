"""`quire import`: imports the conversations that other programs stored, and those that `quire export` wrote."""

import asyncio
import os
import sys
from asyncio import CancelledError
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.common import EXIT_FAILED, AsJson, SetOptions, open_store, run_async
from quire.cli.output import (
    ProgressBar,
    Result,
    describe_unfinished,
    make_table,
    make_text,
    pluralize,
    print_note,
    print_result,
    show_progress,
)
from quire.cli.platforms import call_on_signals
from quire.cli.reimport import ReimportNotice, print_unmerged
from quire.cli.search import parse_since
from quire.errors import DocumentNotFound, ImportFailed, InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.engine.file_import import ImportOptions, ImportReport
    from quire.log import ConversationRecord
    from quire.sources.base import Source

WATCH_SECONDS = 1.0
"""Time between two looks for changed files."""
MAX_PRINTED_ERRORS = 50
"""Errors that are printed; `--json` lists more."""


def _complete_sources(incomplete: str) -> list[tuple[str, str]]:
    from quire.sources.registry import SOURCES

    return [(name, source.title) for name, source in SOURCES.items() if name.startswith(incomplete)]


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="The program, such as `claude-code` or `codex`, or a file that `quire export` wrote.",
            autocompletion=_complete_sources,
        ),
    ],
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="A file or folder. Default: where the program stores its conversations."),
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what is new, and write nothing.")] = False,
    since: Annotated[
        int | None,
        typer.Option(
            metavar="TIME", parser=parse_since, help="Skip what last changed before this date, time or age (7d)."
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Import what is added to the files until Ctrl+C.")] = False,
    project: Annotated[
        str | None, typer.Option("--project", help="Project of conversations whose source names none.")
    ] = None,
    rename: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="Import a file of `quire export` under another ID.")
    ] = None,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Import the conversations of another program, with branches, compactions, times and usage.

    A second import adds only what is new, and changes nothing that is stored. An item that cannot be read is listed
    with its reason. The exit code is 1 if nothing could be read. A file of `quire export` is imported as a whole or not
    at all, with every digest verified. - reads it from standard input.
    """
    from quire.engine.file_import import ImportOptions
    from quire.sources.registry import SOURCES

    if path is None and source not in SOURCES and (source == "-" or Path(source).suffix or Path(source).is_file()):
        print_result(_import_export(source, rename, overrides), as_json=as_json)
        return
    if rename is not None:
        raise InvalidRequest("--as is for a file of `quire export`; the ids of other sources stay.")
    if watch and dry_run:
        raise InvalidRequest("--watch writes what it finds; use it without --dry-run.")
    chosen = SOURCES.get(source)
    if chosen is None:
        names = ", ".join(SOURCES)
        raise InvalidRequest(f"{source!r} is no source of conversations; choose a file, or one of: {names}.")
    if path is not None and not path.exists():
        raise DocumentNotFound(f"There is no file or folder {path}; check the path.")
    paths = [path] if path is not None else chosen.find_default_paths(os.environ)
    if not paths:
        raise DocumentNotFound(
            f"{chosen.title} stores no conversations in its usual place; name a file or folder: "
            f"quire import {chosen.name} PATH"
        )
    options = ImportOptions(since, project, dry_run=dry_run, processes=os.cpu_count() or 1, has_deadline=False)
    if chosen.is_experimental:
        print_note(f"{chosen.title} is experimental: its format is known from descriptions, not from its own files.")
    # Quire computes the cost from tokens.
    if missing := [each for each in chosen.not_stored if each != "cost"]:
        print_note(f"{chosen.title} does not store: {', '.join(missing)}.")
    with suppress(KeyboardInterrupt):
        run_async(_import_source(chosen, paths, options, overrides, watch=watch, as_json=as_json))


def _import_export(source: str, rename: str | None, overrides: list[str] | None) -> Result:

    async def write(lines: Iterable[str], size: int) -> "ConversationRecord":
        stopped = Event()
        async with open_store(overrides) as store:
            with show_progress("Importing") as progress:
                try:
                    return await store.import_conversation(
                        _track_progress(lines, size, progress, stopped), as_id=rename
                    )
                except CancelledError:
                    # The database runs in its own thread, which would otherwise finish the import and commit it.
                    stopped.set()
                    raise

    if source == "-":
        # Read before the event loop starts, so that Ctrl-C ends the wait for it.
        piped = sys.stdin.readlines()
        imported = run_async(write(piped, sum(map(len, piped))))
    else:
        try:
            with Path(source).open(encoding="utf-8") as file:
                imported = run_async(write(file, Path(source).stat().st_size))
        except FileNotFoundError as error:
            raise DocumentNotFound(f"There is no file {source}.") from error
        except OSError as error:
            raise ImportFailed(f"{source} cannot be read: {error.strerror}.") from error
    document = {"conversation": imported.id, "title": imported.title, "tags": imported.tags}
    return Result(document, f"Imported {imported.id}.")


def _track_progress(lines: Iterable[str], size: int, progress: ProgressBar, stopped: Event) -> Iterator[str]:
    read = 0
    try:
        for line in lines:
            if stopped.is_set():
                raise ImportFailed("The import was stopped. Nothing was imported.")
            yield line
            read += len(line)
            progress.update(min(read, size), size)
    except UnicodeDecodeError as error:
        raise ImportFailed(f"The file is not UTF-8 text: {error}. Nothing was imported.") from error


async def _import_source(
    source: "Source",
    paths: list[Path],
    options: "ImportOptions",
    overrides: list[str] | None,
    *,
    watch: bool,
    as_json: bool,
) -> None:
    """Imports the files; with `watch`, changed ones until an interrupt. A transaction that has begun is finished."""
    from quire.cli.engine_setup import load_cli_settings, open_engine_from_settings, resolve_database_url
    from quire.engine.file_import import import_files
    from quire.schemas.imports import ImportCountsSchema
    from quire.sources.base import FileWatcher

    watcher, stopped = FileWatcher(source, paths), asyncio.Event()

    async def import_changed() -> "ImportReport":
        files = await asyncio.to_thread(watcher.find_changed)
        with show_progress(f"Importing {source.title}") as bar:
            report = await import_files(
                engine,
                source,
                files,
                options,
                on_progress=lambda so_far: bar.update(so_far.files, so_far.total_files),
                prepare_reread=notice.prepare,
            )
            await notice.print_changes(report.reread, report.merged, dry_run=options.dry_run)
            print_unmerged(report.unmerged)
        with show_progress("Indexing"):
            await engine.runtime.jobs.wait()
        return report

    def print_report(report: "ImportReport") -> None:
        counts = dict(ImportCountsSchema.model_validate(report))
        document = {**counts, "files": report.files, "dry_run": options.dry_run}
        print_result(Result(document, lambda _: _draw_report(report, dry_run=options.dry_run)), as_json=as_json)
        # A pipe would get it only when watching ends.
        sys.stdout.flush()

    async with open_engine_from_settings(overrides) as engine:
        notice = ReimportNotice(engine.store, resolve_database_url(load_cli_settings(overrides).settings))
        first = await import_changed()
        print_report(first)
        if watch:
            print_note(f"Watching {source.title}; press Ctrl+C to stop.")
            with call_on_signals(stopped.set):
                while not stopped.is_set():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(stopped.wait(), WATCH_SECONDS)
                    report = await import_changed()
                    if report.messages or report.error_count:
                        print_report(report)
    if first.messages or first.known_messages:
        return
    if not first.error_count and not watch and options.since is None:
        files, places = pluralize(first.files, "file"), ", ".join(map(str, paths))
        print_note(f"No conversation of {source.title} was found in {places} ({files} read); name another path.")
        raise typer.Exit(EXIT_FAILED)
    if first.error_count:
        raise typer.Exit(EXIT_FAILED)


def _draw_report(report: "ImportReport", *, dry_run: bool) -> "Iterable[RenderableType]":
    if report.errors:
        rows = [(each.item, each.reason) for each in report.errors[:MAX_PRINTED_ERRORS]]
        yield make_table("not imported", "reason", rows=rows, wrapped=("reason",))
    if report.error_count > MAX_PRINTED_ERRORS:
        yield make_text(f"and {pluralize(report.error_count - MAX_PRINTED_ERRORS, 'more item')}; --json lists them.")
    if report.live_conversations:
        merged = pluralize(report.live_conversations, "conversation")
        yield make_text(f"Merged {merged} with what the gateway recorded.")
    if report.unfinished_replies:
        yield make_text(f"{describe_unfinished(report.unfinished_replies)}; the next import reads what is complete.")
    verb = "Found" if dry_run else "Imported"
    known = f"; {report.known_messages:,} known already" if report.known_messages else ""
    yield make_text(
        f"{verb} {pluralize(report.messages, 'new message')} in {pluralize(report.conversations, 'conversation')} "
        f"from {pluralize(report.files, 'file')}{known}."
    )
