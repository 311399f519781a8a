"""Registry of running turns in this process, with replay to late subscribers.

A turn belongs to its conversation, not to the connection that started it: every subscriber gets its events from the
start, and a disconnect does not stop it. A branch has at most one running turn.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import NamedTuple

from quire.agent.approvals import Allow, ApprovalDecision, Approvals, Deny
from quire.agent.limits import TurnLimits
from quire.agent.protocols import ToolRunner
from quire.agent.turn import run_turn
from quire.engine import Conversation
from quire.errors import NotFound, TurnInProgress
from quire.llm import Model
from quire.model import Message, ToolCallPart
from quire.model.events import TurnEvent

TurnObserver = Callable[[Conversation, Model], AbstractContextManager[Callable[[TurnEvent], None]]]
"""Context manager around a turn; it yields a function that is called with every event."""


class BranchKey(NamedTuple):
    """Identifies a branch across tenants."""

    tenant: str
    conversation: str
    branch: int


class RunningTurn:
    """A turn whose events any number of subscribers can stream from the start."""

    def __init__(self) -> None:
        self._events: list[TurnEvent] = []
        self._changed = asyncio.Event()
        self._stop_requested = asyncio.Event()
        self._pending_approvals: dict[str, asyncio.Future[ApprovalDecision]] = {}
        self._is_finished = False

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
            conversation,
            message,
            model=model,
            runners=runners,
            approvals=Approvals(self._request_approval),
            limits=limits,
            stop=self._stop_requested,
        )
        try:
            with observer(conversation, model) as observe:
                async with aclosing(events):
                    async for event in events:
                        observe(event)
                        self._events.append(event)
                        self._notify()
        finally:
            self._is_finished = True
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def stream_events(self) -> AsyncGenerator[TurnEvent, None]:
        """Streams all events, from the first one to the end of the turn."""
        position = 0
        while True:
            changed = self._changed
            while position < len(self._events):
                position += 1
                yield self._events[position - 1]
            if self._is_finished:
                return
            await changed.wait()

    def stop(self) -> None:
        """Asks the turn to stop; what has arrived of the reply is recorded."""
        self._stop_requested.set()

    def resolve_approval(self, call: str, *, approve: bool) -> None:
        """Approves or denies a tool call that `ApprovalRequested` announced."""
        approval = self._pending_approvals.get(call)
        if approval is None or approval.done():
            raise NotFound(
                f"No pending approval for the tool call {call!r}: it was already decided, or does not exist."
            )
        approval.set_result(Allow() if approve else Deny())

    async def _request_approval(self, call: ToolCallPart) -> ApprovalDecision:
        approval = self._pending_approvals[call.id] = asyncio.get_running_loop().create_future()
        try:
            return await approval
        finally:
            del self._pending_approvals[call.id]


class TurnRegistry:
    """Starts turns and finds running ones by branch."""

    def __init__(self) -> None:
        self.runners: Sequence[ToolRunner] = ()
        self.limits: TurnLimits | None = None
        self.observer: TurnObserver = lambda _conversation, _model: nullcontext(lambda _event: None)
        self.on_start: Callable[[BranchKey], None] = lambda _key: None
        """Called when a turn has started."""
        self._running: dict[BranchKey, tuple[RunningTurn, asyncio.Task[None]]] = {}
        self._subscribers: dict[BranchKey, list[Callable[[RunningTurn], None]]] = {}

    def start(
        self, key: BranchKey, conversation: Conversation, message: Message | str | None, *, model: Model
    ) -> RunningTurn:
        """Starts a turn; raises `TurnInProgress` if the branch has one."""
        if key in self._running:
            raise TurnInProgress(
                f"Branch {key.branch} of {key.conversation!r} already has a turn in progress; "
                "wait for it to end, or stop it."
            )
        running = RunningTurn()
        work = running.run(
            conversation, message, model=model, runners=self.runners, limits=self.limits, observer=self.observer
        )
        task = asyncio.get_running_loop().create_task(work)
        self._running[key] = running, task
        task.add_done_callback(lambda _: self._running.pop(key, None))
        for subscriber in self._subscribers.get(key, ()):
            subscriber(running)
        self.on_start(key)
        return running

    def get(self, key: BranchKey) -> RunningTurn | None:
        """Returns the branch's running turn."""
        running = self._running.get(key)
        return running[0] if running is not None else None

    def list_running(self) -> list[tuple[BranchKey, RunningTurn]]:
        return [(key, running) for key, (running, _) in self._running.items()]

    def subscribe(self, key: BranchKey, subscriber: Callable[[RunningTurn], None]) -> Callable[[], None]:
        """Calls `subscriber` with every turn that starts on a branch; returns a function that unsubscribes."""
        subscribers = self._subscribers.setdefault(key, [])
        subscribers.append(subscriber)

        def unsubscribe() -> None:
            subscribers.remove(subscriber)
            if not subscribers:
                self._subscribers.pop(key, None)

        return unsubscribe

    def __len__(self) -> int:
        return len(self._running)

    async def wait_until_idle(self) -> None:
        """Waits until no turn is running."""
        while self._running:
            await asyncio.wait([task for _, task in self._running.values()])

    async def stop_all(self) -> None:
        """Stops every turn and waits for the ends; what has arrived of the replies is recorded."""
        for running, _ in list(self._running.values()):
            running.stop()
        await self.wait_until_idle()
