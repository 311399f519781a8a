"""A running turn of this process: its events with replay to late subscribers, its approvals, its lease."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing

from quire.agent.approvals import Allow, ApprovalDecision, Approvals, Deny
from quire.agent.limits import TurnLimits
from quire.agent.protocols import ToolRunner
from quire.agent.turn import run_turn
from quire.engine import Conversation
from quire.errors import QuireError
from quire.llm import Model
from quire.log import SqlStore
from quire.log.turn_leases import IdempotencyKey
from quire.log.types import TurnLease
from quire.model import Message, ToolCallPart, Usage
from quire.model.events import ApprovalRequested, ReplyRecorded, TurnEnded, TurnEvent, TurnFailed
from quire.schemas.turn_events import AnyTurnEventSchema, TurnFailedSchema, turn_event_to_schema
from quire.server.event_replay import EventReplay
from quire.server.problems import UNEXPECTED_PROBLEM, error_to_problem

_log = logging.getLogger(__name__)

TurnObserver = Callable[[Conversation, Model], AbstractContextManager[Callable[[TurnEvent], None]]]
"""Context manager around a turn; it yields a function that is called with every event."""


class RunningTurn:
    """A turn whose events any number of subscribers can stream from the start.

    `store` is that of the turn's tenant.
    """

    def __init__(self, store: SqlStore, lease: TurnLease, idempotency_key: IdempotencyKey | None = None) -> None:
        self.lease, self.idempotency_key = lease, idempotency_key
        self._store = store
        self._replay = EventReplay[TurnEvent]()
        self._stop_requested = asyncio.Event()
        self._approval_id: str | None = None
        self._decision: asyncio.Future[ApprovalDecision]
        self._has_lease = True
        self._is_interrupted = False

    async def run(
        self,
        conversation: Conversation,
        message: Message | str | None,
        *,
        model: Model,
        runners: Sequence[ToolRunner],
        limits: TurnLimits | None,
        observer: TurnObserver,
    ) -> None:
        events = run_turn(
            conversation.with_lease(self.lease),
            message,
            model=model,
            runners=runners,
            approvals=Approvals(self._wait_for_approval),
            limits=limits,
            stop=self._stop_requested,
        )
        try:
            with observer(conversation, model) as observe:
                async with aclosing(events):
                    async for event in events:
                        observe(event)
                        await self._update_lease(event)
                        self._replay.add([event])
        finally:
            unexpected = TurnFailedSchema(branch=self.lease.branch, problem=UNEXPECTED_PROBLEM, steps=0, usage=Usage())
            await self._end_lease(unexpected)
            self._replay.add(is_finished=True)

    async def _update_lease(self, event: TurnEvent) -> None:
        """Writes what other processes must know into the lease, before a subscriber sees the event."""
        match event:
            case ApprovalRequested(call=call):
                await self._request_approval(call)
            case ReplyRecorded(entry=entry) if not entry.message.tool_calls:
                # The transaction that recorded the answer deleted the lease.
                self._has_lease = False
            case TurnEnded() | TurnFailed():
                last = turn_event_to_schema(event, branch=self.lease.branch, to_problem=error_to_problem)
                await self._end_lease(last)
            case _:
                pass

    async def _end_lease(self, outcome: AnyTurnEventSchema) -> None:
        """Ends the lease of a turn without an answer. After a shutdown another process may answer the question."""
        if not self._has_lease:
            return
        self._has_lease = False
        try:
            text = None if self._is_interrupted else outcome.model_dump_json()
            await self._store.end_turn_lease(self.lease, outcome=text)
        except QuireError as error:
            _log.warning("The lease of turn %s was not released and will expire: %s", self.lease.turn, error)

    def stream_events(self) -> AsyncGenerator[TurnEvent, None]:
        """Streams all events, from the first one to the end of the turn."""
        return self._replay.stream()

    def stop(self) -> None:
        """Asks the turn to stop; what has arrived of the reply is recorded."""
        self._stop_requested.set()

    def interrupt(self) -> None:
        """Stops the turn because the server shuts down."""
        self._is_interrupted = True
        self.stop()

    def resolve_approval(self, approval: str, *, approve: bool) -> None:
        """Resolves the pending approval if it has this id."""
        if approval == self._approval_id and not self._decision.done():
            self._decision.set_result(Allow() if approve else Deny())

    async def _request_approval(self, call: ToolCallPart) -> None:
        """Makes the call known to all processes. Calls request their approvals one after the other."""
        self._approval_id, self._decision = None, asyncio.get_running_loop().create_future()
        try:
            self._approval_id = await self._store.request_call_approval(self.lease, call.id)
        except QuireError as error:
            self._decision.set_exception(error)

    async def _wait_for_approval(self, call: ToolCallPart) -> ApprovalDecision:
        return await self._decision
