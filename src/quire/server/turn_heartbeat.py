"""Heartbeat of this process's turns: renews their leases, and reads what other processes request of them.

One task serves all turns, and runs only while there are any: a turn of less than a second has no heartbeat.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from quire.errors import QuireError
from quire.log import SqlStore
from quire.log.turn_leases import LEASE_SECONDS, LeaseState
from quire.server.running_turn import RunningTurn

_log = logging.getLogger(__name__)

SIGNAL_POLL_SECONDS = 1.0
"""Seconds between two reads of the stops and approvals that other processes received."""
RENEWAL_SECONDS = LEASE_SECONDS / 3
"""Seconds between two renewals: two may fail before a lease expires."""


class TurnHeartbeat:
    """Renews the leases of running turns, which `list_running` returns by tenant."""

    def __init__(self, store: SqlStore, list_running: Callable[[], Mapping[str, Collection[RunningTurn]]]) -> None:
        self._store, self._list_running = store, list_running
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._next_renewal = 0.0

    def start(self) -> None:
        """Starts the task unless it runs; it ends when no turn is running."""
        if self._task is None or self._task.done():
            self._next_renewal = time.monotonic() + RENEWAL_SECONDS
            self._task = asyncio.get_running_loop().create_task(self._run())

    def notify(self) -> None:
        """Ends the task if no turn is running."""
        self._changed.set()

    async def wait_until_idle(self) -> None:
        """Waits for the end of the task, after the last turn."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._list_running():
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(SIGNAL_POLL_SECONDS):
                    await self._changed.wait()
                continue
            await self._beat()

    async def _beat(self) -> None:
        is_renewal = time.monotonic() >= self._next_renewal
        next_renewal = time.monotonic() + RENEWAL_SECONDS
        for tenant, running in self._list_running().items():
            turns = {turn.lease.turn: turn for turn in running}
            try:
                if is_renewal:
                    await self._renew(self._store.for_tenant(tenant), turns)
                else:
                    _apply_signals(turns, await self._store.for_tenant(tenant).list_turn_leases(turns))
            except QuireError as error:
                # Retried at the next beat.
                next_renewal = 0.0
                _log.warning("The leases of running turns were not renewed: %s", error)
        if is_renewal:
            self._next_renewal = next_renewal

    async def _renew(self, store: SqlStore, turns: Mapping[str, RunningTurn]) -> None:
        states = await store.renew_turn_leases(turns)
        _apply_signals(turns, states)
        renewed = {state.lease.turn for state in states}
        for turn in turns.values():
            if turn.lease.turn in renewed:
                continue
            current = await store.get_turn_lease(turn.lease.conversation, turn.lease.branch)
            # Without a row, the answer was recorded meanwhile.
            if current is not None and current.lease != turn.lease:
                turn.stop()


def _apply_signals(turns: Mapping[str, RunningTurn], states: Collection[LeaseState]) -> None:
    for state in states:
        turn = turns[state.lease.turn]
        if state.stop_requested:
            turn.stop()
        if state.approval is not None and state.is_approved is not None:
            turn.resolve_approval(state.approval, approve=state.is_approved)
