"""Conversations with work left in them, and engines that can do it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quire.engine import Conversation, Engine
from quire.engine.tenants import TenantEngines
from quire.jobs import Sweeper, Workshop
from quire.log import SqlStore
from quire.log.fresh import now
from quire.model import Compaction, Entry, Message
from quire.settings import Settings
from quire.testing.scripted import ScriptedModel

GOOD = "Task: talk about rivers [#1].\nFacts: the mill stands at kilometre 12 [#3]."
LISTS = "- eggs\n- flour\n- " + " and ".join(f"item {number}" for number in range(200)) + "\n"
SECOND = 1_000_000
DAY = 86_400 * SECOND


class Letters:
    """An embedder by how often each letter stands in a text."""

    name, dimensions = "letters", 26

    def embed(self, texts: Sequence[str]) -> Any:
        rows = np.array([[text.lower().count(chr(97 + place)) for place in range(26)] for text in texts], dtype="f4")
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)


class Clock:
    """The time now, and as much later as it is told."""

    def __init__(self) -> None:
        self.ahead = 0

    def __call__(self) -> int:
        return now() + self.ahead


def summarizer() -> ScriptedModel:
    return ScriptedModel(GOOD, repeat=True)


class Shop:
    """Everything that jobs are done with, on one store."""

    def __init__(self, store: SqlStore, model: Any = None, *, vault: Path | None = None, **settings: Any) -> None:
        self.store, self.clock = store, Clock()
        self.model = model or summarizer()
        chosen = {"model": "gpt-4o", "context_limit": 2_000, "context_background_threshold": 0.5, **settings}
        self.settings = Settings.model_validate({**chosen, "vault": str(vault) if vault else None})
        self.engines = TenantEngines(store, self.settings, summarizer=self.model, embedder=Letters())
        self.workshop = Workshop(store, self.engines, clock=self.clock)
        self.sweeper = Sweeper(store, self.engines, clock=self.clock)

    def engine(self, tenant: str = "default") -> Engine:
        return self.engines(tenant)

    async def overfull(self, id: str = "c", *, tenant: str = "default") -> Conversation:
        """A conversation that is over the mark, and nobody has done anything about it."""
        conversation = await self.engine(tenant).conversation(id)
        await filled(conversation, 12)
        return conversation

    async def unshelved(self, id: str = "c", *, tenant: str = "default") -> Conversation:
        """One with archived messages that no recall index holds."""
        conversation = await self.overfull(id, tenant=tenant)
        await conversation.compact()
        return conversation


async def filled(conversation: Conversation, turns: int) -> None:
    for turn in range(turns):
        await conversation.append(
            f"question {turn}: " + "why " * 40, Message.assistant(f"answer {turn}: " + "so " * 40)
        )


async def compactions(store: SqlStore, conversation: str = "c", *, branch: int = 0) -> list[Entry]:
    return await store.range(conversation, branch=branch, kinds=["compaction"])


def triggers(entries: Sequence[Entry]) -> list[str]:
    return [entry.body.trigger for entry in entries if isinstance(entry.body, Compaction)]


async def without_vectors(store: SqlStore, conversation: str = "c") -> int:
    return len(await store.unembedded(f"conversation:{conversation}", embedder=Letters.name))


async def eventually(true: Callable[[], Awaitable[Any]], *, within: float = 20.0) -> Any:
    """What it gives as soon as that is something."""
    async with asyncio.timeout(within):
        while not (found := await true()):  # noqa: ASYNC110 (others bring it about)
            await asyncio.sleep(0.02)
        return found
