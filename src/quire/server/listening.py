"""What is told to those who listen to a conversation: every branch that moves, whoever moved it, and turns as they run.

Nodes do not know of each other, so the heads are looked at in the store: once for all who listen to a conversation
here, and only while somebody does.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

from fastapi import FastAPI

from quire.errors import QuireError
from quire.log import Store
from quire.server.serving import Serving
from quire.server.streams import turn_told
from quire.server.told import AnyTurnEvent, BranchChanged
from quire.server.turns import Place, Running

LOOK = 0.5
"""Seconds between two looks at the heads."""

Heard = Callable[[BranchChanged | None], None]
"""Told of a branch that moved; None if nothing more will be told."""


class Heads:
    """The heads of one conversation's branches, looked at as long as somebody wants to know."""

    def __init__(self, look: Callable[[], Awaitable[Mapping[int, int]]]) -> None:
        self._look = look
        self._known: dict[int, int] = {}
        self._listeners: list[Heard] = []
        self._deserted = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def join(self, heard: Heard) -> None:
        """Tells `heard` how every branch stands, and from now on of each that moves."""
        self._listeners.append(heard)
        for branch, head in self._known.items():
            heard(BranchChanged(branch=branch, head=head))

    def leave(self, heard: Heard) -> bool:
        """Whether nobody listens any more. A look that is under way ends in its own time, and is the last."""
        with suppress(ValueError):
            self._listeners.remove(heard)
        if not self._listeners:
            self._deserted.set()
        return not self._listeners

    async def _watch(self) -> None:
        try:
            while not self._deserted.is_set():
                # The store may be away for a while; what has moved by then is seen when it is back.
                with suppress(QuireError):
                    self._compare(await self._look())
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK):
                        await self._deserted.wait()
        finally:
            for heard in list(self._listeners):
                heard(None)

    def _compare(self, found: Mapping[int, int]) -> None:
        moved = {branch: head for branch, head in found.items() if self._known.get(branch) != head}
        self._known.update(moved)
        for branch, head in moved.items():
            for heard in list(self._listeners):
                heard(BranchChanged(branch=branch, head=head))


class Listening:
    """Who listens to which conversation."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._heads: dict[tuple[str, str], Heads] = {}

    def __len__(self) -> int:
        """How many conversations are looked at."""
        return len(self._heads)

    async def events(self, tenant: str, conversation: str) -> AsyncGenerator[AnyTurnEvent | BranchChanged, None]:
        """All that happens to a conversation, until the generator is closed; a turn under way from its beginning."""
        listener = _Listener(self._serving, tenant, conversation)
        heads = self._joined(tenant, conversation, listener.hear)
        try:
            while (told := await listener.told.get()) is not None:
                yield told
        finally:
            if heads.leave(listener.hear) and self._heads.get((tenant, conversation)) is heads:
                del self._heads[tenant, conversation]
            await listener.close()

    def _joined(self, tenant: str, conversation: str, heard: Heard) -> Heads:
        key = tenant, conversation
        if key not in self._heads:
            self._heads[key] = Heads(partial(_heads_of, self._serving.engine(tenant).store, conversation))
        self._heads[key].join(heard)
        return self._heads[key]


async def _heads_of(store: Store, conversation: str) -> dict[int, int]:
    return {branch.number: branch.head_seq for branch in await store.branches(conversation)}


class _Listener:
    """One who listens: what is to be told next, and the turns that are followed to tell it."""

    def __init__(self, serving: Serving, tenant: str, conversation: str) -> None:
        self._turns, self._tenant, self._conversation = serving.turns, tenant, conversation
        self.told: asyncio.Queue[AnyTurnEvent | BranchChanged | None] = asyncio.Queue()
        self._watched: dict[int, Callable[[], None]] = {}
        self._following: set[asyncio.Task[None]] = set()

    def hear(self, changed: BranchChanged | None) -> None:
        if changed is not None and changed.branch not in self._watched:
            self._watch(changed.branch)
        self.told.put_nowait(changed)

    def _watch(self, branch: int) -> None:
        place, follow = Place(self._tenant, self._conversation, branch), partial(self._follow, branch)
        self._watched[branch] = self._turns.watch(place, follow)
        if (running := self._turns.at(place)) is not None:
            follow(running)

    def _follow(self, branch: int, running: Running) -> None:
        task = asyncio.get_running_loop().create_task(self._tell(branch, running))
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _tell(self, branch: int, running: Running) -> None:
        async for event in turn_told(running, branch=branch):
            self.told.put_nowait(event)

    async def close(self) -> None:
        for leave in self._watched.values():
            leave()
        following = list(self._following)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


def listening_of(app: FastAPI) -> Listening:
    """The application's one, made when the first comes."""
    if not hasattr(app.state, "listening"):
        app.state.listening = Listening(app.state.serving)
    return app.state.listening
