"""`quire conversation show`: the transcript, including archived messages, with a marker at each compaction."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, assert_never

import typer

from quire.cli.common import (
    AsJson,
    CommandTarget,
    branch_command,
    create_group,
    open_store,
    resolve_conversation_id,
    run_async,
)
from quire.cli.output import (
    format_compaction,
    format_local_time,
    make_text,
    pluralize,
    print_result,
    to_one_line,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.log import Branch
    from quire.model import BranchState, Entry, Message, Part

app = create_group("")

DEFAULT_ENTRY_LIMIT = 20
"""Entries that are printed without `--limit`."""


@branch_command(app, "quire conversation show --first 1")
def show(
    target: CommandTarget,
    *,
    first: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=1, help="Start at this entry; default: the newest entries.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries.")] = DEFAULT_ENTRY_LIMIT,
    as_json: AsJson = False,
) -> None:
    """Print the messages; archived messages and compactions are marked."""
    from quire.schemas.entries import entry_to_schema

    branch, entries, title = run_async(_load_entries(target, first, limit))

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield make_text(
            f"{branch.conversation}{f' ({to_one_line(title)})' if title else ''}, branch {branch.number}", style="bold"
        )
        for entry in entries:
            yield from _render_entry(entry, branch.state)
        if entries and entries[-1].seq < branch.head_seq:
            next_seq = entries[-1].seq + 1
            yield make_text(f"\n… up to #{branch.head_seq:,}; continue with --first {next_seq}", style="dim")

    document = {
        "conversation": branch.conversation,
        "title": title,
        "branch": branch.number,
        "head": branch.head_seq,
        "state": branch.state.model_dump(mode="json"),
        "entries": [entry_to_schema(entry).model_dump(mode="json") for entry in entries],
    }
    print_result(document, draw, as_json=as_json)


async def _load_entries(target: CommandTarget, first: int | None, limit: int) -> "tuple[Branch, list[Entry], str]":
    async with open_store(target) as store:
        conversation_id = await resolve_conversation_id(store, target.conversation)
        branch = await store.get_branch(conversation_id, target.branch)
        if first is None:
            entries = await store.read_tail(conversation_id, limit, branch=branch.number)
        else:
            entries = await store.read_range(conversation_id, branch=branch.number, first=first, limit=limit)
        [record] = await store.fill_titles(await store.get_conversation(conversation_id))
        return branch, entries, record.title


def _render_entry(entry: "Entry", state: "BranchState") -> "Iterable[RenderableType]":
    if entry.kind != "message":
        yield make_text(f"\n── #{entry.seq} {_format_event(entry)} ──", style="yellow")
        return
    message, metadata, active = entry.message, entry.metadata, state.active_compaction
    archived = active is not None and active.covers is not None and entry.seq in active.covers
    marks = {
        "archived": archived,
        "pinned": entry.seq in state.pins,
        "purged": entry.purged_at is not None,
        "incomplete": bool(metadata.incomplete),
    }
    names = ", ".join(name for name, is_set in marks.items() if is_set)
    speaker = f"{message.role} {message.name}" if message.name else message.role
    suffix = f"  ({names})" if names else ""
    yield make_text(
        f"\n#{entry.seq} {speaker}  {format_local_time(entry.created_at)}{suffix}",
        style="dim" if archived else "bold",
    )
    yield make_text(format_message(message), style="dim" if archived else "")
    if metadata.references:
        links = ", ".join(each.link for each in metadata.references)
        yield make_text(f"refers to {links}{_format_written_tokens(entry)}", style="cyan")


def _format_written_tokens(entry: "Entry") -> str:
    written_tokens = entry.metadata.written_tokens
    if written_tokens is None or entry.tokens is None:
        return ""
    return f": {pluralize(written_tokens, 'token')} as written, {entry.tokens:,} with the documents"


def format_message(message: "Message") -> str:
    return "\n".join(_format_part(part) for part in message.parts)


def _format_part(part: "Part") -> str:
    from quire.model import FilePart, ImagePart, TextPart, ThinkingPart, ToolCallPart, ToolResultPart

    match part:
        case TextPart(text=text):
            return text
        case ThinkingPart(text=text):
            return f"(thinking) {to_one_line(text)}"
        case ToolCallPart(name=name, arguments=arguments):
            return f"→ {name}({to_one_line(arguments)})"
        case ToolResultPart(is_error=is_error):
            return f"{'✗' if is_error else '←'} {to_one_line(part.text)}"
        case ImagePart() | FilePart():
            return f"[{part.type} {part.media_type or part.url or ''}]"
    assert_never(part)


def _format_event(entry: "Entry") -> str:
    """Describes an entry that is not a message."""
    from quire.model import Compaction, ContextChange, Message, Pin, Priority, Restore, Unpin

    body = entry.body
    match body:
        case Compaction():
            return format_compaction(body)
        case Restore(compaction=number):
            return f"Undid the compaction in #{number}"
        case Pin(message=number):
            return f"Pinned #{number}"
        case Unpin(message=number):
            return f"Unpinned #{number}"
        case Priority(message=number, priority=priority):
            return f"Reset the priority of #{number}" if priority is None else f"Set priority {priority} on #{number}"
        case ContextChange(action=action, item=item):
            return f"{'Added' if action == 'add' else 'Removed'} {item.type} {item.name}"
        case Message():
            return ""
    assert_never(body)
