"""`EventReplay`: the events of a turn, which any number of subscribers stream from the first one to the last."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Generic, TypeVar

E = TypeVar("E")


class EventReplay(Generic[E]):
    def __init__(self) -> None:
        self.events: list[E] = []
        self.is_finished = False
        self._changed = asyncio.Event()

    def add(self, events: Iterable[E] = (), *, is_finished: bool = False) -> None:
        """Adds events; with `is_finished`, streams end after them."""
        self.events.extend(events)
        self.is_finished = self.is_finished or is_finished
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def stream(self) -> AsyncGenerator[E, None]:
        """Streams all events, from the first one on."""
        position = 0
        while True:
            changed = self._changed
            while position < len(self.events):
                position += 1
                yield self.events[position - 1]
            if self.is_finished:
                return
            await changed.wait()
