"""One turn for `quire ask`: collects the turn's events into a JSON document, or into lines for people."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from quire.cli.chat.input import stop_on_interrupt
from quire.cli.chat.renderables import deduplicate_references, format_compaction_stats
from quire.cli.engine_setup import format_server_problem
from quire.cli.output import pluralize, print_note, to_one_line
from quire.cli.tool_calls import format_tool_call
from quire.model import Decision, Usage
from quire.model.context_events import CompactionFailed, ContextCompacted, ContextEvent
from quire.model.entry_metadata import DocumentReference
from quire.model.events import (
    QuestionRecorded,
    ReplyRecorded,
    RetryScheduled,
    TextChunk,
    ToolCompleted,
    TurnEnded,
    TurnFailed,
)
from quire.schemas.turn_events import AnswerSchema

if TYPE_CHECKING:
    from quire.cli.chat.runtime import ChatRuntime
    from quire.model import Entry, Message
    from quire.model.events import TurnEvent

WriteText = Callable[[str], None]

_ITEM_NOUNS = {"instructions": "instruction", "summary": "summary", "memory": "memory"}
"""Singular nouns of decision kinds, where they differ from the kind."""


class _TurnCollector:
    """Accumulator of a turn's events: reply, references, end."""

    def __init__(self, write: WriteText | None) -> None:
        self._write = write
        self._last_character = ""
        self.reference_groups: list[Sequence[DocumentReference]] = []
        self.reply: Entry | None = None
        self.usages: list[Usage] = []
        """Usage of each model call."""
        self.end_event: TurnEnded | None = None

    def add(self, event: "TurnEvent") -> None:
        match event:
            case TextChunk(text=text):
                self._write_text(text)
            case QuestionRecorded(entry=entry):
                self.reference_groups.append(entry.metadata.references or ())
            case ReplyRecorded(entry=entry, usage=usage):
                self.reply = entry
                self.usages.append(usage)
                self.reference_groups.append(entry.metadata.references or ())
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


async def ask_question(runtime: "ChatRuntime", question: "Message | str", *, write: WriteText | None) -> AnswerSchema:
    """Runs the turn; calls `write` with each chunk of the reply. Ctrl-C stops the reply and records the partial one."""
    collector, stop = _TurnCollector(write), asyncio.Event()
    compactions: list[Entry] = []

    def handle_event(event: ContextEvent) -> None:
        if isinstance(event, ContextCompacted):
            compactions.append(event.entry)
        elif isinstance(event, CompactionFailed):
            print_note(f"The summary failed: {to_one_line(event.detail)}")

    runtime.engine.subscribe(handle_event)
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
    end, reply, engine = collector.end_event, collector.reply, runtime.engine
    assert end is not None
    totals = reply.metadata.turn if reply is not None else None
    model = engine.settings.model
    return AnswerSchema(
        reply=reply.message.text if reply is not None else "",
        reason=end.reason,
        conversation=runtime.conversation.id,
        branch=runtime.conversation.branch,
        seq=reply.seq if reply is not None else None,
        model=model,
        usage=totals.usage if totals is not None else end.usage,
        cost_usd=totals.cost_usd
        if totals is not None
        else sum(engine.config.compute_cost(usage, model).usd for usage in collector.usages),
        references=list(deduplicate_references(*collector.reference_groups)),
        manifest=await runtime.conversation.manifest(reply.seq) if reply is not None else None,
    )


def format_context_lines(result: AnswerSchema) -> list[str]:
    """Formats the included and excluded items for `--show-context`."""
    manifest = result.manifest
    if manifest is None:
        return ["No reply came, so no context is recorded."]
    about = "" if manifest.exact else "about "
    used = f"{about}{manifest.total_tokens:,} of {manifest.policy.window:,} tokens"
    lines = [f"Context: {used}, compacted above {manifest.trigger_tokens:,}"]
    if not manifest.policy.has_known_window:
        lines = [f"Context: {about}{manifest.total_tokens:,} tokens of a window that is not known"]
    groups: dict[tuple[str, str], list[Decision]] = {}
    for row in manifest.included:
        groups.setdefault((row.kind, row.reason), []).append(row)
    for (kind, reason), rows in groups.items():
        tokens = sum(row.tokens for row in rows)
        names = ", ".join(to_one_line(row.name, 60) for row in rows if row.name)
        count = sum(row.span.last - row.span.first + 1 if row.span else 1 for row in rows)
        label = pluralize(count, _ITEM_NOUNS.get(kind, kind))
        if reason not in (kind, "instructions"):
            label += f", {reason}"
        lines.append(f"  - {label} ({tokens:,} tokens){f': {names}' if names and names != kind else ''}")
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
