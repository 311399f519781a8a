"""`EngineState`: a store, a configuration and the shared runtime state, which every part of an engine works on."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from quire.compaction.summarizer import Summarizer
from quire.engine.config import EngineConfig
from quire.engine.runtime import CompactionHooks, EngineRuntime
from quire.llm.embeddings import Embedder
from quire.model import Policy
from quire.model.agents import Agent
from quire.model.base import lazy_property
from quire.settings import Settings
from quire.store import SqlStore
from quire.view.rendered import MessageCounter
from quire.wire.tokens import warn_once

if TYPE_CHECKING:
    from quire.context.vault import Vault
    from quire.model.context_events import ContextEvent


@dataclass(frozen=True, eq=False)
class EngineState:
    """What the conversations of an engine share. It never changes: `with_changes` returns another."""

    store: SqlStore
    config: EngineConfig
    runtime: EngineRuntime = field(default_factory=EngineRuntime)

    def with_changes(self, **changes: Any) -> Self:
        """A variant for the same store with other settings.

        The runtime state (caches, calibrations, listeners, jobs) is shared.

        An agent is used as it is, with its own tools only. A new model recounts only the messages in the window.

        Args:
            changes: `agent`, `vault`, `summarizer`, `embedder`, `clock`, or any setting, by name.
        """
        return replace(self, config=self.config.with_changes(**changes))

    @property
    def settings(self) -> Settings:
        return self.config.settings

    @property
    def policy(self) -> Policy:
        """The policy of the settings, within the window that the provider reported, if any."""
        return self.runtime.reported_windows.limit_policy(self.config.policy, self.config.endpoint)

    @property
    def agent(self) -> Agent:
        return self.config.agent

    @property
    def vault(self) -> "Vault | None":
        return self.config.vault

    @property
    def summarizer(self) -> Summarizer | None:
        """The summarizer of the configuration, within the window that its provider reported, if any."""
        summarizer = self.config.summarizer
        if summarizer is None:
            return None
        window = self.runtime.reported_windows.find(self.config.endpoint_for(summarizer.model.name))
        return summarizer if window is None else replace(summarizer, window=min(summarizer.window, window))

    @property
    def document_summarizer(self) -> Summarizer | None:
        """The summarizer, if it was named: the model that answers is not called for every document of the vault."""
        return None if callable(self.config.summarizer_source) else self.config.summarizer

    @property
    def embedder(self) -> Embedder | None:
        return self.config.embedder

    @lazy_property
    def message_counter(self) -> MessageCounter:
        if self.config.model_problem is not None:
            warn_once(self.config.model_problem)
        return self.runtime.message_counter_for(self.config.policy, self.config.model_spec.tokenizer)

    @property
    def hooks(self) -> CompactionHooks:
        return self.runtime.hooks

    def subscribe(self, listener: "Callable[[ContextEvent], None]") -> None:
        """Calls `listener` with every event of this engine and its variants, in order, from now on.

        Args:
            listener: Called with each event.
        """
        self.runtime.listeners.append(listener)

    async def wait_for_background(self) -> None:
        """Waits for the background jobs of this engine and its variants, and raises the first unexpected error."""
        await self.runtime.jobs.wait()
