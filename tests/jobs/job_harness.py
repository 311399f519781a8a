"""`JobHarness`: conversations that need background jobs, and the engines, runner and sweeper to run them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quire.engine import Conversation, Engine
from quire.engine.tenants import TenantEngines
from quire.jobs import JobRunner, Jobs, Sweeper
from quire.model import Compaction, Entry, Message
from quire.model.ids import now
from quire.settings import Settings
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel

GOOD_SUMMARY = "Task: talk about rivers [#1].\nFacts: the mill stands at kilometre 12 [#3]."
LIST_DOCUMENT = "- eggs\n- flour\n- " + " and ".join(f"item {number}" for number in range(200)) + "\n"
SECOND_MICROSECONDS = 1_000_000
DAY_MICROSECONDS = 86_400 * SECOND_MICROSECONDS


class LetterCountEmbedder:
    """An embedder that counts letters."""

    name, dimensions = "letters", 26

    def embed(self, texts: Sequence[str]) -> Any:
        rows = np.array([[text.lower().count(chr(97 + place)) for place in range(26)] for text in texts], dtype="f4")
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)


class FakeClock:
    """The current time plus `offset` microseconds."""

    def __init__(self) -> None:
        self.offset = 0

    def __call__(self) -> int:
        return now() + self.offset


def make_summarizer() -> ScriptedModel:
    return ScriptedModel(GOOD_SUMMARY, repeat=True)


class JobHarness:
    """Engines, runner and sweeper on one store."""

    def __init__(self, store: SqlStore, model: Any = None, *, vault: Path | None = None, **settings: Any) -> None:
        self.store, self.clock = store, FakeClock()
        self.model = model or make_summarizer()
        values = {"model": "gpt-4o", "context_limit": 2_000, "context_background_threshold": 0.5, **settings}
        self.settings = Settings.model_validate({**values, "vault": str(vault) if vault else None})
        self.jobs: Jobs | None = None
        """Set before the first engine is used; None runs the engines' jobs in this process."""
        self.engines = TenantEngines(
            store,
            self.settings,
            summarizer=self.model,
            embedder=LetterCountEmbedder(),
            jobs_for=lambda tenant: self.jobs.for_tenant(tenant) if self.jobs is not None else None,
        )
        self.runner = JobRunner(store, self.engines, clock=self.clock)
        self.sweeper = Sweeper(store, self.engines, clock=self.clock)

    def engine(self, tenant: str = "default") -> Engine:
        return self.engines(tenant)

    async def create_overfull(self, id: str = "c", *, tenant: str = "default") -> Conversation:
        """A conversation above the background threshold that was not compacted."""
        conversation = await self.engine(tenant).conversation(id)
        await append_turns(conversation, 12)
        return conversation

    async def create_unindexed(self, id: str = "c", *, tenant: str = "default") -> Conversation:
        """A conversation with archived messages that are not in the message index."""
        conversation = await self.create_overfull(id, tenant=tenant)
        await conversation.compact()
        return conversation


async def append_turns(conversation: Conversation, turns: int) -> None:
    for turn in range(turns):
        await conversation.append(
            f"question {turn}: " + "why " * 40, Message.assistant(f"answer {turn}: " + "so " * 40)
        )


async def list_compactions(store: SqlStore, conversation: str = "c", *, branch: int = 0) -> list[Entry]:
    return await store.read_range(conversation, branch=branch, kinds=["compaction"])


def compaction_triggers(entries: Sequence[Entry]) -> list[str]:
    return [entry.body.trigger for entry in entries if isinstance(entry.body, Compaction)]


async def list_embedders(store: SqlStore, conversation: str = "c") -> list[str | None]:
    """The embedder of each segment of the message index."""
    return [ref.embedder for ref in await store.message_index.list_segments(conversation)]


async def wait_until(condition: Callable[[], Awaitable[Any]], *, seconds: float = 20.0) -> Any:
    """Polls until the condition returns a true value, and returns it."""
    async with asyncio.timeout(seconds):
        while not (value := await condition()):  # noqa: ASYNC110 (other tasks make it true)
            await asyncio.sleep(0.02)
        return value
