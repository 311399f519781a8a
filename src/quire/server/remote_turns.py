"""Turns that run in other processes, for the event streams of this one. `quire.server.turn_relay` is the other side."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from quire.errors import QuireError
from quire.log import SqlStore
from quire.log.notifications import RESUMED, ConversationKey, Notification, topic_of
from quire.model import Usage
from quire.schemas.turn_events import (
    AnyTurnEventSchema,
    Problem,
    TurnEndedSchema,
    TurnEventSchema,
    TurnFailedSchema,
)
from quire.server.event_replay import EventReplay
from quire.server.turn_relay import TURN_EVENTS, TURN_STARTED, WATCHING

SILENCE_SECONDS = 10.0
"""Seconds without news of a turn after which its process must say that it still runs."""
MAX_SILENCES = 3
"""Unanswered requests after which a turn counts as lost."""
_LOST_PROBLEM = Problem(
    title="Service Unavailable",
    status=503,
    code="turn_lost",
    detail="The server that ran the turn no longer responds; send the question again.",
)

_events_adapter: TypeAdapter[list[AnyTurnEventSchema]] = TypeAdapter(list[TurnEventSchema])


class RemoteTurn:
    """The events of a turn of another process, from the start, for any number of subscribers."""

    def __init__(self, store: SqlStore, key: ConversationKey, turn: str) -> None:
        self._store, self._key, self._turn = store, key, turn
        self._replay = EventReplay[AnyTurnEventSchema]()
        self._news = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        return self._replay.is_finished

    def notify(self) -> None:
        """Makes it read what its process has written, or only learn that it still runs."""
        self._news.set()

    async def follow(self) -> None:
        """Reads the events until the last one."""
        silences = 0
        while not self.is_finished:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    await self._news.wait()
                silences = 0
            except TimeoutError:
                silences += 1
                self._store.notifications.publish(WATCHING, topic_of(*self._key))
            self._news.clear()
            with suppress(QuireError):
                await self._read()
            if silences > MAX_SILENCES and not self.is_finished:
                branch = self._replay.events[0].branch if self._replay.events else 0
                self._add([TurnFailedSchema(branch=branch, problem=_LOST_PROBLEM, steps=0, usage=Usage())])

    async def _read(self) -> None:
        tenant, conversation = self._key
        store = self._store.for_tenant(tenant)
        for array in await store.list_turn_events(conversation, self._turn, first=len(self._replay.events)):
            self._add(_events_adapter.validate_json(array))

    def _add(self, events: list[AnyTurnEventSchema]) -> None:
        self._replay.add(events, is_finished=isinstance(events[-1], TurnEndedSchema | TurnFailedSchema))

    def stream_events(self) -> AsyncGenerator[AnyTurnEventSchema, None]:
        """Streams all events, from the first one to the end of the turn."""
        return self._replay.stream()


RemoteTurnListener = Callable[[RemoteTurn], None]


@dataclass
class _WatchedConversation:
    key: ConversationKey
    listeners: list[RemoteTurnListener] = field(default_factory=list[RemoteTurnListener])
    turns: dict[str, RemoteTurn] = field(default_factory=dict[str, RemoteTurn])
    """By id; finished ones too, so that a late notification does not show them again."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])


class RemoteTurns:
    """Finds the turns of other processes in the conversations that this one has event streams of."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._watched: dict[str, _WatchedConversation] = {}
        self._is_subscribed = False

    def subscribe(self, key: ConversationKey, listener: RemoteTurnListener) -> Callable[[], None]:
        """Calls `listener` with every running turn of the conversation; returns a function that unsubscribes."""
        if not self._is_subscribed:
            self._is_subscribed = True
            self._store.notifications.subscribe(self._on_notification)
        topic = topic_of(*key)
        watched = self._watched.setdefault(topic, _WatchedConversation(key))
        watched.listeners.append(listener)
        for turn in watched.turns.values():
            if not turn.is_finished:
                listener(turn)
        self._store.notifications.publish(WATCHING, topic)

        def unsubscribe() -> None:
            watched.listeners.remove(listener)
            if not watched.listeners:
                self._watched.pop(topic, None)
                for task in watched.tasks:
                    task.cancel()

        return unsubscribe

    def _on_notification(self, notification: Notification) -> None:
        if notification.kind == RESUMED:
            for topic, watched in self._watched.items():
                self._store.notifications.publish(WATCHING, topic)
                for turn in watched.turns.values():
                    turn.notify()
        elif (watched := self._watched.get(notification.topic)) is None:
            return
        elif notification.kind == TURN_STARTED:
            self._store.notifications.publish(WATCHING, notification.topic)
        elif notification.kind == TURN_EVENTS:
            self._follow(watched, notification.detail)

    def _follow(self, watched: _WatchedConversation, id: str) -> None:
        if id not in watched.turns:
            watched.turns[id] = turn = RemoteTurn(self._store, watched.key, id)
            task = asyncio.get_running_loop().create_task(turn.follow())
            watched.tasks.add(task)
            task.add_done_callback(watched.tasks.discard)
            for listener in list(watched.listeners):
                listener(turn)
        watched.turns[id].notify()
