"""Idempotent submission: retried messages are recorded once, and retried questions have one turn.

The idempotency key is the message and its parent: the log stores the same message after the same parent once. A client
that may retry names the last entry it knows (`after`), and any node finds the outcome of the first attempt in the log.
An attempt that finds the turn of its question in another process waits for the end of the turn. If that process dies,
the attempt takes the turn over.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from pydantic import TypeAdapter

from quire.engine import Conversation
from quire.engine.message_index import schedule_indexing
from quire.engine.recorder import Recorder
from quire.engine.request import PendingMessage
from quire.errors import QuireError, StaleHead
from quire.llm import Model
from quire.log import Branch
from quire.log.types import TurnLease
from quire.model import CHAIN_ROOT, Entry, Message, Usage, events
from quire.model.entry_metadata import sum_usage
from quire.model.events import TurnEvent
from quire.schemas.turn_events import AnyTurnEventSchema, TurnEventSchema, turn_event_to_schema
from quire.server.problems import error_to_problem
from quire.server.running_turn import RunningTurn
from quire.server.turn_registry import BranchKey, TurnRegistry, turn_in_progress
from quire.turns.leases import IdempotencyKey, LeaseState

MAX_TURN_MESSAGES = 1_000
"""Maximum number of messages read to find the end of a turn."""
_TURN_EVENT: TypeAdapter[AnyTurnEventSchema] = TypeAdapter(TurnEventSchema)


class PriorAttempt(NamedTuple):
    """The outcome of a question that was sent before."""

    question: Entry
    entries: Sequence[Entry]
    """The messages of its turn so far."""

    @property
    def is_answered(self) -> bool:
        """Whether the last entry is a reply without tool calls."""
        return bool(self.entries) and self.entries[-1].role == "assistant" and not self.entries[-1].message.tool_calls

    def replay(self) -> list[TurnEvent]:
        """The events of a finished turn: its question, its replies, its end."""
        replies = [entry for entry in self.entries if entry.role == "assistant"]
        usages = [entry.metadata.usage or Usage() for entry in replies]
        last = replies[-1]
        reason = "stopped" if last.metadata.incomplete else "answered" if last.message.text.strip() else "empty"
        recorded = [
            events.ReplyRecorded(
                entry=entry, usage=usage, finish_reason=None, incomplete=bool(entry.metadata.incomplete)
            )
            for entry, usage in zip(replies, usages, strict=True)
        ]
        return [
            events.TurnStarted(message=self.question.message),
            events.QuestionRecorded(entry=self.question),
            *recorded,
            events.TurnEnded(reason=reason, steps=len(replies), usage=sum_usage(usages)),
        ]


TurnSource = PriorAttempt | RunningTurn | TurnLease
"""The answer in the log, the turn in this process, or the lease of the turn in another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSubmission:
    """A question, or None to continue from the log, and the model that answers it."""

    key: BranchKey
    conversation: Conversation
    message: Message | None
    after: int | None
    """Number of the entry before the question, or None if the question is not idempotent."""
    model: Model

    @property
    def idempotency_key(self) -> IdempotencyKey | None:
        return make_idempotency_key(self.message, self.after) if self.after is not None else None


def make_idempotency_key(message: Message | None, after: int) -> IdempotencyKey:
    text = message.canonical_json() if message is not None else ""
    return IdempotencyKey(after, sha256(text.encode(errors="surrogatepass")).digest())


async def append_once(conversation: Conversation, messages: Sequence[Message], *, after: int) -> list[Entry]:
    """Appends messages right after entry `after`. Returns the existing entries if they are already there."""
    store, recorder = conversation.engine.store, Recorder(conversation.engine, conversation.id, conversation.branch)
    drafts = [recorder.make_draft(PendingMessage(message)) for message in messages]
    path = await _get_path_at(conversation, after)
    entries = await store.append(conversation.id, *drafts, branch=conversation.branch, after=path)
    schedule_indexing(conversation.engine)
    return entries


