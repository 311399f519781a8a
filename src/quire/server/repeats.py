"""A request that is sent again because its answer was lost on the way: what it brought is in the log once.

The log's own rule serves: the same message after the same parent is one message. A client that wants to be able to
repeat says which entry it knew last, and any node can tell from the log what has become of the first attempt.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from quire.engine import Conversation
from quire.engine.recording import Recorder
from quire.engine.request import Asked
from quire.errors import StaleHead
from quire.log import Store
from quire.model import ROOT, Entry, Message, Usage
from quire.model import turns as happened
from quire.model.turns import TurnEvent, total_usage
from quire.server.told import AnyTurnEvent, turn_event_shown

LONGEST = 1_000
"""Messages of a turn that are read to find its end."""


class Before(NamedTuple):
    """What has become of a question that was asked before."""

    question: Entry
    since: Sequence[Entry]
    """The messages of its turn, as far as it came."""

    @property
    def answered(self) -> bool:
        """Whether the last of them is a reply that calls no tool."""
        return bool(self.since) and self.since[-1].role == "assistant" and not self.since[-1].message.tool_calls


async def append_once(conversation: Conversation, messages: Sequence[Message], *, after: int) -> list[Entry]:
    """Keeps messages right after entry `after`; those that stand there already are given back as they are."""
    store, recorder = conversation.engine.store, Recorder(conversation.engine, conversation.id, conversation.branch)
    drafts = [recorder.draft(Asked(message)) for message in messages]
    path = await _path_at(store, conversation, after)
    return await store.append(conversation.id, *drafts, branch=conversation.branch, after=path)


async def asked_before(conversation: Conversation, message: Message | None, *, after: int) -> Before | None:
    """What has become of this question, asked after entry `after`; None if nothing was said after it yet.

    `StaleHead` if something else was.
    """
    store, branch = conversation.engine.store, conversation.branch
    head = await store.branch(conversation.id, branch)
    if await _path_at(store, conversation, after) == head.head_path:
        return None
    said = await store.range(conversation.id, branch=branch, first=after + 1, kinds=["message"], limit=LONGEST)
    if message is None or not said or said[0].raw != message.canonical():
        raise StaleHead(
            f"Branch {branch} of {conversation.id!r} has gone on to entry #{head.head_seq} since #{after}; "
            "read what was said there, and ask after it."
        )
    turn = _until_next_question(said[1:])
    before = Before(said[0], turn)
    if not before.answered and len(turn) < len(said) - 1:
        raise StaleHead(f"The question in #{said[0].seq} was not answered before another was asked; ask it anew.")
    return before


async def _path_at(store: Store, conversation: Conversation, after: int) -> bytes:
    return ROOT if after == 0 else (await store.entry(conversation.id, after, branch=conversation.branch)).path


def _until_next_question(said: Sequence[Entry]) -> list[Entry]:
    end = next((place for place, entry in enumerate(said) if entry.role == "user"), len(said))
    return list(said[:end])


async def told_again(before: Before, *, branch: int) -> AsyncGenerator[AnyTurnEvent, None]:
    """A turn that is over, as the log has it: its question, its replies, its end."""
    for event in _events(before):
        yield turn_event_shown(event, branch=branch)


def _events(before: Before) -> list[TurnEvent]:
    replies = [entry for entry in before.since if entry.role == "assistant"]
    usages = [entry.notes.usage or Usage() for entry in replies]
    last = replies[-1]
    unfinished = bool(last.notes.unfinished)
    reason = "stopped" if unfinished else "answered" if last.message.text.strip() else "empty"
    return [
        happened.TurnStarted(message=before.question.message),
        happened.QuestionKept(entry=before.question),
        *(
            happened.ReplyKept(entry=entry, usage=usage, finish=None, unfinished=bool(entry.notes.unfinished))
            for entry, usage in zip(replies, usages, strict=True)
        ),
        happened.TurnEnded(reason=reason, steps=len(replies), usage=total_usage(usages)),
    ]
