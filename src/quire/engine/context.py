"""`EngineContext`: a store, a configuration and the shared runtime state, which every part of an engine works on."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from quire.access.spending import SpendCaps, SpendingKey, SpendReservation
from quire.compaction.summarizer import Summarizer
from quire.engine.config import EngineConfig
from quire.engine.reported_windows import is_credible
from quire.engine.runtime import BlobCache, CompactionHooks, EngineRuntime
from quire.errors import ModelContextOverflow
from quire.llm.embeddings import Embedder
from quire.log import Window
from quire.model import Entry, Policy, Usage
from quire.model.agents import Agent
from quire.model.base import lazy_property
from quire.settings import Settings
from quire.settings.schema import tenant_spend_cap_for
from quire.store import SqlStore
from quire.view.assembly import Assembly
from quire.view.budget import MAX_RATIO, Calibration
from quire.view.rendered import MessageCounter
from quire.wire.tokens import warn_once

if TYPE_CHECKING:
    from quire.context.vault import Vault
    from quire.llm.pydantic_ai_model import PydanticAIModel
    from quire.model.context_events import ContextEvent

_log = logging.getLogger(__name__)

OVERFLOW_RATIO_FACTOR = 1.25
"""Factor on the calibration ratio after an overflow error that reports no token count."""


def spend_caps_for(settings: Settings, *, tenant: str, key: SpendingKey | None) -> SpendCaps:
    """The caps on the cost of a tenant's calls with this API key."""
    return SpendCaps(
        conversation=settings.max_spend,
        key=key.max_spend if key is not None else None,
        tenant=tenant_spend_cap_for(settings, tenant),
    )


@dataclass(frozen=True, eq=False)
class EngineContext:
    """What the conversations of an engine share. It never changes: `with_changes` returns another."""

    store: SqlStore
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
    def blobs(self) -> BlobCache:
        return self.runtime.blobs

    async def load_blobs(self, entries: Sequence[Entry], *, digests: Collection[str] = ()) -> None:
        """Loads the blobs that these entries reference, and those with these digests, into the cache for rendering."""
        await self.runtime.blobs.load(self.store, entries, digests)

    async def read_window(self, conversation: str, branch: int) -> Window:
        """The window of a branch for its next request; entries that its last request used are not read again."""
        windows, key = self.runtime.windows, (conversation, branch)
        known = windows.get(key)
        window = await self.store.read_window(
            conversation, branch=branch, max_tokens=self.policy.max_input_tokens, known=known
        )
        if known is None or window.loaded is not known.loaded:
            windows[key] = window
        return window

    @property
    def hooks(self) -> CompactionHooks:
        return self.runtime.hooks

    def subscribe(self, listener: "Callable[[ContextEvent], None]") -> None:
        """Calls `listener` with every event of this engine and its variants, in order, from now on."""
        self.runtime.listeners.append(listener)

    def emit(self, event: "ContextEvent") -> None:
        for listener in self.runtime.listeners:
            listener(event)

    async def wait_for_background(self) -> None:
        """Waits for the background jobs of this engine and its variants, and raises the first unexpected error."""
        await self.runtime.jobs.wait()

    async def load_model(self) -> "PydanticAIModel":
        """The model that the settings name, at its provider or at `base_url`. Needs the `llm` extra."""
        endpoint = self.config.endpoint_for(self.settings.model)
        # Loading a provider's client takes a second or two.
        return await asyncio.to_thread(self.runtime.model_for, endpoint.model, endpoint.base_url or None)

    @lazy_property
    def spend_caps(self) -> SpendCaps:
        """The caps on the cost of this engine's calls."""
        return spend_caps_for(self.settings, tenant=self.store.tenant, key=self.config.spending_key)

    async def check_spend_cap(self, conversation: str) -> None:
        """Raises `SpendCapReached` if a cap is spent, and `UnknownPrice` if it cannot hold."""
        caps = self.spend_caps
        if caps.exist:
            self.config.require_prices()
            await self.store.spending.check(conversation, caps, key_id=self.config.key_id)

    async def reserve_spend(
        self, conversation: str, *, model: str, input_tokens: int, output_tokens: int
    ) -> SpendReservation | None:
        """Reserves the estimated cost of a call; None if no cap applies.

        Raises `SpendCapReached` if a cap is spent, and `SpendReserved` if calls in progress may spend the rest of it.
        """
        caps = self.spend_caps
        if not caps.exist:
            return None
        input_usd = self.config.estimate_cost(Usage(input_tokens=input_tokens), model)
        usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
        amount_usd = self.config.estimate_cost(usage, model)
        # Otherwise the calls of one tenant that wait for the same cap would hold all connections of the pool.
        async with self.runtime.spend_lock:
            reservation = await self.store.spending.reserve(conversation, amount_usd, caps, key_id=self.config.key_id)
        return SpendReservation(reservation, input_usd)

    async def load_calibration(self, model: str) -> Calibration:
        calibrations = self.runtime.calibrations
        if model not in calibrations:
            stored = await self.store.get_calibration(model)
            calibrations[model] = Calibration.parse(stored) if stored else Calibration()
        return calibrations[model]

    def set_calibration(self, model: str, calibration: Calibration) -> None:
        self.runtime.calibrations[model] = calibration

    async def correct_overflow(self, error: ModelContextOverflow, *, assembly: Assembly) -> bool:
        """Corrects the calibration and the window by a provider's overflow error of a request.

        False, and nothing changes, if the error is not credible.
        """
        policy, counted_tokens = assembly.policy, assembly.rendered.tokens
        if not is_credible(error, counted_tokens=counted_tokens, policy=policy):
            _log.info("Overflow error ignored: it contradicts our count of %s tokens", counted_tokens)
            return False
        calibration = await self.load_calibration(policy.model)
        ratio = error.tokens / counted_tokens if error.tokens else assembly.ratio * OVERFLOW_RATIO_FACTOR
        ratio = min(MAX_RATIO, max(assembly.ratio, ratio))
        messages = len(assembly.rendered.messages)
        corrected = calibration.with_ratio(ratio, tokens=counted_tokens, messages=messages)
        self.set_calibration(policy.model, corrected)
        if error.window is not None and error.window < policy.window:
            self.runtime.reported_windows.add(error.window, self.config.endpoint)
        return True
