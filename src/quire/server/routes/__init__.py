"""REST API: one module per resource."""

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
    insights.backtests_router,
    transfer.router,
    transfer.imports_router,
    health.router,
)
