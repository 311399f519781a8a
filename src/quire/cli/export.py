"""`quire export`: a conversation as JSON Lines for backups and transfers, or as a transcript for readers."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from quire.cli.common import (
    AsJson,
    BranchNumber,
    ConversationName,
    SetOptions,
    find_branch,
    open_store,
    resolve_conversation_id,
)
from quire.cli.output import Result, pluralize, print_document, print_note, print_result, show_progress
from quire.errors import InvalidRequest
from quire.rows.control_characters import escape_control_characters

if TYPE_CHECKING:
    from quire.engine.shared_transcript import SharedTranscript
    from quire.schemas.records import ExportedFileSchema
    from quire.store import SqlStore

ExportFormat = Literal["jsonl", "markdown", "json"]
_FORMATS_BY_SUFFIX: dict[str, ExportFormat] = {".md": "markdown", ".markdown": "markdown", ".json": "json"}


async def command(
    conversation: ConversationName = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file. Default: standard output.")
    ] = None,
    format: Annotated[
        ExportFormat | None,
        typer.Option(help="Default: from the file name (.md, .json), otherwise jsonl.", show_default=False),
    ] = None,
    branch: BranchNumber = None,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Export a conversation: all of it as JSON Lines, which `quire import` reads, or a readable transcript.

    JSON Lines (`jsonl`) contain all branches and entries, the manifests and the blobs, with every byte. Transcripts
    (`markdown`, `json`) contain the messages of one branch with secrets masked. They cannot be imported.
    """
    if output is not None and output.exists():
        raise InvalidRequest(f"{output} already exists; choose another name, or delete it.")
    async with open_store(overrides) as store:
        conversation_id = await resolve_conversation_id(store, conversation)
        if output is not None:
            document = await export_to_file(store, conversation_id, output, branch=branch, format=format)
            print_result(Result(document, format_export(document)), as_json=as_json)
        elif format is None or format == "jsonl":
            lines = store.export_conversation(conversation_id)
            if as_json:
                parsed = [json.loads(line) async for line in lines]
                print_document({"conversation": conversation_id, "lines": parsed})
                return
            async for line in lines:
                # A file or a pipe gets every byte; what a terminal gets is the same JSON.
                sys.stdout.write(f"{escape_control_characters(line) if sys.stdout.isatty() else line}\n")
        else:
            transcript = await _open_transcript(store, conversation_id, branch, "json" if as_json else format)
            async for piece in transcript.write():
                sys.stdout.write(piece)
            print_note(f"Masked {pluralize(transcript.masked_count, 'secret')}.")


async def export_to_file(
    store: "SqlStore", conversation_id: str, path: Path, *, branch: int | None, format: ExportFormat | None = None
) -> "ExportedFileSchema":
    """Exports in the format of the file's name. No partial export has that name: a `.part` file is renamed to it."""
    from quire.schemas.records import ExportedFileSchema

    chosen = format or _FORMATS_BY_SUFFIX.get(path.suffix.lower(), "jsonl")
    transcript = await _open_transcript(store, conversation_id, branch, chosen) if chosen != "jsonl" else None
    pieces: AsyncIterator[str] = (
        (f"{line}\n" async for line in store.export_conversation(conversation_id))
        if transcript is None
        else transcript.write()
    )
    total = sum(each.head_seq - each.fork_seq for each in await store.list_branches(conversation_id))
    part, count = path.with_name(f"{path.name}.part"), 0
    try:
        with part.open("w", encoding="utf-8") as file, show_progress("Exporting") as progress:
            async for piece in pieces:
                file.write(piece)
                count += 1
                progress.update(min(count, total), total)
        part.replace(path)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        part.unlink(missing_ok=True)
    return ExportedFileSchema(
        conversation=conversation_id,
        path=str(path),
        lines=count if transcript is None else None,
        masked_secrets=transcript.masked_count if transcript is not None else 0,
    )


async def _open_transcript(
    store: "SqlStore", conversation_id: str, branch: int | None, format: Literal["markdown", "json"]
) -> "SharedTranscript":
    from quire.engine.shared_transcript import SharedTranscript

    [record] = await store.fill_titles(await store.get_conversation(conversation_id))
    return SharedTranscript(store, record, await find_branch(store, conversation_id, branch), format=format)


def format_export(document: "ExportedFileSchema") -> str:
    if document.lines is not None:
        return f"Wrote {pluralize(document.lines, 'line')} of {document.conversation} to {document.path}."
    masked = pluralize(document.masked_secrets, "secret")
    return f"Wrote {document.conversation} to {document.path}; masked {masked}."
