"""An engine for each tenant of one store, and for each model that a conversation of theirs is answered by."""

from collections import OrderedDict
from collections.abc import Callable

from quire.context.vault import Vault
from quire.engine.engine import Engine
from quire.llm import Model
from quire.llm.embeddings import Embedder
from quire.log import SqlStore
from quire.model.agents import Agent
from quire.settings import Settings
from quire.settings.upstreams import settings_for

AT_HAND = 1_000
"""Engines of so many tenants are kept, those used last; another costs a millisecond to make."""


class TenantEngines:
    """Engines made from one set of settings. `ready` is called with each new one before it is used."""

    def __init__(
        self,
        store: SqlStore,
        settings: Settings,
        *,
        agent: Agent | None = None,
        summarizer: Model | None = None,
        embedder: Embedder | None = None,
        ready: Callable[[str, Engine], None] | None = None,
    ) -> None:
        self.settings, self.agent = settings, agent
        self._store, self._summarizer, self._embedder, self._ready = store, summarizer, embedder, ready
        self._vault = Vault(settings.vault, ambiguous=settings.ambiguous_links) if settings.vault is not None else None
        self._made: OrderedDict[str, Engine] = OrderedDict()

    def __call__(self, tenant: str, model: str | None = None) -> Engine:
        engine = self._made.get(tenant)
        if engine is None:
            engine = self._made[tenant] = self._engine(tenant)
        self._made.move_to_end(tenant)
        while len(self._made) > AT_HAND:
            self._made.popitem(last=False)
        return engine if model in (None, engine.settings.model) else engine.like(**settings_for(self.settings, model))

    def _engine(self, tenant: str) -> Engine:
        engine = Engine(
            self._store.for_tenant(tenant),
            settings=self.settings,
            agent=self.agent,
            vault=self._vault,
            summarizer=self._summarizer,
            embedder=self._embedder,
        )
        if self._ready is not None:
            self._ready(tenant, engine)
        return engine

    async def use(self, settings: Settings) -> None:
        """Other settings for everyone from the next request on."""
        await self.settle()
        self.settings = settings
        self._made.clear()

    async def settle(self) -> None:
        """Waits for what runs in the background."""
        for engine in list(self._made.values()):
            await engine.settle()
