"""What the parts of an engine share: the log, the settings and what follows from them, events, background work."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.compaction.run import Summarizer
from quire.context.reach import definitions
from quire.engine.blobs import LoadedBlobs
from quire.engine.hooks import Hooks
from quire.errors import QuireError, SpendCapReached
from quire.llm import Model
from quire.llm.embeddings import Embedder
from quire.log import Store
from quire.log.fresh import now
from quire.model import Policy, ToolDefinition, Usage
from quire.model.agents import Agent, AgentMemory, OfferedTool
from quire.model.events import Event
from quire.settings import Settings
from quire.view.calibration import Calibration
from quire.view.leaves import Meter
from quire.view.models import ModelFacts, facts, window_of
from quire.view.policies import policy_for
from quire.view.shapes import shape_for
from quire.view.tokens import counter_for

if TYPE_CHECKING:
    from quire.context.vault import Root, Vault

DEFAULT_AGENT = "default"

Deferrer = Callable[[str, str, int], Coroutine[Any, Any, None]]
"""Has work of a kind done for a conversation's branch by somebody else, later; it may be lost on the way."""


class Core:
    def __init__(
        self,
        store: Store,
        *,
        settings: Settings,
        instructions: str = "",
        tools: Sequence[ToolDefinition] = (),
        agent: Agent | None = None,
        vault: "Vault | Path | str | None" = None,
        summarizer: Model | Summarizer | None = None,
        embedder: Embedder | None = None,
        clock: Callable[[], int] = now,
    ) -> None:
        self.store, self.settings, self.clock = store, settings, clock
        self.policy: Policy = policy_for(settings)
        self.vault = _vault(vault, settings)
        self.agent = _agent(agent, instructions=instructions, tools=tools)
        if settings.context_tools:
            own = definitions(documents=self.vault is not None, memory=self.agent.memory.enabled)
            self.agent = self.agent.offering(*self.agent.tools, *(OfferedTool(definition=each) for each in own))
        self.embedder = embedder
        self.blobs = LoadedBlobs(store)
        self.meter = self._meter(self.policy)
        self._calibrations: dict[str, Calibration] = {}
        self.summarizer = self._limited(summarizer)
        self.hooks = Hooks()
        self._listeners: list[Callable[[Event], None]] = []
        self._tasks: dict[tuple[str, int, str], asyncio.Task[Any]] = {}
        self.deferrer: Deferrer | None = None
        """Set by a server whose background work others do."""

    def _limited(self, summarizer: Model | Summarizer | None) -> Summarizer | None:
        """A bare model with the window that is known of it, or the one that requests are made for."""
        if summarizer is None or isinstance(summarizer, Summarizer):
            return summarizer
        window = window_of(summarizer.name) or self.policy.window
        return Summarizer(model=summarizer, window=window, timeout=self.settings.summary_timeout)

    def cost(self, usage: Usage | None, model: str) -> float:
        """Dollars for what a call used; 0 where nothing is known of its price."""
        if usage is None:
            return 0.0
        known, given = facts(model), self.settings
        if model == given.model and given.input_price is not None and given.output_price is not None:
            known = ModelFacts(
                input_price=Decimal(str(given.input_price)), output_price=Decimal(str(given.output_price))
            )
        return known.cost(usage) or 0.0

    async def check_spending(self, conversation: str) -> None:
        """Stops before the next call of a conversation that has cost as much as it may."""
        cap = self.settings.max_spend
        if cap is not None:
            spent = await self.store.spent(conversation)
            if spent >= cap:
                raise SpendCapReached(spent=spent, cap=cap)

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Calls `listener` with every event, in order, from now on."""
        self._listeners.append(listener)

    def tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def start(self, key: tuple[str, int, str], work: Coroutine[Any, Any, Any]) -> None:
        """Does something in the background: for each branch one thing of a kind."""
        running = self._tasks.get(key)
        if running is not None and not running.done():
            work.close()
            return
        task = self._tasks[key] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda done: self._forget(key, done))

    def _forget(self, key: tuple[str, int, str], task: asyncio.Task[Any]) -> None:
        """What failed as nobody foresaw is kept, for `settle` to raise."""
        failure = None if task.cancelled() else task.exception()
        if (failure is None or isinstance(failure, QuireError)) and self._tasks.get(key) is task:
            del self._tasks[key]

    def later(self, kind: str, branch: tuple[str, int], work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Has something done that nobody waits for: by whoever takes such work over, else here, in the background."""
        if self.deferrer is None:
            self.start((*branch, kind), work())
        else:
            self.start((*branch, f"defer {kind}"), self.deferrer(kind, *branch))

    async def settle(self) -> None:
        """Waits for what runs in the background."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, QuireError):
                raise outcome

    def _meter(self, policy: Policy) -> Meter:
        counter = counter_for(policy.model, tokenizer=self.settings.tokenizer)
        return Meter(counter, shape_for(policy.provider, model=policy.model), load=self.blobs.get)

    def use(self, **changes: Any) -> None:
        """Changes settings from the next request on; a new model recounts what is still seen, and nothing else."""
        self.settings = Settings.model_validate({**self.settings.model_dump(), **changes})
        self.policy = policy_for(self.settings)
        self.meter = self._meter(self.policy)

    async def calibration(self, model: str) -> Calibration:
        if model not in self._calibrations:
            known = await self.store.calibration(model)
            self._calibrations[model] = Calibration.parse(known) if known else Calibration()
        return self._calibrations[model]

    def calibrated(self, model: str, calibration: Calibration) -> None:
        self._calibrations[model] = calibration

    @property
    def compacts_in_background(self) -> bool:
        """Whether there is a mark from which a conversation is compacted before it must be."""
        marked = self.settings.context_background_threshold is not None
        return marked and self.policy.context_management_enabled and self.summarizer is not None

    @property
    def folder(self) -> "Root | None":
        """The folder that files are read from: the vault's."""
        return self.vault.root if self.vault is not None else None


def _agent(agent: Agent | None, *, instructions: str, tools: Sequence[ToolDefinition]) -> Agent:
    """The agent with what is given beside it; without one, an agent that only has that and remembers nothing."""
    offered = tuple(OfferedTool(definition=tool) for tool in tools)
    if agent is None:
        memory = AgentMemory(enabled=False)
        return Agent(name=DEFAULT_AGENT, instructions=instructions, tools=offered, memory=memory)
    joined = "\n\n".join(text for text in (agent.instructions, instructions) if text)
    return agent.model_copy(update={"instructions": joined, "tools": (*agent.tools, *offered)})


def _vault(vault: "Vault | Path | str | None", settings: Settings) -> "Vault | None":
    if vault is None:
        return None
    from quire.context.vault import Vault

    return vault if isinstance(vault, Vault) else Vault(vault, ambiguous=settings.ambiguous_links)
