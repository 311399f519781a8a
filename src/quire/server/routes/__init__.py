"""The REST interface, a file a subject."""

from quire.server.routes import conversations

ROUTERS = (conversations.router,)
