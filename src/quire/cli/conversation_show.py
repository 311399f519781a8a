"""`quire conversation show`: the whole story, archived messages too, with a marker where something was compacted."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, assert_never

import typer

from quire.cli.compactions import compaction_document, compaction_said
from quire.cli.output import give, moment, one_line, text, timestamp
from quire.cli.running import About, AsJson, branch_command, conversation_named, group, opened_store, run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.log import Branch
    from quire.model import Entry, Message, Part

app = group("")

NEWEST = 20


@branch_command(app, "quire conversation show --first 1")
def show(
    target: About,
    *,
    first: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=1, help="Begin with this entry; else with the newest few.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most entries that are shown.")] = NEWEST,
    as_json: AsJson = False,
) -> None:
    """Print what was said: archived messages are marked, and so is where something was compacted."""
    line, entries, title = run(_read(target, first, limit))
    active = line.state.active
    covers = active.covers if active is not None else None
    shown = [_document(entry, archived=covers is not None and entry.seq in covers, line=line) for entry in entries]

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield text(f"{line.conversation}{f' ({one_line(title)})' if title else ''}, branch {line.number}", style="bold")
        for entry, row in zip(entries, shown, strict=True):
            yield from _drawn(entry, row)
        if entries and entries[-1].seq < line.head_seq:
            yield text(f"\n… up to #{line.head_seq:,}; go on with --first {entries[-1].seq + 1}", style="dim")

    document = {"conversation": line.conversation, "title": title, "branch": line.number, "head": line.head_seq}
    give(document | {"entries": shown}, draw, as_json=as_json)


async def _read(target: About, first: int | None, limit: int) -> "tuple[Branch, list[Entry], str]":
    async with opened_store(target) as store:
        named = await conversation_named(store, target.conversation)
        branch = await store.branch(named, target.branch)
        if first is None:
            entries = await store.tail(named, limit, branch=branch.number)
        else:
            entries = await store.range(named, branch=branch.number, first=first, limit=limit)
        [whole] = await store.titled(await store.conversation(named))
        return branch, entries, whole.title


def _document(entry: "Entry", *, archived: bool, line: "Branch") -> dict[str, Any]:
    from quire.model import Message

    body = entry.body
    notes = entry.notes
    return {
        "number": entry.seq,
        "kind": entry.kind,
        "role": entry.role,
        "name": body.name if isinstance(body, Message) else None,
        "at": timestamp(entry.at),
        "tokens": entry.tokens,
        "archived": archived,
        "pinned": entry.seq in line.state.pins,
        "purged": entry.purged_at is not None,
        "unfinished": bool(notes.unfinished),
        "references": [each.link for each in notes.references or ()],
        "body": body.model_dump(mode="json", exclude_none=True),
    }


def _drawn(entry: "Entry", row: dict[str, Any]) -> "Iterable[RenderableType]":
    if entry.kind != "message":
        yield text(f"\n── #{entry.seq} {_event(entry)} ──", style="yellow")
        return
    marks = [mark for mark in ("archived", "pinned", "purged", "unfinished") if row[mark]]
    speaker = f"{row['role']} {row['name']}" if row["name"] else row["role"]
    marked = f"  ({', '.join(marks)})" if marks else ""
    yield text(f"\n#{entry.seq} {speaker}  {moment(entry.at)}{marked}", style="dim" if row["archived"] else "bold")
    yield text(said(entry.message), style="dim" if row["archived"] else "")
    if row["references"]:
        yield text(f"refers to {', '.join(row['references'])}", style="cyan")


def said(message: "Message") -> str:
    return "\n".join(_part(part) for part in message.parts)


def _part(part: "Part") -> str:
    from quire.model import FilePart, ImagePart, TextPart, ThinkingPart, ToolCallPart, ToolResultPart

    match part:
        case TextPart(text=words):
            return words
        case ThinkingPart(text=words):
            return f"(thinking) {one_line(words)}"
        case ToolCallPart(name=name, arguments=arguments):
            return f"→ {name}({one_line(arguments)})"
        case ToolResultPart(is_error=is_error):
            return f"{'✗' if is_error else '←'} {one_line(part.text)}"
        case ImagePart() | FilePart():
            return f"[{part.type} {part.media_type or part.url or ''}]"
    assert_never(part)


def _event(entry: "Entry") -> str:
    """What an entry changed that is no message."""
    from quire.model import Compaction, ContextChange, Message, Pin, Restore, Unpin

    body = entry.body
    match body:
        case Compaction():
            return compaction_said(compaction_document(entry) or {})
        case Restore(compaction=number):
            return f"Took the compaction in #{number} back"
        case Pin(message=number):
            return f"Pinned #{number}"
        case Unpin(message=number):
            return f"Unpinned #{number}"
        case ContextChange(action=action, item=item):
            return f"{'Added' if action == 'add' else 'Removed'} {item.type} {item.name}"
        case Message():
            return ""
    assert_never(body)
