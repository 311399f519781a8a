"""What the chat shows, event by event. It knows no terminal, only a console to print on, so that tests can read it.

Every event is shown in the order in which it comes; nothing is looked up here.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text

from quire.cli.chat.calls import asked_line, outcome_line
from quire.cli.chat.marker import Archived, marker
from quire.cli.chat.meter import Reading, meter_line
from quire.cli.chat.references import documents, joined
from quire.cli.chat.streaming import Streaming
from quire.cli.output import moment, one_line, plain
from quire.model.events import CompactionFailed, CompactionStarted, ContextCompacted, ContextUsageUpdated, Event
from quire.model.turns import (
    ApprovalAsked,
    EndReason,
    QuestionKept,
    ReplyKept,
    RequestPrepared,
    Retrying,
    Thinking,
    ToolAnswered,
    ToolCalled,
    TurnEnded,
    TurnEvent,
    TurnFailed,
    TurnStarted,
)
from quire.model.turns import (
    Text as Said,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from quire.model import Entry
    from quire.model.notes import DocumentReference

_ENDINGS: dict[EndReason, str | None] = {
    "answered": None,
    "truncated": "The reply ends at the limit of its tokens.",
    "empty": "The reply is empty; /retry asks again.",
    "steps": "The turn has had as many replies as `max_steps` lets it; /retry goes on.",
    "stopped": "Stopped before anything came; /retry asks again.",
}


LONGEST_PAST = 600
"""So many characters of a reply are shown again when a conversation is resumed."""


class Screen:
    def __init__(self, console: "Console") -> None:
        self.console = console
        self._reply = Streaming(console)
        self._references: list[Sequence[DocumentReference]] = []
        self._kept: int | None = None
        """The number of a reply that was broken off."""

    def show(self, event: TurnEvent | Event) -> None:
        match event:
            case TurnStarted() | QuestionKept() | RequestPrepared():
                self._begin(event)
            case Said() | Thinking() | Retrying() | ReplyKept():
                self._hear(event)
            case ToolCalled() | ApprovalAsked() | ToolAnswered():
                self._show_call(event)
            case TurnEnded() | TurnFailed():
                self._end(event)
            case CompactionStarted():
                self._reply.wait("compacts the context")
            case CompactionFailed(detail=detail):
                self._say(Text(f"A summary failed: {one_line(detail)}", style="yellow"))
            case ContextUsageUpdated() | ContextCompacted():
                # The meter stands below the reply; the marker counts what was archived, which an event does not say.
                pass
            case _:
                assert_never(event)

    def _begin(self, event: TurnStarted | QuestionKept | RequestPrepared) -> None:
        match event:
            case TurnStarted():
                self._references, self._kept = [], None
                self._reply.wait("…")
            case QuestionKept(entry=entry):
                self._references.append(entry.notes.references or ())
            case RequestPrepared(tokens=tokens):
                self._reply.wait(f"waits for the model to read {tokens:,} tokens")
            case _:
                assert_never(event)

    def _hear(self, event: Said | Thinking | Retrying | ReplyKept) -> None:
        match event:
            case Said(text=text):
                self._reply.say(text)
            case Thinking():
                self._reply.wait("thinks")
            case Retrying(error=error, seconds=seconds):
                self._say(Text(f"{plain(str(error))} Asks again in {seconds:g} s.", style="yellow"))
                self._reply.wait(f"asks again in {seconds:g} s")
            case ReplyKept(entry=entry, unfinished=unfinished):
                self._references.append(entry.notes.references or ())
                self._kept = entry.seq if unfinished else None
                self._reply.finish()
            case _:
                assert_never(event)

    def _show_call(self, event: ToolCalled | ApprovalAsked | ToolAnswered) -> None:
        match event:
            case ToolCalled(call=call):
                self._reply.wait(f"runs {call.name}")
            case ApprovalAsked(call=call):
                self._say(asked_line(call))
            case ToolAnswered(call=call, result=result):
                self._say(outcome_line(call, result, width=self.console.width))
                self._reply.wait("goes on")
            case _:
                assert_never(event)

    def _end(self, event: TurnEnded | TurnFailed) -> None:
        self._reply.finish()
        used = joined(*self._references)
        if used:
            self.put(documents(used))
        if isinstance(event, TurnFailed):
            self.problem(event.error)
        elif (said := _ENDINGS[event.reason]) is not None:
            kept = f"Stopped; what had come is kept as #{self._kept}, marked as unfinished. /retry asks again."
            self.console.print(Text(said if self._kept is None else kept, style="yellow"))

    def wait(self, label: str) -> None:
        """Says what is waited for, until something else is shown."""
        self._reply.wait(label)

    def rest(self) -> None:
        """Nothing is under way any more, however it ended."""
        self._reply.finish()

    def gap(self) -> None:
        """A line of air before the next input."""
        self.console.print()

    def marker(self, done: Archived) -> None:
        self._say(marker(done))

    def meter(self, reading: Reading) -> None:
        self._say(meter_line(reading))

    def put(self, shown: "RenderableType") -> None:
        """Something between the turns, with a line of air before it."""
        self._reply.finish()
        self.console.print()
        self.console.print(shown)

    def note(self, text: str) -> None:
        self._say(Text(plain(text), style="dim"))

    def problem(self, error: BaseException) -> None:
        self._say(Text(plain(str(error)), style="red"))

    def past(self, entries: "Sequence[Entry]") -> None:
        """The end of what was said before."""
        for entry in entries:
            message = entry.message
            if message.role == "user":
                self.console.print(Text(f"› {one_line(message.text, 400)}", style="dim"))
            elif message.role == "assistant" and message.text.strip():
                self.console.print(Padding(Markdown(_beginning(plain(message.text))), (1, 0)), style="dim")
            if entry.notes.unfinished:
                self.console.print(Text("(unfinished)", style="dim yellow"))

    def resumed(self, name: str, *, branch: int, newest: "Entry") -> None:
        where = f", branch {branch}" if branch else ""
        self.note(f"Resumes {name}{where}, at #{newest.seq} of {moment(newest.at)}. /help says what can be done.")

    def _say(self, shown: "RenderableType") -> None:
        self._reply.finish()
        self.console.print(shown)


def _beginning(text: str) -> str:
    return text if len(text) <= LONGEST_PAST else f"{text[:LONGEST_PAST]} …"
