"""One question answered for a program: the turn's events gathered into a document, and said in lines for people."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from quire.cli.chat.calls import called
from quire.cli.chat.interrupting import interruptible
from quire.cli.chat.marker import told
from quire.cli.chat.references import joined
from quire.cli.output import counted, note, one_line
from quire.cli.servers import trouble_said
from quire.model import Decision, Usage
from quire.model.events import CompactionFailed, ContextCompacted, Event
from quire.model.manifest import SlotUse
from quire.model.notes import DocumentReference
from quire.model.turns import EndReason, QuestionKept, ReplyKept, Retrying, Text, ToolAnswered, TurnEnded, TurnFailed
from quire.model.value import Value

if TYPE_CHECKING:
    from quire.cli.chat.talk import Talk
    from quire.model import Entry, Manifest
    from quire.model.turns import TurnEvent

Say = Callable[[str], None]


class AnswerContext(Value):
    """What the model was shown for the last reply."""

    tokens: int
    window: int
    trigger: int
    exact: bool
    slots: tuple[SlotUse, ...]
    included: tuple[Decision, ...]
    left_out: tuple[Decision, ...]


class Answer(Value):
    """What `quire ask --json` prints."""

    reply: str
    reason: EndReason
    conversation: str
    branch: int
    number: int | None
    """The reply's, in the log; none where nothing came."""
    model: str
    usage: Usage
    cost: float
    """Dollars; 0 where no price is known."""
    references: tuple[DocumentReference, ...]
    context: AnswerContext | None


class _Gathered:
    """What a turn's events amount to."""

    def __init__(self, say: Say | None) -> None:
        self._say = say
        self._said = ""
        self._references: list[Sequence[DocumentReference]] = []
        self.reply: Entry | None = None
        self.ending: TurnEnded | None = None

    def take(self, event: "TurnEvent") -> None:
        match event:
            case Text(text=text):
                self._speak(text)
            case QuestionKept(entry=entry):
                self._references.append(entry.notes.references or ())
            case ReplyKept(entry=entry):
                self.reply = entry
                self._references.append(entry.notes.references or ())
            case ToolAnswered(call=call, result=result):
                note(f"{'✗' if result.is_error else '✓'} {called(call)}")
                # What the next reply says begins on a line of its own.
                if self._said and not self._said.endswith("\n"):
                    self._speak("\n")
            case Retrying(error=error, seconds=seconds):
                note(f"{error} Asks again in {seconds:g} s.")
            case TurnEnded():
                self.ending = event
            case TurnFailed(error=error):
                raise error
            case _:
                pass

    def _speak(self, text: str) -> None:
        self._said = text[-1:]
        if self._say is not None:
            self._say(text)

    @property
    def references(self) -> tuple[DocumentReference, ...]:
        return joined(*self._references)


async def answer(talk: "Talk", text: str, *, say: Say | None) -> Answer:
    """Asks; `say` is called with the reply's pieces as they come. Ctrl-C stops the reply, and what had come is kept."""
    gathered, stop = _Gathered(say), asyncio.Event()
    compacted: list[Entry] = []
    talk.engine.subscribe(lambda event: _told(event, compacted))
    for trouble in talk.troubles:
        note(trouble_said(trouble))
    with interruptible(stop.set):
        async with aclosing(talk.turn(text, stop=stop)) as events:
            async for event in events:
                gathered.take(event)
    for entry in compacted:
        note(told(await talk.archived(entry)).replace("/undo", f"`quire context undo {talk.conversation.id}`"))
    return await _document(talk, gathered)


def _told(event: Event, compacted: "list[Entry]") -> None:
    if isinstance(event, ContextCompacted):
        compacted.append(event.entry)
    elif isinstance(event, CompactionFailed):
        note(f"A summary failed: {one_line(event.detail)}")


async def _document(talk: "Talk", gathered: _Gathered) -> Answer:
    ending, reply, engine = gathered.ending, gathered.reply, talk.engine
    assert ending is not None
    return Answer(
        reply=reply.message.text if reply is not None else "",
        reason=ending.reason,
        conversation=talk.conversation.id,
        branch=talk.conversation.branch,
        number=reply.seq if reply is not None else None,
        model=engine.settings.model,
        usage=ending.usage,
        cost=engine.cost(ending.usage, engine.settings.model),
        references=gathered.references,
        context=_context(await talk.conversation.manifest(reply.seq)) if reply is not None else None,
    )


def _context(manifest: "Manifest") -> AnswerContext:
    return AnswerContext(
        tokens=manifest.total,
        window=manifest.policy.window,
        trigger=manifest.trigger,
        exact=manifest.exact,
        slots=manifest.slots,
        included=manifest.included,
        left_out=manifest.left_out,
    )


def context_lines(done: Answer) -> list[str]:
    """What was used, in a few lines."""
    context = done.context
    if context is None:
        return ["No reply came, so nothing is on record."]
    about = "" if context.exact else "about "
    lines = [f"Context: {about}{context.tokens:,} of {context.window:,} tokens, compacted above {context.trigger:,}"]
    lines += [f"  - {line}" for line in _grouped(context.included)]
    archived = [row for row in context.left_out if row.reason == "archived" and row.span is not None]
    others = [row for row in context.left_out if row not in archived]
    if archived:
        spans = ", ".join(f"#{row.span.first} to #{row.span.last}" for row in archived if row.span is not None)
        lines.append(f"  - archived, not shown: {spans}")
    lines += [f"  - left out ({row.reason.replace('_', ' ')}): {row.what} {one_line(row.name or '')}" for row in others]
    if done.references:
        lines.append(f"Documents: {', '.join(one_line(each.path or each.link) for each in done.references)}")
    return lines


def _grouped(rows: Iterable[Decision]) -> list[str]:
    groups: dict[tuple[str, str], list[Decision]] = {}
    for row in rows:
        groups.setdefault((row.what, row.reason), []).append(row)
    return [_line(what, reason, rows) for (what, reason), rows in groups.items()]


def _line(what: str, reason: str, rows: Sequence[Decision]) -> str:
    tokens = sum(row.tokens for row in rows)
    names = ", ".join(one_line(row.name, 60) for row in rows if row.name)
    many = counted(sum(row.span.last - row.span.first + 1 if row.span else 1 for row in rows), _THINGS.get(what, what))
    said = f"{many}, {reason}" if reason not in (what, "instructions") else many
    return f"{said} ({tokens:,} tokens){f': {names}' if names and names != what else ''}"


_THINGS = {"instructions": "instruction", "summary": "summary", "memory": "memory"}
