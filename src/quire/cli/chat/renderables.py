"""Renderables of the chat: compaction markers, the usage meter, approval requests and document references."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from quire.cli.output import pluralize, sanitize, to_one_line
from quire.cli.tool_calls import parse_arguments
from quire.errors import format_usd
from quire.model import Compaction, ToolCallPart, Usage
from quire.model.entry_metadata import DocumentReference
from quire.model.events import RequestPrepared
from quire.rows.manifests import UNKNOWN_WINDOW
from quire.view.budget import UsageReport, UsageStatus

if TYPE_CHECKING:
    from quire.model import Entry
    from quire.store import SqlStore

METER_COLUMNS = 20
"""Width of the meter's bar."""
MAX_REFERENCE_TEXT_CHARS = 200
MAX_LISTED_REFERENCES = 5
"""Documents that are listed below a reply; the rest is counted, so that the answer of a long turn stays visible."""

_STATUS_COLORS: dict[UsageStatus, str] = {"ok": "green", "near": "yellow", "over": "red"}
_MAX_ARGUMENT_LINES = 20
"""Lines of an approval request that are printed; the rest is counted."""


class CompactionStats(NamedTuple):
    number: int
    archived_messages: int
    """Messages archived by this compaction and not by the one that it supersedes."""
    freed_tokens: int
    cleared_results: int = 0
    """Tool results that are stubs from now on."""
    shortened_messages: int = 0
    """Messages of which the model sees only a part from now on."""
    failures: tuple[str, ...] = ()


async def load_compaction_stats(store: "SqlStore", entry: "Entry") -> CompactionStats:
    body = entry.body
    assert isinstance(body, Compaction)
    previous = None
    if body.supersedes is not None:
        superseded = (await store.get_entry(entry.conversation, body.supersedes, branch=entry.branch)).body
        previous = superseded if isinstance(superseded, Compaction) else None
    first = previous.covers.last + 1 if previous is not None and previous.covers is not None else 1
    last = body.covers.last if body.covers is not None else 0
    messages = (
        await store.read_range(entry.conversation, branch=entry.branch, first=first, last=last, kinds=["message"])
        if last >= first
        else []
    )
    already = {each.message for each in (previous.truncations or ())} if previous is not None else set[int]()
    return CompactionStats(
        number=body.number,
        archived_messages=len(messages),
        freed_tokens=body.freed_tokens,
        cleared_results=body.cleared_results or 0,
        shortened_messages=sum(each.message not in already for each in body.truncations or ()),
        failures=body.failures or (),
    )


def format_compaction_stats(stats: CompactionStats) -> str:
    changes = [f"{pluralize(stats.archived_messages, 'message')} archived"] if stats.archived_messages else []
    changes += [f"{pluralize(stats.cleared_results, 'tool result')} cleared"] if stats.cleared_results else []
    changes += [f"{pluralize(stats.shortened_messages, 'long message')} shortened"] if stats.shortened_messages else []
    return f"{', '.join(changes) or 'Summary renewed'}, {stats.freed_tokens:,} tokens freed; undo with /undo"


def render_compaction_marker(stats: CompactionStats) -> "Group | Rule":
    """A marker between messages; one line if no message was archived, as in most compactions inside a turn."""
    if not stats.archived_messages and not stats.failures:
        return Rule(Text(format_compaction_stats(stats), style="yellow"), style="yellow dim")
    title = Text(f"Context compacted #{stats.number}", style="bold yellow")
    failures = [Text(f"The summary failed ({each}); used the fallback.", style="dim") for each in stats.failures]
    line = Text(format_compaction_stats(stats), style="yellow", justify="center")
    return Group(Rule(title, style="yellow"), line, *failures, Rule(style="yellow"))


def format_step_status(event: RequestPrepared) -> str:
    """The meter while the model is called: it moves with each step of a turn."""
    step = f"step {event.step} · " if event.step > 1 else ""
    about = "" if event.exact else "~"
    return f"{step}{about}{event.tokens:,} of {event.trigger_tokens:,} tokens · waiting for the model"


