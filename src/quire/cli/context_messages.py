"""`quire context show --messages`: the transcript, including archived messages, with a marker at each compaction."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from quire.cli.common import CommandTarget, find_branch, open_store, resolve_conversation_id
from quire.cli.output import Result, format_compaction, format_local_time, make_text, pluralize, to_one_line
from quire.cli.tool_calls import MAX_CALL_LINES, CompletedCall, format_folded_calls, pair_calls, render_tool_result

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from quire.log import Branch
    from quire.model import BranchState, Entry, Part
    from quire.store import SqlStore

DEFAULT_ENTRY_LIMIT = 20
"""Entries that are printed without `--limit`, or more if the newest turn has more."""
MAX_TURN_ENTRIES = 2_000
"""Entries of the newest turn that are read without `--limit`, from its end."""


async def show_messages(target: CommandTarget, *, first: int | None, limit: int | None, full: bool) -> Result:
    """The messages. Archived ones and compactions are marked, and long runs of tool calls are folded."""
    from quire.schemas.entries import entry_to_schema

    async with open_store(target.overrides) as store:
        conversation_id = await resolve_conversation_id(store, target.conversation)
        branch = await find_branch(store, conversation_id, target.branch)
        if first is not None:
            entries = await store.read_range(
                conversation_id, branch=branch.number, first=first, limit=limit or DEFAULT_ENTRY_LIMIT
            )
        elif limit is not None:
            entries = await store.read_tail(conversation_id, limit, branch=branch.number)
        else:
            entries = await _read_newest_turn(store, branch)
        [record] = await store.fill_titles(await store.get_conversation(conversation_id))
    title = record.title
    document = {
        "conversation": conversation_id,
        "title": title,
        "branch": branch.number,
        "head": branch.head_seq,
        "state": branch.state,
        "entries": [entry_to_schema(entry) for entry in entries],
    }

    def draw(console: "Console") -> "Iterable[RenderableType]":
        yield make_text(
            f"{conversation_id}{f' ({to_one_line(title)})' if title else ''}, branch {branch.number}", style="bold"
        )
        if full:
            for entry in entries:
                yield from _render_entry(entry, branch.state, full=True)
        else:
            yield from _render_folded(entries, branch.state, width=console.width)
        if entries and entries[-1].seq < branch.head_seq:
            next_seq = entries[-1].seq + 1
            yield make_text(f"\n… up to #{branch.head_seq:,}; continue with --first {next_seq}", style="dim")

    return Result(document, draw)


async def _read_newest_turn(store: "SqlStore", branch: "Branch") -> "list[Entry]":
    """The newest entries; with those, the newest question and all that follows it."""
    target, number = branch.conversation, branch.number
    question = await store.read_tail(target, 1, branch=number, kinds=["message"], roles=["user"])
    length = branch.head_seq - question[0].seq + 1 if question else 0
    entries = await store.read_tail(target, min(MAX_TURN_ENTRIES, max(DEFAULT_ENTRY_LIMIT, length)), branch=number)
    return [*question, *entries] if question and question[0].seq < entries[0].seq else entries


def _render_folded(entries: "Sequence[Entry]", state: "BranchState", *, width: int) -> "Iterable[RenderableType]":
    """Prints a line for the first calls of each turn and for those that failed, and one line for each run of others.

    The words between calls count as a line, and are folded like them.
    """
    completed = {each.call.id: each for each in pair_calls(each for each in entries if each.kind == "message")}
    fold = _CallFold(width)
    previous = 0
    for entry in entries:
        message = entry.message if entry.kind == "message" else None
        calls = [] if message is None else [each for call in message.tool_calls if (each := completed.get(call.id))]
        is_step = message is not None and (
            len(calls) == len(message.tool_calls) > 0
            or (message.role == "tool" and all(result.call_id in completed for result in message.tool_results))
        )
        text = "" if message is None else message.text.strip()
        if is_step and calls and text and fold.lines >= MAX_CALL_LINES:
            fold.message_count += 1
        elif not is_step or text:
            yield from fold.flush()
            if previous and entry.seq > previous + 1:
                yield make_text(f"\n… #{previous + 1} to #{entry.seq - 1}; print them with --first", style="dim")
            fold.lines = 0 if message is not None and message.role == "user" else fold.lines + is_step
            yield from _render_entry(entry, state, with_calls=not is_step)
        for each in calls if is_step else ():
            if fold.lines < MAX_CALL_LINES or each.result.is_error:
                yield from fold.flush()
                fold.lines += 1
                yield fold.render_call(each)
            else:
                fold.calls.append(each)
        previous = entry.seq
    yield from fold.flush()
    if fold.is_used:
        yield make_text("\nPrint the folded calls with --full.", style="dim")


@dataclass
class _CallFold:
    """Calls that are folded into the next line, and the number of calls and words of this turn that are printed."""

    width: int
    lines: int = 0
    calls: list[CompletedCall] = field(default_factory=list[CompletedCall])
    message_count: int = 0
    """Messages with words that are folded with their calls."""
    is_used: bool = False

    def render_call(self, each: CompletedCall) -> "RenderableType":
        return render_tool_result(each.call, each.result, width=self.width, prefix=f"#{each.seq} ")

    def flush(self) -> "Iterable[RenderableType]":
        if len(self.calls) == 1 and not self.message_count:
            yield self.render_call(self.calls[0])
        elif self.calls:
            self.is_used = True
            counts = Counter(each.call.name for each in self.calls)
            messages = f" and {pluralize(self.message_count, 'message')}" if self.message_count else ""
            first, last = self.calls[0].seq, self.calls[-1].seq
            detail = f"{messages}, #{first}" if first == last else f"{messages}, #{first} to #{last}"
            yield make_text(to_one_line(f"… {format_folded_calls(counts, detail=detail)}", self.width), style="dim")
        self.calls.clear()
        self.message_count = 0


def _render_entry(
    entry: "Entry", state: "BranchState", *, with_calls: bool = True, full: bool = False
) -> "Iterable[RenderableType]":
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
    parts = [part for part in message.parts if with_calls or part.type != "tool_call"]
    yield make_text("\n".join(_format_part(part, full=full) for part in parts), style="dim" if archived else "")
    if metadata.references:
        links, written = ", ".join(each.link for each in metadata.references), metadata.written_tokens
        tokens = (
            f": {pluralize(written, 'token')} as written, {entry.tokens:,} with the documents"
            if written is not None and entry.tokens is not None
            else ""
        )
        yield make_text(f"refers to {links}{tokens}", style="cyan")


def _format_part(part: "Part", *, full: bool) -> str:
    from quire.model import FilePart, ImagePart, TextPart, ThinkingPart, ToolCallPart, ToolResultPart

    match part:
        case TextPart(text=text):
            return text
        case ThinkingPart(text=text):
            return f"(thinking) {text if full else to_one_line(text)}"
        case ToolCallPart(name=name, arguments=arguments):
            return f"→ {name}({arguments if full else to_one_line(arguments)})"
        case ToolResultPart(is_error=is_error):
            return f"{'✗' if is_error else '←'} {part.text if full else to_one_line(part.text)}"
        case ImagePart() | FilePart():
            return f"[{part.type} {part.media_type or part.url or ''}]"
    assert_never(part)


def _format_event(entry: "Entry") -> str:
    """Describes an entry that is not a message."""
    from quire.model import (
        Compaction,
        ContextChange,
        ContextEpoch,
        Drop,
        Message,
        Pin,
        Priority,
        Restore,
        TopicIndex,
        Undrop,
        Unpin,
    )

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
        case Drop(message=number, reason=reason):
            return f"Dropped #{number}" + (f": {reason}" if reason else "")
        case Undrop(message=number):
            return f"Restored #{number}"
        case ContextEpoch():
            return "Edits of the agent's context took effect"
        case TopicIndex(covers=covers, topics=topics):
            return f"Indexed {pluralize(len(topics), 'topic')} of #{covers.first}-#{covers.last}"
        case Message():
            return ""
    assert_never(body)
