"""What the requests to one server share: the store, an engine for each tenant, the way to models, turns under way."""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from fnmatch import fnmatchcase
from typing import Any

import httpx

from quire.agent.mcp import Servers
from quire.agent.runners import ServerRunner
from quire.engine import Engine
from quire.llm import Model, model_named
from quire.llm.embeddings import Embedder
from quire.log import SqlStore
from quire.model.agents import Agent
from quire.model.events import Event
from quire.server.turns import Turns
from quire.settings import Settings
from quire.settings.table import Upstream

TENANTS_AT_HAND = 1_000
"""Engines of so many tenants are kept, those used last; another costs a millisecond to make."""

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
    ) -> None:
        self.store, self.settings, self.client = store, settings, client
        self.agent, self.local = agent, local
        self.environ = environ or {}
        self.turns = Turns()
        self.stopping = False
        self._summarizer, self._embedder, self._named = summarizer, embedder, model
        self._engines: OrderedDict[str, Engine] = OrderedDict()
        self._listeners: list[Listener] = []

    def engine(self, tenant: str, *, model: str | None = None) -> Engine:
        """The engine of a tenant, for its usual model or for another."""
        found = self._engines.get(tenant)
        if found is None:
            found = self._engines[tenant] = self._made(tenant)
        self._engines.move_to_end(tenant)
        while len(self._engines) > TENANTS_AT_HAND:
            self._engines.popitem(last=False)
        return found if model in (None, found.settings.model) else found.like(**self.settings_for(model))

    def _made(self, tenant: str) -> Engine:
        engine = Engine(
            self.store.for_tenant(tenant),
            settings=self.settings,
            agent=self.agent,
            vault=self.settings.vault,
            summarizer=self._summarizer,
            embedder=self._embedder,
        )
        engine.subscribe(lambda event: self._tell(tenant, event))
        return engine

    def settings_for(self, model: str) -> dict[str, Any]:
        """What changes for another model; the window of the usual one is not that of every other."""
        upstream = self.upstream(model)
        known = {"context_limit": upstream.context_limit, "tokenizer": upstream.tokenizer} if upstream else {}
        return {"model": model, "context_limit": None, "tokenizer": None, **known}

    def upstream(self, model: str) -> Upstream | None:
        """The server that answers for a model: the one named so, else the first whose pattern fits, else the usual."""
        given = self.settings.upstreams
        if model in given:
            return given[model]
        fitting = next((each for pattern, each in given.items() if fnmatchcase(model, pattern)), None)
        if fitting is None and self.settings.base_url is not None:
            return Upstream(base_url=self.settings.base_url, context_limit=self.settings.context_limit)
        return fitting

    def model(self, name: str | None = None) -> Model:
        """The model of this name, or the usual one; which key it needs, its provider says when it is asked."""
        name = name or self.settings.model
        if self._named is not None:
            return self._named(name)
        upstream = self.upstream(name)
        if upstream is None:
            return model_named(name)
        key = self.environ.get(upstream.key_from) if upstream.key_from is not None else None
        return model_named(upstream.model or name, base_url=upstream.base_url, api_key=key)

    def use(self, **changes: Any) -> None:
        """Changes settings for everyone from the next request on."""
        self.settings = Settings.model_validate({**self.settings.model_dump(), **changes})
        self._engines.clear()

    def subscribe(self, listener: Listener) -> None:
        """Calls `listener` with the tenant and every event of its engine, from now on."""
        self._listeners.append(listener)

    def _tell(self, tenant: str, event: Event) -> None:
        for listener in self._listeners:
            listener(tenant, event)

    async def settle(self) -> None:
        """Waits for what runs in the background."""
        for engine in list(self._engines.values()):
            await engine.settle()


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
            servers = await open_.enter_async_context(Servers(agent.servers, variables=made.environ))
            offered = await servers.tools()
            made.agent = agent.offering(*agent.tools, *offered)
            made.turns.runners = (ServerRunner(servers, offered),)
        try:
            yield made
        finally:
            await made.turns.stop()
            await made.settle()
