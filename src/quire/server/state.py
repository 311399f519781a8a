"""Shared server state: the store, one engine per tenant, access to models, running turns."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.requests import Request

from quire.agent.limits import build_mcp_limits, build_turn_limits
from quire.agent.mcp.servers import MCPServers, MCPToolRunner
from quire.agent.protocols import ToolRunner
from quire.db.tenant_keys import TenantKeys
from quire.engine import Engine
from quire.engine.tenants import TenantEngines
from quire.errors import ModelRequestRejected
from quire.jobs import Jobs, open_jobs
from quire.llm import Model, get_upstream_model
from quire.llm.embeddings import Embedder
from quire.llm.error_mapping import explain_unusable_model
from quire.llm.protocol import ModelBuilder
from quire.model.agents import Agent
from quire.model.context_events import ContextEvent
from quire.server.import_jobs import ImportJobs
from quire.server.live_events import LiveEvents
from quire.server.turn_registry import TurnRegistry
from quire.server.turn_relay import TurnRelay
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.settings.schema import Upstream, upstream_for
from quire.store import SqlStore

EngineEventListener = Callable[[str, ContextEvent], None]


class ServerState:
    """State shared by all requests; `get_server_state` returns it."""

    def __init__(
        self,
        store: SqlStore,
        settings: Settings,
        *,
        http_client: UpstreamClient,
        agent: Agent | None = None,
        summarizer: Model | ModelBuilder | None = None,
        embedder: Embedder | None = None,
        environ: Mapping[str, str] | None = None,
        is_local: bool = False,
        model_factory: Callable[[str], Model] | None = None,
        save_settings: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.store, self.http_client, self.is_local = store, http_client, is_local
        self.environ = environ or {}
        self.turns = TurnRegistry(store)
        self.turns.limits = build_turn_limits(settings)
        self.relay = TurnRelay(store, self.turns)
        self.live_events = LiveEvents(store, self.turns)
        self.imports = ImportJobs()
        self.instrument_model: Callable[[Model], Model] = lambda model: model
        """Wraps a model with tracing and metrics."""
        self.jobs: Jobs | None = None
        """Queue for background jobs; without it, the engines run them in this process."""
        self._model_factory, self._save_settings = model_factory, save_settings
        self._listeners: list[EngineEventListener] = []

        def emit(tenant: str, event: ContextEvent) -> None:
            for listener in self._listeners:
                listener(tenant, event)

        self.engines = TenantEngines(
            store,
            settings,
            agent=agent,
            summarizer=summarizer,
            embedder=embedder,
            instrument_model=lambda model: self.instrument_model(model),
            jobs_for=lambda tenant: self.jobs.for_tenant(tenant) if self.jobs is not None else None,
            on_event=emit,
            is_local=is_local,
        )

    @property
    def settings(self) -> Settings:
        return self.engines.settings

    def engine_for(self, tenant: str, *, model: str | None = None) -> Engine:
        """Returns the engine of a tenant, for the default model or for `model`."""
        return self.engines(tenant, model)

    def upstream_for(self, model: str) -> Upstream | None:
        """Returns the upstream that serves a model, if one is configured."""
        return upstream_for(self.settings, model)

    def upstream_model_for(self, model: str) -> str | None:
        """Returns the upstream's name of a model, if an upstream has another name for it."""
        upstream = self.upstream_for(model)
        return upstream.model if upstream is not None else None

    def model_for(self, name: str | None = None) -> Model:
        """Returns the named or the default model. A missing API key is reported when the model is called."""
        return self.instrument_model(self._build_model(name or self.settings.model))

    def _build_model(self, name: str) -> Model:
        if self._model_factory is not None:
            return self._model_factory(name)
        try:
            return get_upstream_model(name, self.settings, self.environ)
        except ModelRequestRejected as error:
            raise explain_unusable_model(name, error) from error

    def base_url_for(self, name: str) -> str | None:
        """Returns the base URL at which a model is called, or None if it is not called over HTTP."""
        return getattr(self._build_model(name), "base_url", None)

    async def change_settings(self, changes: Mapping[str, Any]) -> None:
        """Changes settings for all tenants from the next request on, and saves them."""
        settings = Settings.model_validate({**self.settings.model_dump(), **changes})
        if self._save_settings is not None:
            await asyncio.to_thread(self._save_settings, changes)
        await self.engines.change_settings(settings)

    def subscribe(self, listener: EngineEventListener) -> None:
        """Calls `listener` with the tenant and each further event of its engine."""
        self._listeners.append(listener)

    async def wait_for_background(self) -> None:
        """Waits until background work is done."""
        await self.engines.wait_for_background()


@asynccontextmanager
async def open_server_state(
    url: str,
    settings: Settings,
    *,
    agent: Agent | None = None,
    environ: Mapping[str, str] | None = None,
    is_local: bool = False,
    **options: Any,
) -> AsyncGenerator[ServerState]:
    """Opens the store and starts the agent's MCP servers. Closes both after turns and background work are done.

    No MCP server starts where no tenant has access to the host.
    """
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            SqlStore.open(
                url,
                listen_url=settings.listen_database_url,
                masking=settings.tenant_masking,
                keys=TenantKeys.from_settings(settings.encryption, environ or {}),
                object_storage=settings.object_storage_url,
            )
        )
        client = await stack.enter_async_context(UpstreamClient(timeout_seconds=settings.model_timeout))
        runners: tuple[ToolRunner, ...] = ()
        has_host_users = is_local or bool(settings.trusted_tenants)
        if has_host_users and agent is not None and any(server.enabled for server in agent.servers):
            servers = await stack.enter_async_context(
                MCPServers(agent.servers, variables=environ or {}, limits=build_mcp_limits(settings))
            )
            tools = await servers.list_tools()
            agent, runners = agent.with_tools(*agent.tools, *tools), (MCPToolRunner(servers, tools),)
        state = ServerState(
            store, settings, http_client=client, agent=agent, environ=environ, is_local=is_local, **options
        )
        state.turns.runners = runners
        state.jobs = await stack.enter_async_context(
            open_jobs(url, store, engines=lambda name, model: state.engine_for(name, model=model))
        )
        try:
            yield state
        finally:
            await state.turns.stop_all()
            await state.relay.close()
            await state.imports.stop_all()
            await state.wait_for_background()


def get_server_state(request: Request) -> ServerState:
    return request.app.state.server_state
