"""REST API: one module per resource, and the routers of plugins."""

from quire.plugins import load_plugins
from quire.server.routes import (
    agents,
    context,
    conversations,
    health,
    insights,
    keys,
    models,
    references,
    requests,
    search,
    settings,
    transfer,
    turns,
)

ROUTERS = (
    conversations.router,
    conversations.origins_router,
    conversations.entries_router,
    turns.router,
    turns.running_router,
    context.router,
    context.compaction_router,
    requests.router,
    references.router,
    agents.memory_router,
    agents.router,
    models.router,
    settings.router,
    keys.router,
    search.router,
    insights.router,
    transfer.router,
    transfer.imports_router,
    health.router,
    *load_plugins("quire.routes").values(),
)
