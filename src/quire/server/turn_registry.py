"""Registry of running turns in this process, and the heartbeat of their leases.

A turn belongs to its conversation, not to the connection that started it: every subscriber gets its events from the
start, and a disconnect does not stop it. A branch has at most one running turn on all servers. It runs in the process
that holds the branch's lease (`quire.turns.leases`).
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import NamedTuple
from weakref import WeakValueDictionary

from quire.agent.limits import TurnLimits
from quire.agent.protocols import ToolRunner
from quire.engine import Conversation
from quire.errors import NotFound, QuireError, TurnInProgress
from quire.llm import Model
from quire.log.types import TurnLease
from quire.model import Message
from quire.model.ids import new_id
from quire.server.running_turn import RunningTurn, TurnObserver
from quire.store import SqlStore
from quire.turns.leases import (
    LEASE_SECONDS,
    IdempotencyKey,
    LeaseGrant,
    LeaseState,
)

_log = logging.getLogger(__name__)

OUTCOME_POLL_SECONDS = 0.5
"""Seconds between two reads of the lease of a turn that runs in another process."""
SIGNAL_POLL_SECONDS = 1.0
"""Seconds between two reads of the stops and approvals that other processes received."""
RENEWAL_SECONDS = LEASE_SECONDS / 3
"""Seconds between two renewals: two may fail before a lease expires."""


class BranchKey(NamedTuple):
    """Identifies a branch across tenants."""

    tenant: str
    conversation: str
    branch: int


TurnListener = Callable[[BranchKey, RunningTurn], None]


class TurnRegistry:
    """Starts turns, finds running ones by branch, and waits for turns of other processes."""

    def __init__(self, store: SqlStore) -> None:
        self.runners: Sequence[ToolRunner] = ()
        self.limits: TurnLimits | None = None
        self.observer: TurnObserver = lambda _conversation, _model: nullcontext(lambda _event: None)
        self.listeners: list[TurnListener] = []
        """Called with every turn that starts."""
        self._store = store
        self._owner = f"{socket.gethostname()}/{os.getpid()}/{new_id()}"
        self._running: dict[BranchKey, tuple[RunningTurn, asyncio.Task[None]]] = {}
        self._locks: WeakValueDictionary[BranchKey, asyncio.Lock] = WeakValueDictionary()
        self._stopping = asyncio.Event()
        self._heartbeat: asyncio.Task[None] | None = None
        self._turn_ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._running)

    def get(self, key: BranchKey) -> RunningTurn | None:
        """Returns the branch's running turn, if this process runs it."""
        running = self._running.get(key)
        return running[0] if running is not None else None

    def list_running(self) -> list[tuple[BranchKey, RunningTurn]]:
        return [(key, running) for key, (running, _) in self._running.items()]

    def get_lock(self, key: BranchKey) -> asyncio.Lock:
        """The lock under which requests of this process look for the branch's turn and start it."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def start(
        self, key: BranchKey, conversation: Conversation, message: Message | str | None, *, model: Model
    ) -> RunningTurn:
        """Starts a turn. Raises `TurnInProgress` if the branch has one."""
        granted = await self.acquire(key)
        if isinstance(granted, LeaseState):
            raise turn_in_progress(key)
        return self.launch(key, granted.lease, conversation, message, model=model)

    async def acquire(self, key: BranchKey, idempotency_key: IdempotencyKey | None = None) -> LeaseGrant | LeaseState:
        """Acquires the lease of a branch. Returns the state of the lease if a turn is running there."""
        # Reading may work where writing does not, and the model is called before the reply is written.
        store = self._store.for_tenant(key.tenant)
        await store.check_recordable()
        return await store.leases.acquire(
            key.conversation, key.branch, owner=self._owner, idempotency_key=idempotency_key
        )

    async def release(self, key: BranchKey, lease: TurnLease) -> None:
        """Releases a lease for which no turn was launched."""
        await self._store.for_tenant(key.tenant).leases.end(lease)

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
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        self._running[key] = running, task

        def remove(_: asyncio.Task[None]) -> None:
            self._running.pop(key, None)
            self._turn_ended.set()

        task.add_done_callback(remove)
        if self._heartbeat is None or self._heartbeat.done():
            self._heartbeat = loop.create_task(self._renew_leases())
        for listener in self.listeners:
            listener(key, running)
        return running

    async def _renew_leases(self) -> None:
        """Renews the leases of all turns, and reads what other processes request of them, while there are turns.

        A turn of less than a second has no heartbeat.
        """
        next_renewal = time.monotonic() + RENEWAL_SECONDS
        while self._running:
            self._turn_ended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(SIGNAL_POLL_SECONDS):
                    await self._turn_ended.wait()
                continue
            is_renewal = time.monotonic() >= next_renewal
            if is_renewal:
                next_renewal = time.monotonic() + RENEWAL_SECONDS
            by_tenant: dict[str, dict[str, RunningTurn]] = {}
            for key, running in self.list_running():
                by_tenant.setdefault(key.tenant, {})[running.lease.turn] = running
            for tenant, turns in by_tenant.items():
                store = self._store.for_tenant(tenant)
                try:
                    states = await (store.leases.renew(turns) if is_renewal else store.leases.list(turns))
                    for state in states:
                        turns.pop(state.lease.turn).apply_requests(state)
                    for lease in [turn.lease for turn in turns.values()] if is_renewal else ():
                        current = await store.leases.get(lease.conversation, lease.branch)
                        # Without a row, the answer was recorded meanwhile.
                        if current is not None and current.lease != lease:
                            turns[lease.turn].stop()
                except QuireError as error:
                    # Retried at the next beat.
                    next_renewal = 0.0
                    _log.warning("The leases of running turns were not renewed: %s", error)

    async def stop(self, key: BranchKey) -> bool:
        """Stops the branch's turn, in whichever process it runs. Returns whether there is one."""
        if (running := self.get(key)) is not None:
            running.stop()
            return True
        return await self._store.for_tenant(key.tenant).leases.request_stop(key.conversation, key.branch)

    async def decide_approval(self, key: BranchKey, call: str, *, approve: bool) -> None:
        """Approves or denies a tool call, in whichever process its turn runs."""
        store = self._store.for_tenant(key.tenant)
        # The database decides which of several decisions is the first.
        approval = await store.leases.decide_approval(key.conversation, key.branch, call, approve=approve)
        if approval is None:
            raise NotFound(
                f"No pending approval for the tool call {call!r} on branch {key.branch} of {key.conversation!r}: "
                "it was already decided, or does not exist."
            )
        if (running := self.get(key)) is not None:
            running.resolve_approval(approval, approve=approve)

    async def wait_for_outcome(self, tenant: str, lease: TurnLease) -> str | None:
        """Waits for the end of a turn in another process. Returns the outcome of a turn without an answer.

        None if the log has the answer, or if the process died and its lease expired.
        """
        store = self._store.for_tenant(tenant)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(OUTCOME_POLL_SECONDS):
                    await self._stopping.wait()
                raise TurnInProgress("The turn runs in another server process, and this one is stopping; retry.")
            state = await store.leases.get(lease.conversation, lease.branch)
            if state is None or state.lease != lease:
                return None
            if not state.is_running:
                return state.outcome

    async def wait_until_idle(self) -> None:
        """Waits until no turn is running."""
        while self._running:
            await asyncio.wait([task for _, task in self._running.values()])
        if self._heartbeat is not None:
            await asyncio.wait([self._heartbeat])

    async def stop_all(self) -> None:
        """Stops every turn and waits for the ends. What has arrived of the replies is recorded."""
        self._stopping.set()
        for _, running in self.list_running():
            running.interrupt()
        await self.wait_until_idle()


def turn_in_progress(key: BranchKey) -> TurnInProgress:
    return TurnInProgress(
        f"Branch {key.branch} of {key.conversation!r} already has a turn in progress; wait for it to end, or stop it."
    )
