"""Live events of a conversation: changes of its branches by any process, and the events of its running turns."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from fastapi import FastAPI

from quire.schemas.turn_events import AnyTurnEventSchema
from quire.server.event_stream import BranchChangedSchema, StreamEvent, stream_turn
from quire.server.head_watcher import BranchHead, HeadWatcher
from quire.server.remote_turns import RemoteTurn
from quire.server.running_turn import RunningTurn
from quire.server.state import ServerState
from quire.server.turn_registry import BranchKey


class LiveEvents:
    """Fan-out of live events to the clients of `/events`."""

    def __init__(self, server_state: ServerState) -> None:
        self._server_state = server_state
        self._heads = HeadWatcher(server_state.store)

    def __len__(self) -> int:
        """Number of conversations with subscribers."""
        return len(self._heads)

    async def events(self, tenant: str, conversation: str) -> AsyncGenerator[StreamEvent, None]:
        """Streams a conversation's events until the generator is closed. A running turn is streamed from its start."""
        subscriber = _Subscriber(self._server_state, tenant, conversation)
        self._heads.watch((tenant, conversation), subscriber.on_head_change)
        try:
            while (event := await subscriber.queue.get()) is not None:
                yield event
        finally:
            self._heads.unwatch((tenant, conversation), subscriber.on_head_change)
            await subscriber.close()


class _Subscriber:
    """One client of `/events`: its queue, and the tasks that forward running turns to it."""

    def __init__(self, server_state: ServerState, tenant: str, conversation: str) -> None:
        self._turns, self._tenant, self._conversation = server_state.turns, tenant, conversation
        self.queue: asyncio.Queue[StreamEvent | None] = asyncio.Queue()
        self._unwatch_by_branch: dict[int, Callable[[], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsubscribe = server_state.remote_turns.subscribe((tenant, conversation), self._follow_remote_turn)

    def on_head_change(self, head: BranchHead | None) -> None:
        if head is not None and head.branch not in self._unwatch_by_branch:
            self._watch_branch(head.branch)
        self.queue.put_nowait(head and BranchChangedSchema(branch=head.branch, head=head.seq))

    def _watch_branch(self, branch: int) -> None:
        key, follow = BranchKey(self._tenant, self._conversation, branch), partial(self._follow_turn, branch)
        self._unwatch_by_branch[branch] = self._turns.subscribe(key, follow)
        if (running := self._turns.get(key)) is not None:
            follow(running)

    def _follow_turn(self, branch: int, running: RunningTurn) -> None:
        self._forward(stream_turn(running.stream_events(), branch=branch))

    def _follow_remote_turn(self, turn: RemoteTurn) -> None:
        self._forward(turn.stream_events())

    def _forward(self, events: AsyncGenerator[AnyTurnEventSchema, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._forward_events(events))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward_events(self, events: AsyncGenerator[AnyTurnEventSchema, None]) -> None:
        async with aclosing(events):
            async for event in events:
                self.queue.put_nowait(event)

    async def close(self) -> None:
        self._unsubscribe()
        for unwatch in self._unwatch_by_branch.values():
            unwatch()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def get_live_events(app: FastAPI) -> LiveEvents:
    """Returns the application's `LiveEvents`, created on first use."""
    if not hasattr(app.state, "live_events"):
        app.state.live_events = LiveEvents(app.state.server_state)
    return app.state.live_events
