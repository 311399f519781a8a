"""How a turn tells what happens: one event after the other, at the pace of whoever listens."""

import asyncio

from quire.model.turns import TurnEvent


class Telling:
    def __init__(self) -> None:
        self._told: asyncio.Queue[TurnEvent | None] = asyncio.Queue()

    async def emit(self, event: TurnEvent) -> None:
        """Tells, and waits until it was taken: nobody is asked for leave before what led to it is shown."""
        self.tell(event)
        await self._told.join()

    def tell(self, event: TurnEvent) -> None:
        """Tells without waiting, for what is told when a turn breaks off and perhaps nobody listens any more."""
        self._told.put_nowait(event)

    def end(self) -> None:
        """Nothing more will be told."""
        self._told.put_nowait(None)

    async def next(self) -> TurnEvent | None:
        """What is told next; None at the end."""
        return await self._told.get()

    def taken(self) -> None:
        """What was told last has been taken note of."""
        self._told.task_done()
