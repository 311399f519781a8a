"""`quire context export` and `import`: a conversation as JSON Lines, for backups and transfers."""

import json
import sys
from asyncio import CancelledError
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from quire.cli.common import (
    AsJson,
    CommandTarget,
    ConversationId,
    SetOptions,
    command,
    create_group,
    make_target,
    open_store,
    resolve_conversation_id,
    run_async,
)
from quire.cli.output import ProgressBar, make_text, pluralize, print_json, print_result, show_progress
from quire.errors import DocumentNotFound, ImportFailed, InvalidRequest

app = create_group("")


@command(app, "quire context export --output gannet.jsonl")
def export(
    conversation: ConversationId = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file; default: standard output.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Export a conversation as JSON Lines: all branches and entries, the manifests, and the blobs they reference."""
    target = make_target(conversation, overrides=overrides)
    if output is None:
        run_async(_export_to_stdout(target, as_json=as_json))
        return
    if output.exists() and not force:
        raise InvalidRequest(f"{output} already exists; choose another name, or overwrite it with --force.")
    conversation_id, count = run_async(_export_to_file(target, output))
    document = {"conversation": conversation_id, "path": str(output), "lines": count}
    summary = f"Wrote {pluralize(count, 'line')} of {conversation_id} to {output}."
    print_result(document, lambda _: [make_text(summary)], as_json=as_json)


async def _export_to_stdout(target: CommandTarget, *, as_json: bool) -> None:
    async with open_store(target) as store:
        conversation_id = await resolve_conversation_id(store, target.conversation)
        if as_json:
            lines = [json.loads(line) async for line in store.export_conversation(conversation_id)]
            print_json({"conversation": conversation_id, "lines": lines})
            return
        async for line in store.export_conversation(conversation_id):
            sys.stdout.write(f"{line}\n")


async def _export_to_file(target: CommandTarget, path: Path) -> tuple[str, int]:
    """Writes to a temporary `.part` file and renames it at the end, so that no partial export has the final name."""
    async with open_store(target) as store:
        conversation_id = await resolve_conversation_id(store, target.conversation)
        part = path.with_name(f"{path.name}.part")
        total = sum(branch.head_seq - branch.fork_seq for branch in await store.list_branches(conversation_id))
        count = 0
        try:
            with part.open("w", encoding="utf-8") as file, show_progress("Exporting") as progress:
                async for line in store.export_conversation(conversation_id):
                    file.write(f"{line}\n")
                    count += 1
                    progress.update(min(count, total), total)
            part.replace(path)
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be written: {error.strerror}.") from error
        finally:
            part.unlink(missing_ok=True)
        return conversation_id, count


@command(app, "quire context import tides.jsonl --as tides-again", name="import")
def import_(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A file written by `export`; - reads standard input.", show_default=False),
    ] = None,
    *,
    file_option: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="The same file, given as an option.")
    ] = None,
    rename: Annotated[str | None, typer.Option("--as", metavar="ID", help="Import it under another id.")] = None,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Import an exported conversation: all of it or nothing, with every digest verified."""
    if (file is None) == (file_option is None):
        raise typer.BadParameter("pass one file: FILE or --file FILE.")
    file = file or file_option or Path("-")
    # Read standard input before the event loop starts, so that Ctrl-C ends the wait for it.
    piped = sys.stdin.readlines() if str(file) == "-" else None
    conversation_id, title = run_async(_import_conversation(make_target(overrides=overrides), file, piped, rename))
    document = {"conversation": conversation_id, "title": title}
    print_result(document, lambda _: [make_text(f"Imported {conversation_id}.")], as_json=as_json)


async def _import_conversation(
    target: CommandTarget, path: Path, piped: list[str] | None, rename: str | None
) -> tuple[str, str]:
    stopped = Event()
    async with open_store(target) as store:
        with show_progress("Importing") as progress, _open_lines(path, piped) as (lines, size):
            try:
                imported = await store.import_conversation(
                    _track_progress(lines, size, progress, stopped), as_id=rename
                )
            except CancelledError:
                # The database runs in its own thread, which would otherwise finish the import and commit it.
                stopped.set()
                raise
        return imported.id, imported.title


@contextmanager
def _open_lines(path: Path, piped: list[str] | None) -> Generator[tuple[Iterable[str], int]]:
    """Yields the lines and their total size: characters of piped text, bytes of a file."""
    if piped is not None:
        yield piped, sum(map(len, piped))
        return
    try:
        file = path.open(encoding="utf-8")
    except FileNotFoundError as error:
        raise DocumentNotFound(f"There is no file {path}.") from error
    except OSError as error:
        raise ImportFailed(f"{path} cannot be read: {error.strerror}.") from error
    with file:
        yield file, path.stat().st_size


def _track_progress(lines: Iterable[str], size: int, progress_bar: ProgressBar, stopped: Event) -> Generator[str]:
    read = 0
    try:
        for line in lines:
            if stopped.is_set():
                raise ImportFailed("The import was stopped. Nothing was imported.")
            yield line
            read += len(line)
            progress_bar.update(min(read, size), size)
    except UnicodeDecodeError as error:
        raise ImportFailed(f"The file is not UTF-8 text: {error}. Nothing was imported.") from error
