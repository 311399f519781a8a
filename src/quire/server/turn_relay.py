"""Relays the turns of this process to the event streams of other processes.

A process announces that a turn has started. A process that has a stream of the conversation responds that it is
watching. Only then are the events of the turn written to the database, from the first one on, several at a time. A
process that opens a stream later also says that it is watching. `quire.server.live_events` is the other side.
"""

import asyncio
from contextlib import suppress

from quire.db.notifications import RESUMED, Notification, topic_of
from quire.errors import QuireError
from quire.schemas.turn_events import AnyTurnEventSchema
from quire.server.running_turn import RunningTurn, is_final
from quire.server.turn_registry import BranchKey, TurnRegistry
from quire.store import SqlStore

TURN_STARTED = "turn started"
"""Kind of the notification that a turn has started in a conversation."""
WATCHING = "watching"
"""Kind of the notification that a process has an event stream of a conversation."""
TURN_EVENTS = "turn events"
"""Kind of the notification that events of a turn were written. Its detail is the turn's id."""
WRITE_INTERVAL_SECONDS = 0.2
"""Minimum time between two writes of a turn's events."""
RETRY_SECONDS = 1.0
"""Seconds before a failed write is repeated."""
DELETION_DELAY_SECONDS = 60.0
"""Seconds after the end of a turn in which other processes have to read its events."""


class TurnRelay:
    """Writes the events of turns that other processes watch."""

    def __init__(self, store: SqlStore, turns: TurnRegistry) -> None:
        self._store, self._turns = store, turns
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By the id of the turn."""
        self._is_closing = asyncio.Event()
        self._is_subscribed = False
        turns.listeners.append(self._announce)

    def _announce(self, key: BranchKey, _: RunningTurn) -> None:
        notifications = self._store.notifications
        if not self._is_subscribed:
            self._is_subscribed = True
            notifications.subscribe(self._on_notification)
        notifications.publish(TURN_STARTED, topic_of(key.tenant, key.conversation))

    def _on_notification(self, notification: Notification) -> None:
        if notification.kind not in (RESUMED, WATCHING):
            return
        for key, running in self._turns.list_running():
            topic = topic_of(key.tenant, key.conversation)
            if notification.kind == RESUMED:
                # A process may have said that it is watching while this one could not receive it.
                self._store.notifications.publish(TURN_STARTED, topic)
            elif notification.topic == topic:
                self._relay(key, running)

    def _relay(self, key: BranchKey, running: RunningTurn) -> None:
        turn = running.lease.turn
        if turn in self._tasks:
            self._store.notifications.publish(TURN_EVENTS, topic_of(key.tenant, key.conversation), turn)
            return
        self._tasks[turn] = task = asyncio.get_running_loop().create_task(self._write_events(key, running))
        task.add_done_callback(lambda _: self._tasks.pop(turn))

    async def _write_events(self, key: BranchKey, running: RunningTurn) -> None:
        """Writes the events of a turn until its end, and deletes them some time later."""
        store, turn = self._store.for_tenant(key.tenant), running.lease.turn
        queue = asyncio.Queue[AnyTurnEventSchema]()
        running.subscribe(queue.put_nowait)
        written, is_finished = 0, False
        while not is_finished:
            events = [await queue.get(), *(queue.get_nowait() for _ in range(queue.qsize()))]
            array = f"[{','.join(event.model_dump_json() for event in events)}]"
            while True:
                try:
                    await store.turn_events.append(key.conversation, turn, written, array)
                    break
                except QuireError:
                    await asyncio.sleep(RETRY_SECONDS)
            self._store.notifications.publish(TURN_EVENTS, topic_of(key.tenant, key.conversation), turn)
            written += len(events)
            is_finished = is_final(events[-1])
            if not is_finished:
                await asyncio.sleep(WRITE_INTERVAL_SECONDS)
        # When the server stops, the rows stay until they expire.
        with suppress(TimeoutError):
            async with asyncio.timeout(DELETION_DELAY_SECONDS):
                await self._is_closing.wait()
            return
        with suppress(QuireError):
            await store.turn_events.delete(key.conversation, turn)

    async def close(self) -> None:
        """Waits a little until the last events of ended turns are written."""
        self._is_closing.set()
        if self._tasks:
            _, unfinished = await asyncio.wait(self._tasks.values(), timeout=2 * RETRY_SECONDS)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