class MeterReading(NamedTuple):
    """The usage meter after a reply."""

    report: UsageReport
    reply_seq: int | None = None
    """The reply's number, for /pin and /branch."""
    usage: Usage | None = None
    turn_cost: float = 0.0
    """US dollars for this turn; 0 if no price is known."""
    conversation_cost: float = 0.0
    """US dollars for the conversation so far."""


def render_meter(reading: MeterReading) -> Text:
    report = reading.report
    about = "" if report.exact else "~"
    line = Text(style="dim")
    if reading.reply_seq is not None:
        line.append(f"#{reading.reply_seq} · ")
    # A full bar means that the next request compacts first or is refused.
    filled = min(METER_COLUMNS, round(METER_COLUMNS * report.total_tokens / max(1, report.trigger_tokens)))
    line.append("━" * filled, style=f"not dim {_STATUS_COLORS[report.status]}")
    line.append("─" * (METER_COLUMNS - filled), style="dim")
    if report.status == "over":
        effect = "compacts first" if report.context_management_enabled else "too large to send, run /compact"
        if report.proposes_compaction:
            effect = "oldest messages omitted until you run /compact"
        line.append(f" {about}{report.total_tokens:,} tokens; {effect} (limit {report.trigger_tokens:,})")
    elif report.window == UNKNOWN_WINDOW:
        line.append(f" {about}{report.total_tokens:,} tokens · window not known")
    else:
        line.append(f" {about}{report.total_tokens:,} of {report.trigger_tokens:,} tokens · window {report.window:,}")
    if report.document_tokens:
        line.append(f" · {report.document_tokens:,} from documents")
    if reading.usage is not None and reading.usage.cache_read_tokens:
        line.append(f" · {reading.usage.cache_read_tokens:,} from cache")
    if reading.turn_cost or reading.conversation_cost:
        line.append(f" · {format_usd(reading.turn_cost)} of {format_usd(reading.conversation_cost)}")
    return line


def render_approval_request(call: ToolCallPart) -> Group:
    """Renders a call with its arguments, because the user must see what it does before approving it."""
    arguments = parse_arguments(call)
    text = call.arguments if arguments is None else json.dumps(arguments, ensure_ascii=False, indent=2)
    lines = sanitize(text).splitlines()
    hidden = len(lines) - _MAX_ARGUMENT_LINES
    more = [Text(f"… and {hidden} more lines", style="bold red")] if hidden > 0 else []
    head = Text.assemble(("Run ", "bold yellow"), (sanitize(call.name), "bold cyan"), ("?", "bold yellow"))
    return Group(head, *(Padding(Text(line), (0, 0, 0, 2)) for line in lines[:_MAX_ARGUMENT_LINES]), *more)


def deduplicate_references(*groups: Iterable[DocumentReference]) -> tuple[DocumentReference, ...]:
    """Deduplicates references by document; the first reference wins."""
    unique: dict[object, DocumentReference] = {}
    for references in groups:
        for each in references:
            unique.setdefault(each.path or each.link, each)
    return tuple(unique.values())


def render_references(references: Sequence[DocumentReference]) -> Group:
    lines: list[RenderableType] = []
    for each in references[:MAX_LISTED_REFERENCES]:
        if each.path is None:  # The reference is broken, and its snippet says why.
            lines.append(Text(f"✗ {sanitize(each.link)}", style="red"))
            text = each.snippet
        else:
            inclusion = ", found by a tool" if each.kind == "search" else "" if each.injected else ", listed only"
            place = f" ({sanitize(each.path)}{inclusion})"
            lines.append(Text.assemble((f"• {sanitize(each.link)}", "cyan"), (place, "dim")))
            text = each.summary or each.snippet
        if text:
            line = Text(to_one_line(text, MAX_REFERENCE_TEXT_CHARS), style="dim", no_wrap=True, overflow="ellipsis")
            lines.append(Padding(line, (0, 0, 0, 2)))
    if (hidden := len(references) - MAX_LISTED_REFERENCES) > 0:
        lines.append(Text(f"… and {hidden} more; list them with `quire context show --reply N`", style="dim"))
    return Group(Text("Documents", style="bold dim"), *(Padding(line, (0, 0, 0, 2)) for line in lines))
