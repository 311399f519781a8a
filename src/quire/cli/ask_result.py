"""One turn for `quire ask`: collects the turn's events into a JSON document, or into lines for people."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from quire.cli.chat.input import stop_on_interrupt
from quire.cli.chat.renderables import deduplicate_references, format_compaction_stats
from quire.cli.mcp_servers import format_server_problem
from quire.cli.output import pluralize, print_note, to_one_line
from quire.cli.tool_calls import format_tool_call
from quire.model import Decision, Manifest, Usage
from quire.model.base import FrozenModel
from quire.model.context_events import CompactionFailed, ContextCompacted, ContextEvent
from quire.model.entry_metadata import DocumentReference
from quire.model.events import (
    QuestionRecorded,
    ReplyRecorded,
    RetryScheduled,
    TextChunk,
    ToolCompleted,
    TurnEnded,
    TurnEndReason,
    TurnFailed,
)

if TYPE_CHECKING:
    from quire.cli.chat.runtime import ChatRuntime
    from quire.model import Entry, Message
    from quire.model.events import TurnEvent

WriteText = Callable[[str], None]

_ITEM_NOUNS = {"instructions": "instruction", "summary": "summary", "memory": "memory"}
"""Singular nouns of decision kinds, where they differ from the kind."""


class AskResult(FrozenModel):
    """What `quire ask --json` prints."""

    reply: str
    reason: TurnEndReason
    conversation: str
    branch: int
    seq: int | None
    """Sequence number of the reply; None if no reply came."""
    model: str
    usage: Usage
    cost_usd: float
    """0 if no price is known."""
    references: tuple[DocumentReference, ...]
    manifest: Manifest | None
    """What the model saw for the last reply."""


class _TurnCollector:
    """Accumulator of a turn's events: reply, references, end."""

    def __init__(self, write: WriteText | None) -> None:
        self._write = write
        self._last_character = ""
        self._reference_groups: list[Sequence[DocumentReference]] = []
        self.reply: Entry | None = None
        self.end_event: TurnEnded | None = None

    def add(self, event: "TurnEvent") -> None:
        match event:
            case TextChunk(text=text):
                self._write_text(text)
            case QuestionRecorded(entry=entry):
                self._reference_groups.append(entry.metadata.references or ())
            case ReplyRecorded(entry=entry):
                self.reply = entry
                self._reference_groups.append(entry.metadata.references or ())
            case ToolCompleted(call=call, result=result):
                print_note(f"{'✗' if result.is_error else '✓'} {format_tool_call(call)}")
                # The next reply starts on a new line.
                if self._last_character and not self._last_character.endswith("\n"):
                    self._write_text("\n")
            case RetryScheduled(error=error, delay_seconds=seconds):
                print_note(f"{error} Retrying in {seconds:g} s.")
            case TurnEnded():
                self.end_event = event
            case TurnFailed(error=error):
                raise error
            case _:
                pass

    def _write_text(self, text: str) -> None:
        self._last_character = text[-1:]
        if self._write is not None:
            self._write(text)

    @property
    def references(self) -> tuple[DocumentReference, ...]:
        return deduplicate_references(*self._reference_groups)


async def ask_question(runtime: "ChatRuntime", question: "Message | str", *, write: WriteText | None) -> AskResult:
    """Runs the turn; calls `write` with each chunk of the reply. Ctrl-C stops the reply and records the partial one."""
    collector, stop = _TurnCollector(write), asyncio.Event()
    compactions: list[Entry] = []
    runtime.engine.subscribe(lambda event: _handle_event(event, compactions))
    for problem in runtime.server_problems:
        print_note(format_server_problem(problem))
    with stop_on_interrupt(stop.set):
        async with aclosing(runtime.run_turn(question, stop=stop)) as events:
            async for event in events:
                collector.add(event)
    for entry in compactions:
        print_note(
            format_compaction_stats(await runtime.load_compaction_stats(entry)).replace(
                "/undo", f"`quire context undo {runtime.conversation.id}`"
            )
        )
    return await _build_result(runtime, collector)


def _handle_event(event: ContextEvent, compactions: "list[Entry]") -> None:
    if isinstance(event, ContextCompacted):
        compactions.append(event.entry)
    elif isinstance(event, CompactionFailed):
        print_note(f"The summary failed: {to_one_line(event.detail)}")


async def _build_result(runtime: "ChatRuntime", collector: _TurnCollector) -> AskResult:
    end, reply, engine = collector.end_event, collector.reply, runtime.engine
    assert end is not None
    totals = reply.metadata.turn if reply is not None else None
    return AskResult(
        reply=reply.message.text if reply is not None else "",
        reason=end.reason,
        conversation=runtime.conversation.id,
        branch=runtime.conversation.branch,
        seq=reply.seq if reply is not None else None,
        model=engine.settings.model,
        usage=totals.usage if totals is not None else end.usage,
        cost_usd=totals.cost_usd
        if totals is not None
        else engine.config.estimate_cost(end.usage, engine.settings.model),
        references=collector.references,
        manifest=await runtime.conversation.manifest(reply.seq) if reply is not None else None,
    )


def format_context_lines(result: AskResult) -> list[str]:
    """Formats the included and excluded items for `--show-context`."""
    manifest = result.manifest
    if manifest is None:
        return ["No reply came, so no context is recorded."]
    about = "" if manifest.exact else "about "
    used = f"{about}{manifest.total_tokens:,} of {manifest.policy.window:,} tokens"
    lines = [f"Context: {used}, compacted above {manifest.trigger_tokens:,}"]
    lines += [f"  - {line}" for line in _format_groups(manifest.included)]
    archived = [row for row in manifest.excluded if row.reason == "archived" and row.span is not None]
    others = [row for row in manifest.excluded if row not in archived]
    if archived:
        spans = ", ".join(f"#{row.span.first} to #{row.span.last}" for row in archived if row.span is not None)
        lines.append(f"  - archived, not included: {spans}")
    lines += [
        f"  - left out ({row.reason.replace('_', ' ')}): {row.kind} {to_one_line(row.name or '')}" for row in others
    ]
    if result.references:
        lines.append(f"Documents: {', '.join(to_one_line(each.path or each.link) for each in result.references)}")
    return lines


def _format_groups(rows: Iterable[Decision]) -> list[str]:
    groups: dict[tuple[str, str], list[Decision]] = {}
    for row in rows:
        groups.setdefault((row.kind, row.reason), []).append(row)
    return [_format_group(kind, reason, rows) for (kind, reason), rows in groups.items()]


def _format_group(kind: str, reason: str, rows: Sequence[Decision]) -> str:
    tokens = sum(row.tokens for row in rows)
    names = ", ".join(to_one_line(row.name, 60) for row in rows if row.name)
    count = sum(row.span.last - row.span.first + 1 if row.span else 1 for row in rows)
    label = pluralize(count, _ITEM_NOUNS.get(kind, kind))
    if reason not in (kind, "instructions"):
        label += f", {reason}"
    return f"{label} ({tokens:,} tokens){f': {names}' if names and names != kind else ''}"
