"""Registry of running turns in this process.

A turn belongs to its conversation, not to the connection that started it: every subscriber gets its events from the
start, and a disconnect does not stop it. A branch has at most one running turn on all servers: that of the process with
the branch's lease (`quire.log.turn_leases`).
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import NamedTuple
from weakref import WeakValueDictionary

from quire.agent.limits import TurnLimits
from quire.agent.protocols import ToolRunner
from quire.engine import Conversation
from quire.errors import NotFound, TurnInProgress
from quire.llm import Model
from quire.log import SqlStore
from quire.log.ids import new_id
from quire.log.turn_leases import IdempotencyKey, LeaseGrant, LeaseState
from quire.log.types import TurnLease
from quire.model import Message
from quire.server.running_turn import RunningTurn, TurnObserver
from quire.server.turn_heartbeat import TurnHeartbeat

OUTCOME_POLL_SECONDS = 0.5
"""Seconds between two reads of the lease of a turn that runs in another process."""


class BranchKey(NamedTuple):
    """Identifies a branch across tenants."""

    tenant: str
    conversation: str
    branch: int


class TurnRegistry:
    """Starts turns, finds running ones by branch, and waits for those of other processes."""

    def __init__(self, store: SqlStore) -> None:
        self.runners: Sequence[ToolRunner] = ()
        self.limits: TurnLimits | None = None
        self.observer: TurnObserver = lambda _conversation, _model: nullcontext(lambda _event: None)
        self.on_start: Callable[[BranchKey], None] = lambda _key: None
        """Called when a turn has started."""
        self._store = store
        self._owner = f"{socket.gethostname()}/{os.getpid()}/{new_id()}"
        self._running: dict[BranchKey, tuple[RunningTurn, asyncio.Task[None]]] = {}
        self._subscribers: dict[BranchKey, list[Callable[[RunningTurn], None]]] = {}
        self._locks: WeakValueDictionary[BranchKey, asyncio.Lock] = WeakValueDictionary()
        self._waits: dict[TurnLease, asyncio.Task[str | None]] = {}
        self._stopping = asyncio.Event()
        self._heartbeat = TurnHeartbeat(store, self._group_by_tenant)

    def get_lock(self, key: BranchKey) -> asyncio.Lock:
        """The lock under which requests of this process look for the branch's turn and start it."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def start(
        self, key: BranchKey, conversation: Conversation, message: Message | str | None, *, model: Model
    ) -> RunningTurn:
        """Starts a turn; raises `TurnInProgress` if the branch has one."""
        granted = await self.acquire(key)
        if isinstance(granted, LeaseState):
            raise turn_in_progress(key)
        return self.launch(key, granted.lease, conversation, message, model=model)

    async def acquire(self, key: BranchKey, idempotency_key: IdempotencyKey | None = None) -> LeaseGrant | LeaseState:
        """Acquires the lease of a branch; returns the state of the lease if a turn is running there."""
        # Reading may work where writing does not, and the model is called before the reply is written.
        await self._store.check_known_outage()
        return await self._store.for_tenant(key.tenant).acquire_turn_lease(
            key.conversation, key.branch, owner=self._owner, idempotency_key=idempotency_key
        )

    async def release(self, key: BranchKey, lease: TurnLease) -> None:
        """Releases a lease for which no turn was launched."""
        await self._store.for_tenant(key.tenant).end_turn_lease(lease)

    def launch(
        self,
        key: BranchKey,
        lease: TurnLease,
        conversation: Conversation,
        message: Message | str | None,
        *,
        model: Model,
        idempotency_key: IdempotencyKey | None = None,
    ) -> RunningTurn:
        """Starts the turn that has this lease."""
        running = RunningTurn(self._store.for_tenant(key.tenant), lease, idempotency_key)
        work = running.run(
            conversation, message, model=model, runners=self.runners, limits=self.limits, observer=self.observer
        )
        task = asyncio.get_running_loop().create_task(work)
        self._running[key] = running, task
        task.add_done_callback(lambda _: self._remove(key))
        self._heartbeat.start()
        for subscriber in self._subscribers.get(key, ()):
            subscriber(running)
        self.on_start(key)
        return running

    def _remove(self, key: BranchKey) -> None:
        self._running.pop(key, None)
        self._heartbeat.notify()

    def get(self, key: BranchKey) -> RunningTurn | None:
        """Returns the branch's running turn, if it is one of this process."""
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

    async def stop(self, key: BranchKey) -> bool:
        """Stops the branch's turn, in whichever process it runs; returns whether there is one."""
        if (running := self.get(key)) is not None:
            running.stop()
            return True
        return await self._store.for_tenant(key.tenant).request_turn_stop(key.conversation, key.branch)

    async def decide_approval(self, key: BranchKey, call: str, *, approve: bool) -> None:
        """Approves or denies a tool call, in whichever process its turn runs."""
        store = self._store.for_tenant(key.tenant)
        # The database decides which of several decisions is the first.
        approval = await store.decide_call_approval(key.conversation, key.branch, call, approve=approve)
        if approval is None:
            raise NotFound(
                f"No pending approval for the tool call {call!r} on branch {key.branch} of {key.conversation!r}: "
                "it was already decided, or does not exist."
            )
        if (running := self.get(key)) is not None:
            running.resolve_approval(approval, approve=approve)

    async def wait_for_outcome(self, tenant: str, lease: TurnLease) -> str | None:
        """Waits for the end of a turn in another process; returns the outcome of a turn without an answer.

        None if the log has the answer, or if the process died and its lease expired. All requests that wait for a turn
        share one poll.
        """
        if lease not in self._waits:
            task = asyncio.get_running_loop().create_task(self._poll_outcome(tenant, lease))
            self._waits[lease] = task
            task.add_done_callback(self._remove_wait)
        return await asyncio.shield(self._waits[lease])

    def _remove_wait(self, task: asyncio.Task[str | None]) -> None:
        self._waits = {lease: each for lease, each in self._waits.items() if each is not task}
        # The requests that waited may be gone: retrieved here, so that asyncio does not report it.
        if not task.cancelled():
            task.exception()

    async def _poll_outcome(self, tenant: str, lease: TurnLease) -> str | None:
        store = self._store.for_tenant(tenant)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(OUTCOME_POLL_SECONDS):
                    await self._stopping.wait()
                raise TurnInProgress("The turn runs in another server process, and this one is stopping; retry.")
            state = await store.get_turn_lease(lease.conversation, lease.branch)
            if state is None or state.lease != lease or not state.is_running:
                return state.outcome if state is not None and state.lease == lease else None

    def _group_by_tenant(self) -> dict[str, list[RunningTurn]]:
        by_tenant: dict[str, list[RunningTurn]] = {}
        for key, (running, _) in self._running.items():
            by_tenant.setdefault(key.tenant, []).append(running)
        return by_tenant

    def __len__(self) -> int:
        return len(self._running)

    async def wait_until_idle(self) -> None:
        """Waits until no turn is running."""
        while self._running:
            await asyncio.wait([task for _, task in self._running.values()])
        while self._stopping.is_set() and self._waits:
            await asyncio.wait(self._waits.values())
        await self._heartbeat.wait_until_idle()

    async def stop_all(self) -> None:
        """Stops every turn and waits for the ends; what has arrived of the replies is recorded."""
        self._stopping.set()
        for running, _ in list(self._running.values()):
            running.interrupt()
        await self.wait_until_idle()


def turn_in_progress(key: BranchKey) -> TurnInProgress:
    return TurnInProgress(
        f"Branch {key.branch} of {key.conversation!r} already has a turn in progress; wait for it to end, or stop it."
    )
