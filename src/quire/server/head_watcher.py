"""Watches the branch heads of all conversations that a process has event streams of, with one query for all of them.

A notification makes it look at the conversation that changed. It also looks at all of them at intervals: long ones
while notifications of other processes arrive, short ones otherwise (SQLite, or PostgreSQL behind a pooler). On SQLite a
look is one pragma unless another process has committed.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.errors import QuireError
from quire.log import SqlStore
from quire.log.notifications import CHANGED, RESUMED, ConversationKey, Notification, topic_of

SAFETY_POLL_SECONDS = 10.0
"""Seconds between two looks at all conversations while notifications arrive."""
POLL_SECONDS = 0.5
"""Seconds between two looks at all conversations without notifications, and before a failed look is repeated."""
MIN_INTERVAL_SECONDS = 0.05
"""Minimum time between two looks: changes within it are read together."""


class BranchHead(NamedTuple):
    branch: int
    seq: int


HeadListener = Callable[[BranchHead | None], None]
"""Called for every branch at first, then for each whose head moved, and with None when watching ends by an error."""


@dataclass
class _Watch:
    heads: dict[int, int] = field(default_factory=dict[int, int])
    listeners: list[HeadListener] = field(default_factory=list[HeadListener])

    def update(self, heads: Mapping[int, int]) -> None:
        moved = {branch: head for branch, head in heads.items() if self.heads.get(branch) != head}
        self.heads.update(moved)
        for branch, head in moved.items():
            self.notify(BranchHead(branch, head))

    def notify(self, head: BranchHead | None) -> None:
        for listener in list(self.listeners):
            listener(head)


class HeadWatcher:
    """Calls listeners when the head of a branch moves. Its task runs while there are listeners."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._watches: dict[ConversationKey, _Watch] = {}
        self._keys_by_topic: dict[str, ConversationKey] = {}
        self._stale: set[ConversationKey] = set()
        self._is_woken = asyncio.Event()
        self._data_version: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def __len__(self) -> int:
        """Number of conversations that are watched."""
        return len(self._watches)

    def watch(self, key: ConversationKey, listener: HeadListener) -> None:
        watch = self._watches.setdefault(key, _Watch())
        self._keys_by_topic[topic_of(*key)] = key
        watch.listeners.append(listener)
        for branch, head in watch.heads.items():
            listener(BranchHead(branch, head))
        if not watch.heads:
            self._mark_stale([key])
        if self._unsubscribe is None:
            self._unsubscribe = self._store.notifications.subscribe(self._on_notification)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def unwatch(self, key: ConversationKey, listener: HeadListener) -> None:
        watch = self._watches[key]
        watch.listeners.remove(listener)
        if not watch.listeners:
            del self._watches[key], self._keys_by_topic[topic_of(*key)]
        if not self._watches:
            self._is_woken.set()

    def _on_notification(self, notification: Notification) -> None:
        if notification.kind == RESUMED:
            self._mark_stale(self._watches)
        elif notification.kind == CHANGED and (key := self._keys_by_topic.get(notification.topic)) is not None:
            self._mark_stale([key])

    def _mark_stale(self, keys: Collection[ConversationKey]) -> None:
        self._stale.update(keys)
        self._is_woken.set()

    async def _run(self) -> None:
        try:
            while self._watches:
                await self._wait()
                if self._stale:
                    await self._refresh()
                    await asyncio.sleep(MIN_INTERVAL_SECONDS)
        except Exception:
            # The streams end with an error, and their clients reconnect, instead of waiting for ever.
            for watch in list(self._watches.values()):
                watch.notify(None)
            raise
        finally:
            self._task = None

    async def _wait(self) -> None:
        """Waits for a notification, or until it is time to look at all conversations."""
        seconds = SAFETY_POLL_SECONDS if self._store.notifications.is_listening else POLL_SECONDS
        try:
            async with asyncio.timeout(seconds):
                await self._is_woken.wait()
        except TimeoutError:
            with suppress(QuireError):
                version = await self._store.get_data_version() if not self._store.notifications.has_transport else None
                if version is None or version != self._data_version:
                    self._stale.update(self._watches)
                self._data_version = version
        self._is_woken.clear()

    async def _refresh(self) -> None:
        keys = self._stale & self._watches.keys()
        self._stale.clear()
        if not keys:
            return
        try:
            heads = await self._store.list_branch_heads(keys)
        except QuireError:
            # The store may be away for a while; changes are seen when it is back.
            self._mark_stale(keys)
            await asyncio.sleep(POLL_SECONDS)
            return
        for key in keys & self._watches.keys():
            self._watches[key].update(heads.get(key, {}))
