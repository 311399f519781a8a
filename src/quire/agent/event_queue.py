"""Queue of events from a turn to its one consumer."""

import asyncio

from quire.model.events import TurnEvent


class TurnEventQueue:
    """Queue of events from a turn to its one consumer, with backpressure."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[TurnEvent | None] = asyncio.Queue()

    async def emit(self, event: TurnEvent) -> None:
        """Queues an event and waits until the consumer has handled it, so that a UI shows what led to an approval
        prompt before the prompt."""
        self.emit_nowait(event)
        await self._queue.join()

    def emit_nowait(self, event: TurnEvent) -> None:
        """Queues an event without waiting: for events of an interrupted turn, whose consumer may be gone."""
        self._queue.put_nowait(event)

    def close(self) -> None:
        """Marks the end of the events."""
        self._queue.put_nowait(None)

    async def get(self) -> TurnEvent | None:
        """Waits for the next event; None at the end."""
        return await self._queue.get()

    def ack(self) -> None:
        """Marks the last event as handled."""
        self._queue.task_done()
