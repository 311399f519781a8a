"""Draws the chat, event by event, on a Rich console; it needs no terminal, so that tests can read the output.

Events are drawn in the order in which they come; this module loads nothing.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, assert_never

from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from quire.cli.chat.renderables import (
    CompactionStats,
    MeterReading,
    deduplicate_references,
    format_step_status,
    render_approval_request,
    render_compaction_marker,
    render_meter,
    render_references,
)
from quire.cli.output import format_local_time, sanitize, to_one_line
from quire.cli.tool_calls import MAX_CALL_LINES, format_folded_calls, render_tool_result
from quire.model.context_events import (
    CompactionFailed,
    CompactionStarted,
    ContextCompacted,
    ContextEvent,
    ContextUsageUpdated,
)
from quire.model.events import (
    ApprovalRequested,
    QuestionRecorded,
    ReplyRecorded,
    RequestPrepared,
    RetryScheduled,
    TextChunk,
    ThinkingChunk,
    ToolCalled,
    ToolCompleted,
    TurnEnded,
    TurnEndReason,
    TurnEvent,
    TurnFailed,
    TurnStarted,
)

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from quire.model import Entry
    from quire.model.entry_metadata import DocumentReference

_END_MESSAGES: dict[TurnEndReason, str | None] = {
    "answered": None,
    "truncated": "The reply was cut off at its token limit.",
    "empty": "The reply is empty; type /retry to ask again.",
    "max_steps": "The turn reached `max_steps`; type /retry to continue.",
    "max_cost": "The turn reached `max_cost`; type /retry to continue.",
    "stopped": "Stopped before the reply; type /retry to ask again.",
}
_FOLD_HINT = " (/calls lists them)"
"""On the first line of folded calls in a turn."""
MAX_RESUMED_REPLY_CHARS = 600
"""Characters of the last reply that are printed when a conversation is resumed."""

REFRESHES_PER_SECOND = 8
_BLOCK_MARKER_PREFIX = re.compile(r"[\s\d.)*+>#=|`~_-]*")


class Screen:
    def __init__(self, console: "Console") -> None:
        self.console = console
        self._stream = MarkdownStream(console)
        self._reference_groups: list[Sequence[DocumentReference]] = []
        self._incomplete_reply_seq: int | None = None
        """The number of an incomplete reply."""
        self._call_lines = 0
        """Calls of this turn that are printed on separate lines."""
        self._folded_calls: Counter[str] = Counter()
        """Calls since the last printed line, by tool: they become one line."""
        self._fold_hint = _FOLD_HINT

    def show(self, event: TurnEvent | ContextEvent) -> None:
        match event:
            case TurnStarted() | QuestionRecorded() | RequestPrepared():
                self._show_start(event)
            case TextChunk() | ThinkingChunk() | RetryScheduled() | ReplyRecorded():
                self._show_reply(event)
            case ToolCalled() | ApprovalRequested() | ToolCompleted():
                self._show_call(event)
            case TurnEnded() | TurnFailed():
                self._show_end(event)
            case CompactionStarted():
                self._stream.show_status("compacting the context")
            case CompactionFailed(detail=detail):
                self._print(Text(to_one_line(detail), style="yellow"))
            case ContextUsageUpdated() | ContextCompacted():
                # The meter is printed below the reply; the marker needs the counts, which the event does not carry.
                pass
            case _:
                assert_never(event)

    def _show_start(self, event: TurnStarted | QuestionRecorded | RequestPrepared) -> None:
        match event:
            case TurnStarted():
                self._reference_groups, self._incomplete_reply_seq = [], None
                self._call_lines, self._fold_hint = 0, _FOLD_HINT
                self._stream.show_status("…")
            case QuestionRecorded(entry=entry):
                self._reference_groups.append(entry.metadata.references or ())
            case RequestPrepared():
                self._stream.show_status(format_step_status(event))
            case _:
                assert_never(event)

    def _show_reply(self, event: TextChunk | ThinkingChunk | RetryScheduled | ReplyRecorded) -> None:
        match event:
            case TextChunk(text=text):
                self._print_folded_calls()
                self._stream.write(text)
            case ThinkingChunk():
                self._stream.show_status("thinking")
            case RetryScheduled(error=error, delay_seconds=seconds):
                self._print(Text(f"{sanitize(str(error))} Retrying in {seconds:g} s.", style="yellow"))
                self._stream.show_status(f"retrying in {seconds:g} s")
            case ReplyRecorded(entry=entry, incomplete=incomplete):
                self._reference_groups.append(entry.metadata.references or ())
                self._incomplete_reply_seq = entry.seq if incomplete else None
                self._stream.finish()
            case _:
                assert_never(event)

    def _show_call(self, event: ToolCalled | ApprovalRequested | ToolCompleted) -> None:
        match event:
            case ToolCalled(call=call):
                self._stream.show_status(f"running {call.name}")
            case ApprovalRequested(call=call):
                self._print(render_approval_request(call))
            case ToolCompleted():
                self._show_result(event)
            case _:
                assert_never(event)

    def _show_result(self, event: ToolCompleted) -> None:
        """Prints a line for the first calls of a turn and for those that failed, and counts the others."""
        if self._call_lines < MAX_CALL_LINES or event.result.is_error:
            self._print(render_tool_result(event.call, event.result, width=self.console.width))
            self._call_lines += 1
            self._stream.show_status("continuing")
        else:
            self._folded_calls[event.call.name] += 1
            self._stream.show_status(f"{format_folded_calls(self._folded_calls)} · continuing")

    def _print_folded_calls(self) -> None:
        if self._folded_calls:
            self._stream.finish()
            line = f"… {format_folded_calls(self._folded_calls, detail=self._fold_hint)}"
            self.console.print(Text(to_one_line(line, self.console.width), style="dim"))
            self._fold_hint = ""
            self._folded_calls.clear()

    def _show_end(self, event: TurnEnded | TurnFailed) -> None:
        self.finish()
        references = deduplicate_references(*self._reference_groups)
        if references:
            self.show_block(render_references(references))
        if isinstance(event, TurnFailed):
            self.show_error(event.error)
        elif (message := _END_MESSAGES[event.reason]) is not None:
            if self._incomplete_reply_seq is not None:
                message = (
                    f"Stopped; the partial reply is recorded as #{self._incomplete_reply_seq} (incomplete). "
                    "Type /retry to ask again."
                )
            self.console.print(Text(message, style="yellow"))

    def show_status(self, status: str) -> None:
        """Shows a status until something else is printed."""
        self._stream.show_status(status)

    def finish(self) -> None:
        """Ends the stream and its status, however the turn ended."""
        self._print_folded_calls()
        self._stream.finish()

    def print_blank_line(self) -> None:
        self.console.print()

    def show_compaction(self, stats: CompactionStats) -> None:
        self._print(render_compaction_marker(stats))

    def show_meter(self, reading: MeterReading) -> None:
        self._print(render_meter(reading))

    def show_block(self, renderable: "RenderableType") -> None:
        """Prints something between turns, after a blank line."""
        self._stream.finish()
        self.console.print()
        self.console.print(renderable)

    def show_note(self, text: str) -> None:
        self._print(Text(sanitize(text), style="dim"))

    def show_error(self, error: BaseException) -> None:
        self._print(Text(sanitize(str(error)), style="red"))

    def show_history(self, entries: "Sequence[Entry]") -> None:
        """Prints the last messages of a resumed conversation."""
        for entry in entries:
            message = entry.message
            if message.role == "user":
                self.console.print(Text(f"› {to_one_line(message.text, 400)}", style="dim"))
            elif message.role == "assistant" and message.text.strip():
                text = sanitize(message.text)
                if len(text) > MAX_RESUMED_REPLY_CHARS:
                    text = f"{text[:MAX_RESUMED_REPLY_CHARS]} …"
                self.console.print(Padding(Markdown(text), (1, 0)), style="dim")
            if entry.metadata.incomplete:
                self.console.print(Text("(incomplete)", style="dim yellow"))

    def show_resumed(self, conversation_id: str, *, branch: int, newest: "Entry") -> None:
        branch_note = f", branch {branch}" if branch else ""
        position = f"at #{newest.seq} of {format_local_time(newest.created_at)}"
        self.show_note(f"Resumed {conversation_id}{branch_note}, {position}. Type /help for the commands.")

    def _print(self, renderable: "RenderableType") -> None:
        self.finish()
        self.console.print(renderable)


class MarkdownStream:
    """Streams a Markdown reply: complete blocks are printed once, and only the last, open block is redrawn.

    The redrawn part never exceeds half of the screen, so that it neither flickers nor scrolls off; without a terminal
    nothing is redrawn.
    """

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._live: Live | None = None
        self._pending = ""
        self._printed_blocks = 0
        self._status: str | None = None

    def show_status(self, status: str) -> None:
        """Shows a spinner with a status until text comes."""
        self._status = status
        self._start_live()

    def write(self, text: str) -> None:
        self._status = None
        self._pending += sanitize(text)
        self._start_live()
        if "\n" in text:
            cut = find_stable_end(self._pending)
            stable, self._pending = self._pending[:cut], self._pending[cut:]
            self._print(stable)

    def finish(self) -> None:
        """Prints the open block and stops redrawing."""
        rest, self._pending, self._status = self._pending, "", None
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
        self._print(rest)
        self._printed_blocks = 0

    def _print(self, text: str) -> None:
        if not text.strip():
            return
        # Keeps the refresh thread from drawing during a print: Rich would lose the height of what is on the screen.
        with nullcontext() if self._live is None else self._live._lock:  # pyright: ignore[reportPrivateUsage]
            if self._printed_blocks:
                self._console.print()
            self._printed_blocks += 1
            self._console.print(Markdown(text))

    def _start_live(self) -> None:
        if self._live is None and self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._render,
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def _render(self) -> "RenderableType":
        if self._status is not None:
            return Spinner("dots", Text(sanitize(self._status), style="dim"))
        return _MarkdownTail(self._pending, gap=bool(self._printed_blocks)) if self._pending.strip() else Text("")


class _MarkdownTail:
    """Renders the last lines of a Markdown text."""

    def __init__(self, text: str, *, gap: bool) -> None:
        self._text, self._gap = text, gap

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        lines = console.render_lines(Markdown(self._text), options.update(height=None), pad=False)
        if self._gap:
            lines = [[], *lines]
        for line in lines[-max(1, console.height // 2) :]:
            yield from line
            yield Segment.line()


def find_stable_end(text: str) -> int:
    """Returns the end of the stable part: all blocks but the last, which the next chunk may continue.

    An unfinished last line that may still become a block marker (`1` of `1. first`) is not parsed, because it would end
    the block before it.
    """
    complete, newline, last_line = text.rpartition("\n")
    if _BLOCK_MARKER_PREFIX.fullmatch(last_line):
        text = complete + newline
    starts = [
        token.map[0] for token in _get_parser().parse(text) if token.level == 0 and token.map and token.nesting >= 0
    ]
    if len(starts) < 2:
        return 0
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[: starts[-1]]))


@lru_cache(maxsize=1)
def _get_parser() -> "MarkdownIt":
    """Creates a parser with the same options as Rich's."""
    from markdown_it import MarkdownIt

    return MarkdownIt().enable("strikethrough").enable("table")
