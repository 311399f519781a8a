"""LRU cache of engines: one for each tenant of a store, changed for each model on demand."""

from collections.abc import Callable
from functools import partial

from cachetools import LRUCache

from quire.context.vault import Vault
from quire.engine.background_jobs import BackgroundJobs
from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.engine.runtime import EngineRuntime, IndexCaches
from quire.llm import Model
from quire.llm.embeddings import Embedder
from quire.llm.protocol import ModelBuilder
from quire.model.agents import Agent
from quire.model.context_events import ContextEvent
from quire.model.people import split_space
from quire.settings import Settings
from quire.settings.schema import tenant_quota_for
from quire.store import DEFAULT_TENANT, SqlStore

MAX_CACHED_ENGINES = 1_000
"""Maximum tenants with a cached engine. Creating one takes about a millisecond."""


class TenantEngines:
    """Engines that share one set of settings.

    `jobs_for` returns the background jobs of a tenant's engine, and `on_event` receives its events. Both are called
    after this object is created, so that they may depend on it.

    The vault and the agent belong to the host. The tenants in `trusted_tenants` have them, and if `is_local`, the
    default tenant, which is then the user of this machine.
    """

    def __init__(
        self,
        store: SqlStore,
        settings: Settings,
        *,
        agent: Agent | None = None,
        summarizer: Model | ModelBuilder | None = None,
        embedder: Embedder | None = None,
        instrument_model: Callable[[Model], Model] | None = None,
        jobs_for: Callable[[str], BackgroundJobs | None] | None = None,
        on_event: Callable[[str, ContextEvent], None] | None = None,
        is_local: bool = True,
    ) -> None:
        self.settings, self._agent, self._is_local = settings, agent, is_local
        self._store, self._summarizer, self._embedder = store, summarizer, embedder
        self._instrument_model, self._jobs_for, self._on_event = instrument_model, jobs_for, on_event
        self._vault = Vault(settings.vault) if settings.vault is not None else None
        self._engines: LRUCache[str, Engine] = LRUCache(MAX_CACHED_ENGINES)
        self._indexes = IndexCaches()
        self._observes_connections = False

    def __call__(self, tenant: str, model: str | None = None) -> Engine:
        engine = self._engines.get(tenant)
        if engine is None:
            if not self._observes_connections:
                self._store.on_connection_loss(self._clear_log_caches)
                self._observes_connections = True
            summarizer = self._summarizer
            if summarizer is not None and self._instrument_model is not None:
                summarizer = _instrument_summarizer(summarizer, self._instrument_model)
            # Whether the tenant uses the vault, the agent and the MCP servers of the host.
            named = split_space(tenant)[0] in self.settings.trusted_tenants
            has_host_access = named or (self._is_local and tenant == DEFAULT_TENANT)
            config = EngineConfig.create(
                self.settings,
                agent=self._agent if has_host_access else None,
                vault=self._vault if has_host_access else None,
                summarizer=summarizer,
                embedder=self._embedder,
                runs_turns=True,
            )
            jobs = self._jobs_for(tenant) if self._jobs_for is not None else None
            quota = tenant_quota_for(self.settings, tenant).stored_bytes
            engine = Engine(
                self._store.for_tenant(tenant, max_stored_bytes=quota),
                config,
                EngineRuntime(jobs=jobs, indexes=self._indexes),
            )
            if self._on_event is not None:
                engine.subscribe(partial(self._on_event, tenant))
            self._engines[tenant] = engine
        return engine if model in (None, engine.settings.model) else engine.with_changes(model=model)

    def _clear_log_caches(self) -> None:
        self._indexes.clear()
        for engine in self._engines.values():
            engine.runtime.clear_log_caches()

    async def change_settings(self, settings: Settings) -> None:
        """Uses other settings for all tenants from the next request on."""
        await self.wait_for_background()
        self.settings = settings
        self._engines.clear()

    async def wait_for_background(self) -> None:
        """Waits for the background tasks of all cached engines."""
        for engine in list(self._engines.values()):
            await engine.wait_for_background()


def _instrument_summarizer(
    summarizer: Model | ModelBuilder, instrument: Callable[[Model], Model]
) -> Model | ModelBuilder:
    if not callable(summarizer):
        return instrument(summarizer)
    build = summarizer
    return lambda name: instrument(build(name))
