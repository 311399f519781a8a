"""REST API: one module per resource."""

from quire.server.routes import (
    agents,
    compaction,
    context,
    conversations,
    entries,
    health,
    imports,
    keys,
    memory,
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
    entries.router,
    turns.router,
    context.router,
    compaction.router,
    requests.router,
    references.router,
    memory.router,
    agents.router,
    settings.router,
    keys.router,
    search.router,
    transfer.router,
    imports.router,
    health.router,
)
