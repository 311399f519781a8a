"""`quire import`: imports the conversations that other programs stored."""

import asyncio
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.common import EXIT_FAILED, AsJson, SetOptions, run_async
from quire.cli.output import make_table, make_text, pluralize, print_json, print_note, print_result, show_progress
from quire.cli.platforms import call_on_signals
from quire.errors import DocumentNotFound, InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.engine import Engine
    from quire.engine.import_reader import ImportOptions
    from quire.engine.import_writer import ImportReport
    from quire.importers.base import Source

WATCH_SECONDS = 1.0
"""Time between two looks for changed files."""
MAX_PRINTED_ERRORS = 50
"""Errors that are printed; `--json` lists more."""


def _complete_sources(incomplete: str) -> list[tuple[str, str]]:
    from quire.importers.registry import SOURCES

    return [(name, source.title) for name, source in SOURCES.items() if name.startswith(incomplete)]


SourceName = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="The program, such as `claude-code` or `codex`.", autocompletion=_complete_sources
    ),
]
SourcePath = Annotated[
    Path | None,
    typer.Argument(metavar="[PATH]", help="A file or folder; default: where the program stores its conversations."),
]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Skip what was last changed before, such as 2026-01-31.")
]


def command(
    source: SourceName,
    path: SourcePath = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what is new, and write nothing.")] = False,
    since: SinceOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Import what is added to the files until Ctrl+C.")] = False,
    project: Annotated[
        str | None, typer.Option("--project", help="Project of conversations whose source names none.")
    ] = None,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Import the conversations of another program, with branches, compactions, times and usage.

    A second import adds only what is new, and changes nothing that is stored. An item that cannot be read is listed
    with its reason. The exit code is 1 if nothing could be read.
    """
    from quire.engine.import_reader import ImportOptions

    if watch and dry_run:
        raise InvalidRequest("--watch writes what it finds; use it without --dry-run.")
    chosen = _get_source(source)
    paths = _find_paths(chosen, path)
    options = ImportOptions(_parse_since(since), project, dry_run=dry_run, processes=os.cpu_count() or 1)
    with suppress(KeyboardInterrupt):
        run_async(_run(chosen, paths, options, tuple(overrides or ()), watch=watch, as_json=as_json))


def _get_source(name: str) -> "Source":
    from quire.importers.registry import SOURCES

    if name not in SOURCES:
        raise InvalidRequest(f"{name!r} is no source of conversations; choose one of: {', '.join(SOURCES)}.")
    return SOURCES[name]


def _find_paths(source: "Source", path: Path | None) -> list[Path]:
    if path is not None:
        if not path.exists():
            raise DocumentNotFound(f"There is no file or folder {path}; check the path.")
        return [path]
    paths = source.find_default_paths(os.environ)
    if not paths:
        raise DocumentNotFound(
            f"{source.title} stores no conversations in its usual place; name a file or folder: "
            f"quire import {source.name} PATH"
        )
    return paths


def _parse_since(text: str | None) -> int | None:
    from quire.importers.times import parse_time

    since = parse_time(text) if text is not None else None
    if text is not None and since is None:
        raise InvalidRequest(f"{text!r} is no time; write it like 2026-01-31 or 2026-01-31T18:00.")
    return since


async def _run(
    source: "Source",
    paths: list[Path],
    options: "ImportOptions",
    overrides: tuple[str, ...],
    *,
    watch: bool,
    as_json: bool,
) -> None:
    from quire.cli.engine_setup import open_engine_from_settings, to_overrides
    from quire.importers.watch import FileWatcher

    watcher = FileWatcher(source, paths)
    async with open_engine_from_settings(to_overrides(overrides)) as engine:
        report = await _import_changed(engine, source, watcher, options)
        _print_report(report, options, as_json=as_json)
        if watch:
            await _watch(engine, source, watcher, options, as_json=as_json)
    if report.error_count and not report.messages and not report.known_messages:
        raise typer.Exit(EXIT_FAILED)


async def _import_changed(engine: "Engine", source: "Source", watcher: Any, options: "ImportOptions") -> "ImportReport":
    from quire.engine.import_writer import import_files

    files = await asyncio.to_thread(watcher.find_changed)
    with show_progress(f"Importing {source.title}") as bar:
        report = await import_files(
            engine, source, files, options, on_progress=lambda so_far: bar.update(so_far.files, so_far.total_files)
        )
    with show_progress("Indexing"):
        await engine.runtime.jobs.wait()
    return report


async def _watch(engine: "Engine", source: "Source", watcher: Any, options: "ImportOptions", *, as_json: bool) -> None:
    """Imports changed files until an interrupt; a transaction that has begun is finished first."""
    stopped = asyncio.Event()
    print_note(f"Watching {source.title}; press Ctrl+C to stop.")
    with call_on_signals(stopped.set):
        while not stopped.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), WATCH_SECONDS)
            report = await _import_changed(engine, source, watcher, options)
            if report.messages or report.error_count:
                _print_report(report, options, as_json=as_json)


def _print_report(report: "ImportReport", options: "ImportOptions", *, as_json: bool) -> None:
    document = {
        "files": report.files,
        "conversations": report.conversations,
        "messages": report.messages,
        "known_messages": report.known_messages,
        "live_conversations": report.live_conversations,
        "error_count": report.error_count,
        "errors": [each._asdict() for each in report.errors],
        "dry_run": options.dry_run,
    }
    if as_json:
        print_json(document)
    else:
        print_result(document, lambda _: _draw_report(report, dry_run=options.dry_run), as_json=False)
    # A pipe would get it only when watching ends.
    sys.stdout.flush()


def _draw_report(report: "ImportReport", *, dry_run: bool) -> "Iterable[RenderableType]":
    if report.errors:
        rows = [tuple(each) for each in report.errors[:MAX_PRINTED_ERRORS]]
        yield make_table("not imported", "reason", rows=rows, wrapped=("reason",))
    if report.error_count > MAX_PRINTED_ERRORS:
        yield make_text(f"and {pluralize(report.error_count - MAX_PRINTED_ERRORS, 'more item')}; --json lists them.")
    if report.live_conversations:
        skipped = pluralize(report.live_conversations, "conversation")
        yield make_text(f"Skipped {skipped} that the gateway recorded.")
    verb = "Found" if dry_run else "Imported"
    known = f"; {report.known_messages:,} known already" if report.known_messages else ""
    yield make_text(
        f"{verb} {pluralize(report.messages, 'new message')} in {pluralize(report.conversations, 'conversation')} "
        f"from {pluralize(report.files, 'file')}{known}."
    )
