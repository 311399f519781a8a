"""The engine: joins the log, the view and the ledger, and holds what conversations share."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from quire.compaction.run import Summarizer
from quire.context.agents import load_agent
from quire.context.items import initial_changes
from quire.context.vault import Root, Vault
from quire.engine.blobs import LoadedBlobs
from quire.engine.conversation import Conversation
from quire.engine.hooks import Hooks
from quire.engine.recalling import Recaller
from quire.engine.referring import Referrer
from quire.engine.surroundings import Gatherer, own_items
from quire.engine.toolbox import definitions
from quire.engine.vault_index import Progress, index_vault
from quire.errors import ConversationNotFound, InvalidRequest, QuireError, SpendCapReached
from quire.llm import Model
from quire.llm.embeddings import Embedder
from quire.log import DEFAULT_TENANT, MAIN, SqlStore, Store
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

DEFAULT_AGENT = "default"


@asynccontextmanager
async def open_engine(
    url: str = "sqlite:///quire.db",
    *,
    tenant: str = DEFAULT_TENANT,
    settings: Settings | None = None,
    instructions: str = "",
    tools: Sequence[ToolDefinition] = (),
    agent: Agent | Path | str | None = None,
    vault: Vault | Path | str | None = None,
    summarizer: Model | Summarizer | None = None,
    embedder: Embedder | None = None,
    **changes: Any,
) -> AsyncGenerator["Engine"]:
    """Opens the log at `url`. Any setting can be given by name, as in `model="gpt-4o"`.

    An `agent`, or the TOML file of one, brings rules, references, tools and memory. A `vault` is the folder that
    `[[links]]` and `@paths` in messages lead into. A `summarizer` writes the summaries; without one they are extracts,
    made without any model. An `embedder` finds by meaning what words alone would miss.
    """
    known = load_agent(Path(agent)) if isinstance(agent, str | Path) else agent
    chosen = Settings.model_validate(
        {**(settings or Settings()).model_dump(), **(known.settings if known else {}), **changes}
    )
    async with SqlStore.open(url, tenant=tenant) as store:
        engine = Engine(
            store,
            settings=chosen,
            instructions=instructions,
            tools=tools,
            agent=known,
            vault=vault,
            summarizer=summarizer,
            embedder=embedder,
        )
        try:
            yield engine
        finally:
            await engine.settle()


class Engine:
    def __init__(
        self,
        store: Store,
        *,
        settings: Settings,
        instructions: str = "",
        tools: Sequence[ToolDefinition] = (),
        agent: Agent | None = None,
        vault: Vault | Path | str | None = None,
        summarizer: Model | Summarizer | None = None,
        embedder: Embedder | None = None,
        clock: Callable[[], int] = now,
    ) -> None:
        self.store, self.settings, self.clock = store, settings, clock
        self.policy: Policy = policy_for(settings)
        self.agent = _agent(agent, instructions=instructions, tools=tools)
        self.vault = _vault(vault, settings)
        if settings.context_tools:
            own = [OfferedTool(definition=definition) for definition in definitions(self)]
            self.agent = self.agent.offering(*self.agent.tools, *own)
        self.embedder = embedder
        self.blobs = LoadedBlobs(store)
        self.meter = self._meter(self.policy)
        self._calibrations: dict[str, Calibration] = {}
        self.summarizer = self._limited(summarizer)
        self.gatherer = Gatherer(self)
        self.referrer = Referrer(self)
        self.recaller = Recaller(self)
        self.hooks = Hooks()
        self._listeners: list[Callable[[Event], None]] = []
        self._tasks: dict[tuple[str, int, str], asyncio.Task[Any]] = {}

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
        self._tasks[key] = asyncio.get_running_loop().create_task(work)

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

    async def conversation(self, id: str | None = None, *, branch: int = MAIN) -> "Conversation":
        """The conversation with this id, made if there is none; without an id, a new one."""
        try:
            found = await self.store.conversation(id) if id is not None else await self.store.create_conversation()
        except ConversationNotFound:
            found = await self.store.create_conversation(id)
        await self._begin(found.id)
        return Conversation(self, found.id, branch)

    async def _begin(self, conversation: str) -> None:
        """A session begins with the items that are always there."""
        own = [each.item for each in own_items(self.agent)]
        changes = [change for change in initial_changes(self.agent) if change.item not in own]
        if changes and (await self.store.branch(conversation)).head_seq == 0:
            await self.store.append(conversation, *changes)

    async def calibration(self, model: str) -> Calibration:
        if model not in self._calibrations:
            known = await self.store.calibration(model)
            self._calibrations[model] = Calibration.parse(known) if known else Calibration()
        return self._calibrations[model]

    def calibrated(self, model: str, calibration: Calibration) -> None:
        self._calibrations[model] = calibration

    def index_vault(self) -> AsyncGenerator[Progress]:
        """Brings the search index up to date with the vault, and says after every note how far it is."""
        if self.vault is None:
            raise InvalidRequest("There is no vault to index; open the engine with one.")
        return index_vault(self, self.vault)

    @property
    def folder(self) -> Root | None:
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


def _vault(vault: Vault | Path | str | None, settings: Settings) -> Vault | None:
    if vault is None or isinstance(vault, Vault):
        return vault
    return Vault(vault, ambiguous=settings.ambiguous_links)
