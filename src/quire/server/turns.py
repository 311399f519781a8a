"""Turns under way in this process. A turn belongs to its conversation, not to the connection that asked for it.

Whoever looks sees it from its beginning; who goes away leaves it running. One branch has one turn at a time.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import NamedTuple

from quire.agent.approvals import Allow, Approvals, Deny, Verdict
from quire.agent.host import ToolRunner
from quire.agent.loop import turn
from quire.agent.turn_limits import TurnLimits
from quire.engine import Conversation
from quire.errors import NotFound, TurnUnderWay
from quire.llm import Model
from quire.model import Message, ToolCallPart
from quire.model.turns import TurnEvent

Observer = Callable[[Conversation, Model], AbstractContextManager[Callable[[TurnEvent], None]]]
"""Is there around a turn, and is told its every event."""


class Place(NamedTuple):
    tenant: str
    conversation: str
    branch: int


class Running:
    """A turn, told from its beginning to everyone who asks."""

    def __init__(self) -> None:
        self._told: list[TurnEvent] = []
        self._moved = asyncio.Event()
        self._stop = asyncio.Event()
        self._asked: dict[str, asyncio.Future[Verdict]] = {}
        self._ended = False

    async def run(
        self,
        conversation: Conversation,
        message: Message | str | None,
        *,
        model: Model,
        runners: Sequence[ToolRunner],
        limits: TurnLimits | None,
        observer: Observer,
    ) -> None:
        events = turn(
            conversation,
            message,
            model=model,
            runners=runners,
            approvals=Approvals(self._ask),
            limits=limits,
            stop=self._stop,
        )
        try:
            with observer(conversation, model) as observe:
                async with aclosing(events):
                    async for event in events:
                        observe(event)
                        self._told.append(event)
                        self._move()
        finally:
            self._ended = True
            self._move()

    def _move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def events(self) -> AsyncGenerator[TurnEvent, None]:
        place = 0
        while True:
            moved = self._moved
            while place < len(self._told):
                place += 1
                yield self._told[place - 1]
            if self._ended:
                return
            await moved.wait()

    def stop(self) -> None:
        self._stop.set()

    def decide(self, call: str, *, approve: bool) -> None:
        """Answers what `ApprovalAsked` asked."""
        asked = self._asked.get(call)
        if asked is None or asked.done():
            raise NotFound(f"Nobody waits for leave to run the call {call!r}; it was decided already, or is none.")
        asked.set_result(Allow() if approve else Deny("The user did not allow it."))

    async def _ask(self, call: ToolCallPart) -> Verdict:
        asked = self._asked[call.id] = asyncio.get_running_loop().create_future()
        try:
            return await asked
        finally:
            del self._asked[call.id]


class Turns:
    def __init__(self) -> None:
        self.runners: Sequence[ToolRunner] = ()
        self.limits: TurnLimits | None = None
        self.observer: Observer = lambda _conversation, _model: nullcontext(lambda _event: None)
        self._running: dict[Place, tuple[Running, asyncio.Task[None]]] = {}
        self._watchers: dict[Place, list[Callable[[Running], None]]] = {}

    def start(
        self, place: Place, conversation: Conversation, message: Message | str | None, *, model: Model
    ) -> Running:
        """Begins a turn; `TurnUnderWay` if the branch has one."""
        if place in self._running:
            raise TurnUnderWay(f"Branch {place.branch} of {place.conversation!r} is being answered; wait, or stop it.")
        running = Running()
        work = running.run(
            conversation, message, model=model, runners=self.runners, limits=self.limits, observer=self.observer
        )
        task = asyncio.get_running_loop().create_task(work)
        self._running[place] = running, task
        task.add_done_callback(lambda _: self._running.pop(place, None))
        for watcher in self._watchers.get(place, ()):
            watcher(running)
        return running

    def at(self, place: Place) -> Running | None:
        """The turn that this branch has under way."""
        found = self._running.get(place)
        return found[0] if found is not None else None

    def watch(self, place: Place, watcher: Callable[[Running], None]) -> Callable[[], None]:
        """Calls `watcher` with every turn that begins here, until the function that this gives is called."""
        watchers = self._watchers.setdefault(place, [])
        watchers.append(watcher)

        def leave() -> None:
            watchers.remove(watcher)
            if not watchers:
                self._watchers.pop(place, None)

        return leave

    def __len__(self) -> int:
        return len(self._running)

    async def ended(self) -> None:
        """Waits until no turn is under way."""
        while self._running:
            await asyncio.wait([task for _, task in self._running.values()])

    async def stop(self) -> None:
        """Ends every turn; what had come of the replies is kept."""
        for running, _ in list(self._running.values()):
            running.stop()
        await self.ended()
