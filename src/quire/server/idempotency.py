"""Idempotency of retried requests: a request sent again after its response was lost adds nothing twice.

The idempotency key is the message and its parent: the log stores the same message after the same parent once. A client
that may retry names the last entry it knows (`after`), and any node finds the first attempt's outcome in the log.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from quire.engine import Conversation
from quire.engine.message_index import schedule_indexing
from quire.engine.recorder import Recorder
from quire.engine.request import PendingMessage
from quire.errors import StaleHead
from quire.log import Branch, LogStore
from quire.model import CHAIN_ROOT, Entry, Message, Usage, events
from quire.model.entry_metadata import sum_usage
from quire.model.events import TurnEvent

MAX_TURN_MESSAGES = 1_000
"""Maximum number of messages read to find the end of a turn."""


class PriorAttempt(NamedTuple):
    """The outcome of a question that was sent before."""

    question: Entry
    entries: Sequence[Entry]
    """The messages of its turn so far."""

    @property
    def is_answered(self) -> bool:
        """Whether the last entry is a reply without tool calls."""
        return bool(self.entries) and self.entries[-1].role == "assistant" and not self.entries[-1].message.tool_calls


async def append_once(conversation: Conversation, messages: Sequence[Message], *, after: int) -> list[Entry]:
    """Appends messages right after entry `after`; returns the existing entries if they are already there."""
    store, recorder = conversation.engine.store, Recorder(conversation.engine, conversation.id, conversation.branch)
    drafts = [recorder.make_draft(PendingMessage(message)) for message in messages]
    path = await _get_path_at(store, conversation, after)
    entries = await store.append(conversation.id, *drafts, branch=conversation.branch, after=path)
    schedule_indexing(conversation.engine)
    return entries


async def find_prior_attempt(
    conversation: Conversation, message: Message | None, *, after: int, head: Branch
) -> PriorAttempt | None:
    """Finds an earlier attempt of this question after entry `after`; None if that entry is the `head` of the branch.

    Raises `StaleHead` if another message follows it.
    """
    store, branch = conversation.engine.store, conversation.branch
    if await _get_path_at(store, conversation, after) == head.head_path:
        return None
    entries = await store.read_range(
        conversation.id, branch=branch, first=after + 1, kinds=["message"], limit=MAX_TURN_MESSAGES
    )
    if message is None or not entries or entries[0].raw != message.canonical_json():
        raise StaleHead(
            f"Branch {branch} of {conversation.id!r} has new entries after #{after}, up to #{head.head_seq}; "
            "read them, and send the message after the last one."
        )
    turn = _take_until_next_question(entries[1:])
    attempt = PriorAttempt(entries[0], turn)
    if not attempt.is_answered and len(turn) < len(entries) - 1:
        raise StaleHead(
            f"The question in #{entries[0].seq} has no answer, and another question follows; send it again."
        )
    return attempt


async def _get_path_at(store: LogStore, conversation: Conversation, seq: int) -> bytes:
    return CHAIN_ROOT if seq == 0 else (await store.get_entry(conversation.id, seq, branch=conversation.branch)).path


def _take_until_next_question(entries: Sequence[Entry]) -> list[Entry]:
    end = next((index for index, entry in enumerate(entries) if entry.role == "user"), len(entries))
    return list(entries[:end])


async def replay_turn(attempt: PriorAttempt) -> AsyncGenerator[TurnEvent, None]:
    """Replays a finished turn from the log: its question, its replies, its end."""
    replies = [entry for entry in attempt.entries if entry.role == "assistant"]
    usages = [entry.metadata.usage or Usage() for entry in replies]
    last = replies[-1]
    reason = "stopped" if last.metadata.incomplete else "answered" if last.message.text.strip() else "empty"
    yield events.TurnStarted(message=attempt.question.message)
    yield events.QuestionRecorded(entry=attempt.question)
    for entry, usage in zip(replies, usages, strict=True):
        yield events.ReplyRecorded(
            entry=entry, usage=usage, finish_reason=None, incomplete=bool(entry.metadata.incomplete)
        )
    yield events.TurnEnded(reason=reason, steps=len(replies), usage=sum_usage(usages))
