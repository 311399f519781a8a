"""A running turn of this process: its events, its approvals, its lease."""

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
from quire.log.types import TurnLease
from quire.model import Message, ToolCallPart, Usage
from quire.model.events import ApprovalRequested, ReplyRecorded, TurnEnded, TurnEvent, TurnFailed
from quire.schemas.turn_events import AnyTurnEventSchema, TurnEndedSchema, TurnFailedSchema, turn_event_to_schema
from quire.server.problems import UNEXPECTED_PROBLEM, error_to_problem
from quire.store import SqlStore
from quire.turns.leases import IdempotencyKey, LeaseState

_log = logging.getLogger(__name__)

TurnObserver = Callable[[Conversation, Model], AbstractContextManager[Callable[[TurnEvent], None]]]
"""Context manager around a turn. It yields a function that is called with every event."""


class TurnStream:
    """The events of a turn, in the form that clients receive. Every subscriber gets them from the first one on."""

    def __init__(self) -> None:
        self.events: list[AnyTurnEventSchema] = []
        self._listeners: list[Callable[[AnyTurnEventSchema], None]] = []

    @property
    def is_finished(self) -> bool:
        return bool(self.events) and is_final(self.events[-1])

    def add(self, event: AnyTurnEventSchema) -> None:
        self.events.append(event)
        for listener in list(self._listeners):
            listener(event)

    def subscribe(self, listener: Callable[[AnyTurnEventSchema], None]) -> None:
        """Calls `listener` with all events so far, and then with each further one."""
        for event in self.events:
            listener(event)
        self._listeners.append(listener)

    def unsubscribe(self, listener: Callable[[AnyTurnEventSchema], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    async def stream(self) -> AsyncGenerator[AnyTurnEventSchema, None]:
        """Streams all events, from the first one to the end of the turn."""
        queue = asyncio.Queue[AnyTurnEventSchema]()
        self.subscribe(queue.put_nowait)
        try:
            while True:
                event = await queue.get()
                yield event
                if is_final(event):
                    return
        finally:
            self.unsubscribe(queue.put_nowait)


def is_final(event: AnyTurnEventSchema) -> bool:
    return isinstance(event, TurnEndedSchema | TurnFailedSchema)


class RunningTurn(TurnStream):
    """A turn that runs in this process. `store` is the store of the turn's tenant."""

    def __init__(self, store: SqlStore, lease: TurnLease, idempotency_key: IdempotencyKey | None = None) -> None:
        super().__init__()
        self.lease, self.idempotency_key = lease, idempotency_key
        self._store = store
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
        async def wait_for_approval(_: ToolCallPart) -> ApprovalDecision:
            return await self._decision

        events = run_turn(
            Conversation(conversation.engine, conversation.id, conversation.branch, lease=self.lease),
            message,
            model=model,
            runners=runners,
            approvals=Approvals(wait_for_approval),
            limits=limits,
            stop=self._stop_requested,
        )
        branch = self.lease.branch
        final: AnyTurnEventSchema = TurnFailedSchema(branch=branch, problem=UNEXPECTED_PROBLEM, steps=0, usage=Usage())
        try:
            with observer(conversation, model) as observe:
                async with aclosing(events):
                    async for event in events:
                        observe(event)
                        # What other processes must know is in the lease before a subscriber sees the event.
                        if isinstance(event, ApprovalRequested):
                            await self._request_approval(event.call)
                        elif isinstance(event, ReplyRecorded) and not event.entry.message.tool_calls:
                            # The transaction that recorded the answer deleted the lease.
                            self._has_lease = False
                        schema = turn_event_to_schema(event, branch=branch, to_problem=error_to_problem)
                        if isinstance(event, TurnEnded | TurnFailed):
                            final = schema
                        else:
                            self.add(schema)
        finally:
            await self._end_lease(final)
            self.add(final)

    async def _request_approval(self, call: ToolCallPart) -> None:
        """Makes the call known to all processes. Calls request their approvals one after the other."""
        self._approval_id, self._decision = None, asyncio.get_running_loop().create_future()
        try:
            self._approval_id = await self._store.leases.request_approval(self.lease, call.id)
        except QuireError as error:
            self._decision.set_exception(error)

    async def _end_lease(self, outcome: AnyTurnEventSchema) -> None:
        """Ends the lease of a turn without an answer. After a shutdown another process may answer the question."""
        if not self._has_lease:
            return
        try:
            text = None if self._is_interrupted else outcome.model_dump_json()
            await self._store.leases.end(self.lease, outcome=text)
        except QuireError as error:
            _log.warning("The lease of turn %s was not released and will expire: %s", self.lease.turn, error)

    def stop(self) -> None:
        """Asks the turn to stop. What has arrived of the reply is recorded."""
        self._stop_requested.set()

    def interrupt(self) -> None:
        """Stops the turn because the server shuts down."""
        self._is_interrupted = True
        self.stop()

    def apply_requests(self, state: LeaseState) -> None:
        """Does what other processes requested through the lease: a stop, or the decision on a tool call."""
        if state.stop_requested:
            self.stop()
        if state.approval is not None and state.is_approved is not None:
            self.resolve_approval(state.approval, approve=state.is_approved)

    def resolve_approval(self, approval: str, *, approve: bool) -> None:
        """Resolves the pending approval if it has this id."""
        if approval == self._approval_id and not self._decision.done():
            self._decision.set_result(Allow() if approve else Deny())
