"""`EngineContext`: a store, a configuration and the shared runtime state, which every part of an engine works on."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from quire.compaction.execution import Summarizer
from quire.engine.config import EngineConfig
from quire.engine.runtime import BlobCache, CompactionHooks, EngineRuntime
from quire.errors import SpendCapReached
from quire.llm.embeddings import Embedder
from quire.log import Store
from quire.model import Entry, Policy
from quire.model.agents import Agent
from quire.model.events import ContextEvent
from quire.settings import Settings
from quire.view.rendered import MessageCounter
from quire.view.tokens import Calibration

if TYPE_CHECKING:
    from quire.context.vault import Vault


@dataclass(frozen=True, eq=False)
class EngineContext:
    """What the conversations of an engine share. It never changes: `with_changes` returns another."""

    store: Store
    config: EngineConfig
    runtime: EngineRuntime = field(default_factory=EngineRuntime)

    def with_changes(self, **changes: Any) -> Self:
        """A variant for the same store with another `agent`, `vault`, `summarizer`, `embedder` or `clock`, or other
        settings, given by name; the runtime state (caches, calibrations, listeners, jobs) is shared.

        An agent is used as it is, with its own tools only. A new model recounts only the messages in the window.
        """
        return replace(self, config=self.config.with_changes(**changes))

    @property
    def settings(self) -> Settings:
        return self.config.settings

    @property
    def policy(self) -> Policy:
        return self.config.policy

    @property
    def agent(self) -> Agent:
        return self.config.agent

    @property
    def vault(self) -> "Vault | None":
        return self.config.vault

    @property
    def summarizer(self) -> Summarizer | None:
        return self.config.summarizer

    @property
    def embedder(self) -> Embedder | None:
        return self.config.embedder

    @cached_property
    def message_counter(self) -> MessageCounter:
        return self.runtime.message_counter_for(self.policy, self.settings.tokenizer)

    @property
    def blobs(self) -> BlobCache:
        return self.runtime.blobs

    async def load_blobs(self, entries: Sequence[Entry], *, digests: Collection[str] = ()) -> None:
        """Loads the blobs that these entries reference, and those with these digests, into the cache for rendering."""
        await self.runtime.blobs.load(self.store, entries, digests)

    @property
    def hooks(self) -> CompactionHooks:
        return self.runtime.hooks

    def subscribe(self, listener: Callable[[ContextEvent], None]) -> None:
        """Calls `listener` with every event of this engine and its variants, in order, from now on."""
        self.runtime.listeners.append(listener)

    def emit(self, event: ContextEvent) -> None:
        for listener in self.runtime.listeners:
            listener(event)

    async def wait_for_background(self) -> None:
        """Waits for the background jobs of this engine and its variants, and raises the first unexpected error."""
        await self.runtime.jobs.wait()

    async def check_spend_cap(self, conversation: str) -> None:
        """Raises `SpendCapReached` if the conversation has cost `max_spend` or more, and `UnknownPrice` if the cap
        cannot hold."""
        self.config.check_prices()
        cap = self.settings.max_spend
        if cap is not None:
            spent = await self.store.get_cost(conversation)
            if spent >= cap:
                raise SpendCapReached(spent=spent, cap=cap)

    async def load_calibration(self, model: str) -> Calibration:
        calibrations = self.runtime.calibrations
        if model not in calibrations:
            stored = await self.store.get_calibration(model)
            calibrations[model] = Calibration.parse(stored) if stored else Calibration()
        return calibrations[model]

    def set_calibration(self, model: str, calibration: Calibration) -> None:
        self.runtime.calibrations[model] = calibration
