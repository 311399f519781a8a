"""The REST interface, a file a subject."""

from quire.server.routes import (
    agents,
    compaction,
    context,
    conversations,
    entries,
    events,
    health,
    keys,
    memory,
    references,
    requests,
    search,
    sending,
    settings,
    transfer,
)

ROUTERS = (
    conversations.router,
    entries.router,
    sending.router,
    events.router,
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
    health.router,
)
