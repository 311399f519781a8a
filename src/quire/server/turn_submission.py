"""Submission of a question: starts its turn, attaches to the turn that answers it already, or replays its answer.

Any number of attempts with the same idempotency key, on any process, have one turn. An attempt that finds the turn in
another process waits for its end; if that process dies, it takes the turn over.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha256

from pydantic import TypeAdapter

from quire.engine import Conversation
from quire.errors import QuireError
from quire.llm import Model
from quire.log.turn_leases import IdempotencyKey, LeaseState
from quire.log.types import TurnLease
from quire.model import Message, Usage
from quire.model.events import TurnFailed
from quire.schemas.turn_events import AnyTurnEventSchema, TurnEventSchema, turn_event_to_schema
from quire.server.event_stream import stream_turn
from quire.server.idempotency import PriorAttempt, find_prior_attempt, replay_turn
from quire.server.problems import error_to_problem
from quire.server.running_turn import RunningTurn
from quire.server.turn_registry import BranchKey, TurnRegistry, turn_in_progress

_TURN_EVENT: TypeAdapter[AnyTurnEventSchema] = TypeAdapter(TurnEventSchema)

TurnSource = PriorAttempt | RunningTurn | TurnLease
"""The answer in the log, the turn in this process, or the lease of the turn in another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSubmission:
    """A question, or None to continue from the log, and the model that answers it."""

    key: BranchKey
    conversation: Conversation
    message: Message | None
    after: int | None
    """Number of the entry before the question; None if the question is not idempotent."""
    model: Model

    @property
    def idempotency_key(self) -> IdempotencyKey | None:
        return make_idempotency_key(self.message, self.after) if self.after is not None else None


def make_idempotency_key(message: Message | None, after: int) -> IdempotencyKey:
    text = message.canonical_json() if message is not None else ""
    return IdempotencyKey(after, sha256(text.encode(errors="surrogatepass")).digest())


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
                return _launch(turns, submission, granted.lease, is_recorded=attempt is not None)
        except BaseException:
            await turns.release(key, granted.lease)
            raise
        await turns.release(key, granted.lease)
        return attempt


async def _find_attempt(submission: TurnSubmission) -> tuple[PriorAttempt | None, int | None]:
    """The prior attempt and the head of the branch that was read before it; None without an idempotency key."""
    if submission.after is None:
        return None, None
    conversation = submission.conversation
    head = await conversation.engine.store.get_branch(conversation.id, conversation.branch)
    return await find_prior_attempt(conversation, submission.message, after=submission.after, head=head), head.head_seq


def _launch(turns: TurnRegistry, submission: TurnSubmission, lease: TurnLease, *, is_recorded: bool) -> RunningTurn:
    return turns.launch(
        submission.key,
        lease,
        submission.conversation,
        None if is_recorded else submission.message,
        model=submission.model,
        idempotency_key=submission.idempotency_key,
    )


async def stream_submission(
    turns: TurnRegistry, submission: TurnSubmission, source: TurnSource
) -> AsyncGenerator[AnyTurnEventSchema, None]:
    """Streams the events of the question's turn. Of a turn in another process only the result is streamed."""
    branch = submission.key.branch
    while isinstance(source, TurnLease):
        try:
            outcome = await turns.wait_for_outcome(submission.key.tenant, source)
            if outcome is not None:
                yield _TURN_EVENT.validate_json(outcome)
                return
            source = await open_turn(turns, submission)
        except QuireError as error:
            failed = TurnFailed(error=error, steps=0, usage=Usage())
            yield turn_event_to_schema(failed, branch=branch, to_problem=error_to_problem)
            return
    events = replay_turn(source) if isinstance(source, PriorAttempt) else source.stream_events()
    async with aclosing(stream_turn(events, branch=branch)) as turn:
        async for event in turn:
            yield event
