"""What the requests to one server share: the store, an engine for each tenant, the way to models, turns under way."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx

from quire.agent.limits import server_limits
from quire.agent.mcp import Servers
from quire.agent.runners import ServerRunner
from quire.agent.turn_limits import turn_limits
from quire.engine import Engine
from quire.engine.tenants import TenantEngines
from quire.jobs import Jobs, open_jobs
from quire.llm import Model, model_named
from quire.llm.embeddings import Embedder
from quire.log import SqlStore
from quire.model.agents import Agent
from quire.model.events import Event
from quire.server.turns import Turns
from quire.settings import Settings
from quire.settings.table import Upstream
from quire.settings.upstreams import upstream_for

Listener = Callable[[str, Event], None]


class Serving:
    """Everything that a route needs; reached as `request.app.state.serving`."""

    def __init__(
        self,
        store: SqlStore,
        settings: Settings,
        *,
        client: httpx.AsyncClient,
        agent: Agent | None = None,
        summarizer: Model | None = None,
        embedder: Embedder | None = None,
        environ: Mapping[str, str] | None = None,
        local: bool = False,
        model: Callable[[str], Model] | None = None,
        save: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.store, self.client, self.local = store, client, local
        self.environ = environ or {}
        self.turns = Turns()
        self.turns.limits = turn_limits(settings)
        self.stopping = False
        self.watched: Callable[[Model], Model] = lambda model: model
        """Makes of a model one whose calls somebody looks on at."""
        self.jobs: Jobs | None = None
        """Who does what nobody waits for; without it, the engines do it themselves."""
        self._named, self._save = model, save
        self._listeners: list[Listener] = []
        self._engines = TenantEngines(
            store, settings, agent=agent, summarizer=summarizer, embedder=embedder, ready=self._ready
        )

    @property
    def settings(self) -> Settings:
        return self._engines.settings

    def engine(self, tenant: str, *, model: str | None = None) -> Engine:
        """The engine of a tenant, for its usual model or for another."""
        return self._engines(tenant, model)

    def _ready(self, tenant: str, engine: Engine) -> None:
        engine.subscribe(lambda event: self._tell(tenant, event))
        if engine.summarizer is not None:
            engine.summarizer = replace(engine.summarizer, model=self.watched(engine.summarizer.model))
        if self.jobs is not None:
            engine.deferrer = self.jobs.deferrer(tenant)

    def offer(self, agent: Agent) -> None:
        """Has this agent answer from now on."""
        self._engines.agent = agent

    def upstream(self, model: str) -> Upstream | None:
        """The server that answers for a model."""
        return upstream_for(self.settings, model)

    def model(self, name: str | None = None) -> Model:
        """The model of this name, or the usual one; which key it needs, its provider says when it is asked."""
        return self.watched(self._model(name or self.settings.model))

    def _model(self, name: str) -> Model:
        if self._named is not None:
            return self._named(name)
        upstream = self.upstream(name)
        if upstream is None:
            return model_named(name)
        key = self.environ.get(upstream.key_from) if upstream.key_from is not None else None
        return model_named(upstream.model or name, base_url=upstream.base_url, api_key=key)

    async def change(self, changes: Mapping[str, Any]) -> None:
        """Changes settings for everyone from the next request on, and keeps them where settings are kept."""
        settings = Settings.model_validate({**self.settings.model_dump(), **changes})
        if self._save is not None:
            await asyncio.to_thread(self._save, changes)
        await self._engines.use(settings)

    def subscribe(self, listener: Listener) -> None:
        """Calls `listener` with the tenant and every event of its engine, from now on."""
        self._listeners.append(listener)

    def _tell(self, tenant: str, event: Event) -> None:
        for listener in self._listeners:
            listener(tenant, event)

    async def settle(self) -> None:
        """Waits for what runs in the background."""
        await self._engines.settle()


@asynccontextmanager
async def serving(
    url: str, settings: Settings, *, agent: Agent | None = None, **options: Any
) -> AsyncGenerator[Serving]:
    """Opens the store, starts the agent's MCP servers, and closes both when turns and background work are done."""
    async with AsyncExitStack() as open_:
        store = await open_.enter_async_context(SqlStore.open(url))
        timeout = httpx.Timeout(settings.upstream_timeout, connect=10.0)
        # The limit on connections is the server's own: each request holds at most one.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        client = await open_.enter_async_context(httpx.AsyncClient(timeout=timeout, limits=limits))
        made = Serving(store, settings, client=client, agent=agent, **options)
        if agent is not None and any(server.enabled for server in agent.servers):
            servers = await open_.enter_async_context(
                Servers(agent.servers, variables=made.environ, limits=server_limits(settings))
            )
            offered = await servers.tools()
            made.offer(agent.offering(*agent.tools, *offered))
            made.turns.runners = (ServerRunner(servers, offered),)
        made.jobs = await open_.enter_async_context(
            open_jobs(url, store, lambda name, model: made.engine(name, model=model))
        )
        try:
            yield made
        finally:
            await made.turns.stop()
            await made.settle()
