"""`quire conversation secrets`, `share` and `purge-value`: find keys and passwords, mask them, erase one everywhere."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from quire.cli.common import (
    AsJson,
    CommandTarget,
    SetOptions,
    branch_command,
    command,
    complete_conversation_ids,
    create_group,
    list_conversation_ids,
    make_target,
    open_store,
    resolve_conversation_id,
    run_async,
)
from quire.cli.output import make_table, make_text, pluralize, print_note, print_result, show_progress, show_spinner
from quire.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.engine.secret_scan import SecretLocation
    from quire.log.types import ValuePurge

app = create_group("")


@command(app, "quire conversation secrets --all")
def secrets(
    conversations: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONVERSATION]...",
            help="Ids of the conversations; default: the most recently used.",
            autocompletion=complete_conversation_ids,
        ),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Search every conversation.")] = False,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """List where keys, tokens and passwords of known formats are, without printing them."""
    searched, found = run_async(
        _find_secrets(make_target(overrides=overrides), conversations or [], everything=everything)
    )

    def draw(_: Any) -> "Iterable[RenderableType]":
        scope = pluralize(searched, "conversation")
        if not found:
            yield make_text(f"No secret of a known format in {scope}.")
            return
        yield make_table(
            "conversation", "branch", "entry", "kind", "secret",
            rows=[(each.conversation, each.branch, f"#{each.seq}", each.kind, each.mask) for each in found],
            right_aligned=("branch",), wrapped=("kind", "secret"),
        )  # fmt: skip
        yield make_text(
            f"{pluralize(len(found), 'secret')} in {scope}. Revoke each where it was issued; "
            "`quire conversation purge-value` erases one everywhere."
        )

    document = {"conversations": searched, "secrets": [each._asdict() for each in found]}
    print_result(document, draw, as_json=as_json)


async def _find_secrets(
    target: CommandTarget, ids: list[str], *, everything: bool
) -> "tuple[int, list[SecretLocation]]":
    from quire.engine.secret_scan import find_conversation_secrets

    async with open_store(target) as store:
        if everything:
            ids = await list_conversation_ids(store)
        else:
            ids = [await resolve_conversation_id(store, each) for each in ids or [None]]
        found: list[SecretLocation] = []
        with show_progress("Searching") as progress:
            for done, each in enumerate(ids):
                progress.update(done, len(ids))
                found += [location async for location in find_conversation_secrets(store, each)]
        return len(ids), found


@branch_command(app, "quire conversation share --output storms.md")
def share(
    target: CommandTarget,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file; default: standard output.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a readable transcript with secrets masked: Markdown, or JSON for a name that ends in .json.

    It cannot be imported. For a backup with every byte use `quire context export`, which masks nothing.
    """
    if output is not None and output.exists() and not force:
        raise InvalidRequest(f"{output} already exists; choose another name, or overwrite it with --force.")
    is_json = as_json if output is None else output.suffix == ".json"
    conversation_id, count = run_async(_share_conversation(target, output, "json" if is_json else "markdown"))
    if output is None:
        print_note(f"Masked {pluralize(count, 'secret')}.")
        return
    document = {"conversation": conversation_id, "path": str(output), "masked_secrets": count}
    summary = f"Wrote {conversation_id} to {output}; masked {pluralize(count, 'secret')}."
    print_result(document, lambda _: [make_text(summary)], as_json=as_json)


async def _share_conversation(
    target: CommandTarget, output: Path | None, format: Literal["markdown", "json"]
) -> tuple[str, int]:
    from quire.engine.shared_transcript import SharedTranscript

    async with open_store(target) as store:
        conversation_id = await resolve_conversation_id(store, target.conversation)
        [record] = await store.fill_titles(await store.get_conversation(conversation_id))
        branch = await store.get_branch(conversation_id, target.branch)
        transcript = SharedTranscript(store, record, branch, format=format)
        if output is None:
            async for piece in transcript.write():
                sys.stdout.write(piece)
            return conversation_id, transcript.masked_count
        part = output.with_name(f"{output.name}.part")
        try:
            with part.open("w", encoding="utf-8") as file:
                async for piece in transcript.write():
                    file.write(piece)
            part.replace(output)
        except OSError as error:
            raise InvalidRequest(f"{output} cannot be written: {error.strerror}.") from error
        finally:
            part.unlink(missing_ok=True)
        return conversation_id, transcript.masked_count


@command(app, "quire conversation purge-value --file leaked-key.txt --yes", name="purge-value")
def purge_value(
    *,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Read the value from this file.", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """Erase one text, such as a leaked key, permanently: every message, summary, memory and file that contains it.

    The value is read from a prompt without echo, from standard input or from a file; it is never an argument, which
    other users of the machine could see and a shell would remember. This cannot be undone.
    """
    value = _read_value(file)
    target = make_target(overrides=overrides)
    if not yes:
        _confirm_purge(run_async(_count_rows(target, value)))
    purged = run_async(_purge_value(target, value))
    document = {
        "purged": [dict(zip(("conversation", "branch", "seq"), entry, strict=True)) for entry in purged.entries],
        "rows": purged.rows,
        "remaining": list(purged.remaining),
    }
    print_result(document, lambda _: [make_text(line) for line in _describe_purge(purged)], as_json=as_json)


def _read_value(file: Path | None) -> str:
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{file} cannot be read: {error}.") from error
    if sys.stdin.isatty():
        return typer.prompt("Value to erase", hide_input=True, err=True)
    return sys.stdin.read().strip("\r\n")


def _confirm_purge(counts: dict[str, int]) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("cannot ask for confirmation without a terminal; pass --yes.")
    places = ", ".join(f"{count} in {table}" for table, count in sorted(counts.items())) or "none"
    typer.confirm(f"Permanently erase every row that contains this value ({places})?", abort=True, err=True)


def _describe_purge(purged: "ValuePurge") -> list[str]:
    entries = {entry[0] for entry in purged.entries}
    lines = [f"Erased {pluralize(len(purged.entries), 'entry')} of {pluralize(len(entries), 'conversation')}."]
    if purged.rows:
        lines.append(f"Other rows: {', '.join(f'{count} of {table}' for table, count in sorted(purged.rows.items()))}.")
    if purged.remaining:
        lines.append(f"The value is still part of ids in: {', '.join(purged.remaining)}. Ids cannot be changed.")
    return lines


async def _count_rows(target: CommandTarget, value: str) -> dict[str, int]:
    async with open_store(target) as store:
        with show_spinner("Searching"):
            return await store.find_value(value)


async def _purge_value(target: CommandTarget, value: str) -> "ValuePurge":
    async with open_store(target) as store:
        with show_spinner("Purging"):
            return await store.purge_value(value)
