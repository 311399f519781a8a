"""Shows the turns that run in this process to the event streams of other processes.

A process announces that a turn has started. One that has a stream of the conversation responds that it is watching, and
only then are the events of the turn written to the database, from the first on, those of some time together. A process
that opens a stream later says the same. `quire.server.remote_turns` is the other side.
"""

import asyncio
from contextlib import suppress

from quire.errors import QuireError
from quire.log import SqlStore
from quire.log.ids import new_id
from quire.log.notifications import RESUMED, Notification, topic_of
from quire.schemas.turn_events import AnyTurnEventSchema
from quire.server.event_stream import stream_turn
from quire.server.running_turn import RunningTurn
from quire.server.turn_registry import BranchKey, TurnRegistry

TURN_STARTED = "turn started"
"""Kind of the notification that a turn has started in a conversation."""
WATCHING = "watching"
"""Kind of the notification that a process has an event stream of a conversation."""
TURN_EVENTS = "turn events"
"""Kind of the notification that events of a turn were written; its detail is the turn's id."""
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
        self._relayed: dict[RunningTurn, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._is_subscribed = False
        turns.on_start = self._announce

    def _announce(self, key: BranchKey) -> None:
        notifications = self._store.notifications
        if not self._is_subscribed:
            self._is_subscribed = True
            notifications.subscribe(self._on_notification)
        notifications.publish(TURN_STARTED, topic_of(key.tenant, key.conversation))

    def _on_notification(self, notification: Notification) -> None:
        if notification.kind == RESUMED:
            # Who watches may have said so while this process could not receive it.
            for key, _ in self._turns.list_running():
                self._store.notifications.publish(TURN_STARTED, topic_of(key.tenant, key.conversation))
        elif notification.kind == WATCHING:
            for key, running in self._turns.list_running():
                if topic_of(key.tenant, key.conversation) == notification.topic:
                    self._relay(key, running)

    def _relay(self, key: BranchKey, running: RunningTurn) -> None:
        if (turn := self._relayed.get(running)) is not None:
            self._store.notifications.publish(TURN_EVENTS, topic_of(key.tenant, key.conversation), turn)
            return
        self._relayed[running] = turn = new_id()
        task = asyncio.get_running_loop().create_task(self._write_events(key, running, turn))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_events(self, key: BranchKey, running: RunningTurn, turn: str) -> None:
        events, changed = list[AnyTurnEventSchema](), asyncio.Event()

        async def collect() -> None:
            try:
                async for event in stream_turn(running.stream_events(), branch=key.branch):
                    events.append(event)
                    changed.set()
            finally:
                changed.set()

        collecting = asyncio.get_running_loop().create_task(collect())
        written = 0
        try:
            while written < len(events) or not collecting.done():
                await changed.wait()
                changed.clear()
                written += await self._write(key, turn, number=written, events=events[written:])
                if written < len(events):
                    changed.set()
                if not collecting.done():
                    await asyncio.sleep(WRITE_INTERVAL_SECONDS)
        finally:
            collecting.cancel()
            del self._relayed[running]
            self._schedule_deletion(key, turn)

    async def _write(self, key: BranchKey, turn: str, *, number: int, events: list[AnyTurnEventSchema]) -> int:
        """Writes events and returns how many; none if the store is away."""
        if not events:
            return 0
        array = f"[{','.join(event.model_dump_json() for event in events)}]"
        try:
            await self._store.for_tenant(key.tenant).append_turn_events(key.conversation, turn, number, array)
        except QuireError:
            await asyncio.sleep(RETRY_SECONDS)
            return 0
        self._store.notifications.publish(TURN_EVENTS, topic_of(key.tenant, key.conversation), turn)
        return len(events)

    def _schedule_deletion(self, key: BranchKey, turn: str) -> None:
        loop = asyncio.get_running_loop()

        def start() -> None:
            self._timers.discard(timer)
            task = loop.create_task(self._delete(key, turn))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        timer = loop.call_later(DELETION_DELAY_SECONDS, start)
        self._timers.add(timer)

    async def _delete(self, key: BranchKey, turn: str) -> None:
        with suppress(QuireError):
            await self._store.for_tenant(key.tenant).delete_turn_events(key.conversation, turn)

    async def close(self) -> None:
        """Waits a little until the last events of ended turns are written. Their rows expire."""
        for timer in self._timers:
            timer.cancel()
        if self._tasks:
            _, unfinished = await asyncio.wait(self._tasks, timeout=2 * RETRY_SECONDS)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
