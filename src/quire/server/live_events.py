"""Live events of a conversation: changes of its branches and the events of its running turns, in any process.

One query reads the branch heads of all conversations that have event streams in this process. A notification makes it
read the conversation that changed. It also reads all of them at intervals: long ones while notifications of other
processes arrive, short ones otherwise (SQLite, or PostgreSQL behind a pooler). On SQLite a read is one pragma unless
another process has committed. The turns of other processes are read as `quire.server.turn_relay` writes them.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import suppress

from pydantic import TypeAdapter

from quire.db.notifications import CHANGED, RESUMED, ConversationKey, Notification, topic_of
from quire.errors import QuireError
from quire.model import Usage
from quire.schemas.turn_events import AnyTurnEventSchema, Problem, TurnEventSchema, TurnFailedSchema
from quire.server.event_stream import BranchChangedSchema, StreamEvent
from quire.server.running_turn import RunningTurn, TurnStream
from quire.server.turn_registry import BranchKey, TurnRegistry
from quire.server.turn_relay import TURN_EVENTS, TURN_STARTED, WATCHING
from quire.store import SqlStore

SAFETY_POLL_SECONDS = 10.0
"""Seconds between two reads of all conversations while notifications arrive."""
POLL_SECONDS = 0.5
"""Seconds between two reads of all conversations without notifications, and before a failed read is repeated."""
MIN_INTERVAL_SECONDS = 0.05
"""Minimum time between two reads: changes within it are read together."""
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


class RemoteTurn(TurnStream):
    """A turn of another process."""

    def __init__(self) -> None:
        super().__init__()
        self.news = asyncio.Event()
        """Set when its process has written events, or has said that the turn still runs."""


class _WatchedConversation:
    def __init__(self, key: ConversationKey) -> None:
        self.key = key
        self.listeners: list[Callable[[StreamEvent | None], None]] = []
        self.heads: dict[int, int] = {}
        """By branch. Empty until they are read. Listeners get the running turns after the first heads."""
        self.remote_turns: dict[str, RemoteTurn] = {}
        """The running ones, by id."""
        self.seen_turns: set[str] = set()
        """Ids of all remote turns, so that a late notification does not show a finished one again."""
        self.tasks: set[asyncio.Task[None]] = set()

    def emit(self, event: StreamEvent | None) -> None:
        for listener in list(self.listeners):
            listener(event)

    def show_turn(self, turn: TurnStream) -> None:
        if self.heads:
            for listener in self.listeners:
                turn.subscribe(listener)


class LiveEvents:
    """Fan-out of live events to the clients of `/events`. Its task runs while there are clients."""

    def __init__(self, store: SqlStore, turns: TurnRegistry) -> None:
        self._store, self._turns = store, turns
        self._watched: dict[str, _WatchedConversation] = {}
        """By topic."""
        self._stale: set[str] = set()
        """Topics of the conversations whose heads must be read."""
        self._is_woken = asyncio.Event()
        self._data_version: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_subscribed = False
        turns.listeners.append(self._on_turn_start)

    def __len__(self) -> int:
        """Number of conversations with subscribers."""
        return len(self._watched)

    async def events(self, tenant: str, conversation: str) -> AsyncGenerator[StreamEvent, None]:
        """Streams a conversation's events until the generator is closed. A running turn is streamed from its start."""
        topic = topic_of(tenant, conversation)
        queue = asyncio.Queue[StreamEvent | None]()
        watched = self._watched.setdefault(topic, _WatchedConversation((tenant, conversation)))
        watched.listeners.append(queue.put_nowait)
        if watched.heads:
            for branch, head in watched.heads.items():
                queue.put_nowait(BranchChangedSchema(branch=branch, head=head))
            for turn in self._list_turns(watched):
                turn.subscribe(queue.put_nowait)
        else:
            self._mark_stale([topic])
        if not self._is_subscribed:
            self._is_subscribed = True
            self._store.notifications.subscribe(self._on_notification)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch_heads())
        self._store.notifications.publish(WATCHING, topic)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            watched.listeners.remove(queue.put_nowait)
            for turn in self._list_turns(watched):
                turn.unsubscribe(queue.put_nowait)
            if not watched.listeners:
                del self._watched[topic]
                for task in watched.tasks:
                    task.cancel()
            if not self._watched:
                self._is_woken.set()

    def _list_turns(self, watched: _WatchedConversation) -> Iterator[TurnStream]:
        """The running turns of a conversation, in this and other processes."""
        yield from (running for key, running in self._turns.list_running() if key[:2] == watched.key)
        yield from watched.remote_turns.values()

    def _mark_stale(self, topics: Iterable[str]) -> None:
        self._stale.update(topics)
        self._is_woken.set()

    def _on_turn_start(self, key: BranchKey, running: RunningTurn) -> None:
        if (watched := self._watched.get(topic_of(key.tenant, key.conversation))) is not None:
            watched.show_turn(running)

    def _on_notification(self, notification: Notification) -> None:
        notifications, topic = self._store.notifications, notification.topic
        if notification.kind == RESUMED:
            self._mark_stale(self._watched)
            for each, watched in self._watched.items():
                notifications.publish(WATCHING, each)
                for turn in watched.remote_turns.values():
                    turn.news.set()
        elif (watched := self._watched.get(topic)) is None:
            return
        elif notification.kind == CHANGED:
            self._mark_stale([topic])
        elif notification.kind == TURN_STARTED:
            notifications.publish(WATCHING, topic)
        elif notification.kind == TURN_EVENTS:
            turn_id = notification.detail
            if turn_id not in watched.seen_turns:
                watched.seen_turns.add(turn_id)
                watched.remote_turns[turn_id] = RemoteTurn()
                task = asyncio.get_running_loop().create_task(self._follow(watched, turn_id))
                watched.tasks.add(task)
                task.add_done_callback(watched.tasks.discard)
                watched.show_turn(watched.remote_turns[turn_id])
            if turn_id in watched.remote_turns:
                watched.remote_turns[turn_id].news.set()

    async def _follow(self, watched: _WatchedConversation, turn_id: str) -> None:
        """Reads the events of a turn until the last one. A process that stays silent has lost its turn."""
        tenant, conversation = watched.key
        store, turn, silences = self._store.for_tenant(tenant), watched.remote_turns[turn_id], 0
        while not turn.is_finished:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    await turn.news.wait()
                silences = 0
            except TimeoutError:
                silences += 1
                self._store.notifications.publish(WATCHING, topic_of(tenant, conversation))
            turn.news.clear()
            with suppress(QuireError):
                for array in await store.turn_events.list(conversation, turn_id, first=len(turn.events)):
                    for event in _events_adapter.validate_json(array):
                        turn.add(event)
            if silences > MAX_SILENCES and not turn.is_finished:
                branch = turn.events[0].branch if turn.events else 0
                turn.add(TurnFailedSchema(branch=branch, problem=_LOST_PROBLEM, steps=0, usage=Usage()))
        del watched.remote_turns[turn_id]

    async def _watch_heads(self) -> None:
        """Emits an event for every branch at first, then for each whose head moved."""
        notifications = self._store.notifications
        try:
            while self._watched:
                try:
                    async with asyncio.timeout(SAFETY_POLL_SECONDS if notifications.is_listening else POLL_SECONDS):
                        await self._is_woken.wait()
                except TimeoutError:
                    with suppress(QuireError):
                        version = (
                            None if notifications.has_transport else await self._store.all_tenants.get_data_version()
                        )
                        if version is None or version != self._data_version:
                            self._stale.update(self._watched)
                        self._data_version = version
                self._is_woken.clear()
                stale, self._stale = self._stale & self._watched.keys(), set()
                if not stale:
                    continue
                try:
                    heads = await self._store.all_tenants.list_branch_heads(
                        [self._watched[topic].key for topic in stale]
                    )
                except QuireError:
                    # The store may be away for a while; changes are seen when it is back.
                    self._mark_stale(stale)
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                for watched in [self._watched[topic] for topic in stale & self._watched.keys()]:
                    self._update_heads(watched, heads.get(watched.key, {}))
                await asyncio.sleep(MIN_INTERVAL_SECONDS)
        except Exception:
            # The streams end with an error, and their clients reconnect, instead of waiting for ever.
            for watched in list(self._watched.values()):
                watched.emit(None)
            raise
        finally:
            self._task = None

    def _update_heads(self, watched: _WatchedConversation, heads: dict[int, int]) -> None:
        is_first = not watched.heads
        for branch, head in heads.items():
            if watched.heads.get(branch) != head:
                watched.heads[branch] = head
                watched.emit(BranchChangedSchema(branch=branch, head=head))
        if is_first:
            for turn in self._list_turns(watched):
                watched.show_turn(turn)
