"""`quire context export` and `import`: a conversation as JSON Lines, to keep or to take elsewhere."""

import json
import sys
from asyncio import CancelledError
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from quire.cli.output import counted, give, print_json, text
from quire.cli.progress import Progress, progress
from quire.cli.running import (
    About,
    AsJson,
    ConversationId,
    Given,
    about,
    command,
    conversation_named,
    group,
    opened_store,
    run,
)
from quire.errors import DocumentNotFound, ImportFailed, InvalidRequest

app = group("")


@command(app, "quire context export --output gannet.jsonl")
def export(
    conversation: ConversationId = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file, not to standard output.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite the file if it is there.")] = False,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Write a conversation out as JSON Lines: all branches, every entry, the ledger, and what it quotes."""
    target = about(conversation, given=given)
    if output is None:
        run(_to_stdout(target, as_json=as_json))
        return
    if output.exists() and not force:
        raise InvalidRequest(f"{output} is there already; choose another name, or overwrite it with --force.")
    named, lines = run(_to_file(target, output))
    document = {"conversation": named, "path": str(output), "lines": lines}
    give(document, lambda _: [text(f"Wrote {counted(lines, 'line')} of {named} to {output}.")], as_json=as_json)


async def _to_stdout(target: About, *, as_json: bool) -> None:
    async with opened_store(target) as store:
        named = await conversation_named(store, target.conversation)
        if as_json:
            print_json({"conversation": named, "lines": [json.loads(line) async for line in store.export(named)]})
            return
        async for line in store.export(named):
            sys.stdout.write(f"{line}\n")


async def _to_file(target: About, path: Path) -> tuple[str, int]:
    """Under another name until it is whole, so that no half of an export is taken for one."""
    async with opened_store(target) as store:
        named = await conversation_named(store, target.conversation)
        part = path.with_name(f"{path.name}.part")
        total = sum(branch.head_seq - branch.fork_seq for branch in await store.branches(named))
        lines = 0
        try:
            with part.open("w", encoding="utf-8") as file, progress("Exporting") as so_far:
                async for line in store.export(named):
                    file.write(f"{line}\n")
                    lines += 1
                    so_far.at(min(lines, total), total)
            part.replace(path)
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be written: {error.strerror}.") from error
        finally:
            part.unlink(missing_ok=True)
        return named, lines


@command(app, "quire context import tides.jsonl --as tides-again", name="import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `export` wrote; - reads standard input.")],
    *,
    rename: Annotated[str | None, typer.Option("--as", metavar="ID", help="Keep it under another id.")] = None,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """Take an exported conversation in: all of it or nothing, every digest checked."""
    # Standard input is read before anything else: Ctrl-C must end the waiting for it.
    piped = sys.stdin.readlines() if str(file) == "-" else None
    named, title = run(_imported(about(given=given), file, piped, rename))
    give({"conversation": named, "title": title}, lambda _: [text(f"Imported {named}.")], as_json=as_json)


async def _imported(target: About, path: Path, piped: list[str] | None, rename: str | None) -> tuple[str, str]:
    stopped = Event()
    async with opened_store(target) as store:
        with progress("Importing") as so_far, _lines(path, piped) as (lines, size):
            try:
                made = await store.import_(_told(lines, size, so_far, stopped), rename=rename)
            except CancelledError:
                # The database works in a thread of its own, which would otherwise go on to the end, and keep it.
                stopped.set()
                raise
        return made.id, made.title


@contextmanager
def _lines(path: Path, piped: list[str] | None) -> Generator[tuple[Iterable[str], int]]:
    """The lines, and how many characters they have together, or about so many."""
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


def _told(lines: Iterable[str], size: int, so_far: Progress, stopped: Event) -> Generator[str]:
    read = 0
    try:
        for line in lines:
            if stopped.is_set():
                raise ImportFailed("The import was stopped. Nothing was imported.")
            yield line
            read += len(line)
            so_far.at(min(read, size), size)
    except UnicodeDecodeError as error:
        raise ImportFailed(f"The file is no text in UTF-8: {error}. Nothing was imported.") from error