async def open_turn(turns: TurnRegistry, submission: TurnSubmission) -> TurnSource:
    """Finds the turn of the question, or starts it.

    Raises `TurnInProgress` if the branch has the turn of another question, and `StaleHead` if another message follows
    `after`.
    """
    key, idempotency_key = submission.key, submission.idempotency_key
    async with turns.get_lock(key):
        running = turns.get(key)
        if running is not None and idempotency_key is not None and running.idempotency_key == idempotency_key:
            return running
        attempt, head_seq = await _find_attempt(submission)
        if attempt is not None and attempt.is_answered:
            return attempt
        if turns.get(key) is not None:
            raise turn_in_progress(key)
        granted = await turns.acquire(key, idempotency_key)
        if isinstance(granted, LeaseState):
            if idempotency_key is None or granted.idempotency_key != idempotency_key:
                raise turn_in_progress(key)
            return granted.lease
        try:
            if granted.head_seq != head_seq:
                # Another process recorded something before this one had the lease.
                attempt, _ = await _find_attempt(submission)
            if attempt is None or not attempt.is_answered:
                return turns.launch(
                    key,
                    granted.lease,
                    submission.conversation,
                    submission.message if attempt is None else None,
                    model=submission.model,
                    idempotency_key=idempotency_key,
                )
        except BaseException:
            await turns.release(key, granted.lease)
            raise
        await turns.release(key, granted.lease)
        return attempt


async def _find_attempt(submission: TurnSubmission) -> tuple[PriorAttempt | None, int | None]:
    """Finds an earlier attempt of the question, and the head of the branch that was read before it.

    There is no attempt without an idempotency key, or if `after` is the head. Raises `StaleHead` if another message
    follows `after`.
    """
    conversation, message, after = submission.conversation, submission.message, submission.after
    if after is None:
        return None, None
    store, branch = conversation.engine.store, conversation.branch
    head: Branch = await store.get_branch(conversation.id, branch)
    if await _get_path_at(conversation, after) == head.head_path:
        return None, head.head_seq
    entries = await store.read_range(
        conversation.id, branch=branch, first=after + 1, kinds=["message"], limit=MAX_TURN_MESSAGES
    )
    if message is None or not entries or entries[0].raw != message.canonical_json():
        raise StaleHead(
            f"Branch {branch} of {conversation.id!r} has new entries after #{after}, up to #{head.head_seq}; "
            "read them, and send the message after the last one."
        )
    question, *following = entries
    end = next((index for index, entry in enumerate(following) if entry.role == "user"), len(following))
    attempt = PriorAttempt(question, following[:end])
    if not attempt.is_answered and end < len(following):
        raise StaleHead(f"The question in #{question.seq} has no answer, and another question follows; send it again.")
    return attempt, head.head_seq


async def _get_path_at(conversation: Conversation, seq: int) -> bytes:
    if seq == 0:
        return CHAIN_ROOT
    return (await conversation.engine.store.get_entry(conversation.id, seq, branch=conversation.branch)).path


async def stream_submission(
    turns: TurnRegistry, submission: TurnSubmission, source: TurnSource
) -> AsyncGenerator[AnyTurnEventSchema, None]:
    """Streams the events of the question's turn. Of a turn in another process only the result is streamed."""
    branch, replayed = submission.key.branch, list[TurnEvent]()
    while isinstance(source, TurnLease):
        try:
            outcome = await turns.wait_for_outcome(submission.key.tenant, source)
            if outcome is not None:
                yield _TURN_EVENT.validate_json(outcome)
                return
            source = await open_turn(turns, submission)
        except QuireError as error:
            replayed = [events.TurnFailed(error=error, steps=0, usage=Usage())]
            break
    if isinstance(source, RunningTurn):
        async with aclosing(source.stream()) as running:
            async for event in running:
                yield event
        return
    for event in source.replay() if isinstance(source, PriorAttempt) else replayed:
        yield turn_event_to_schema(event, branch=branch, to_problem=error_to_problem)
