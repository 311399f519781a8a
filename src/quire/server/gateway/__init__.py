"""Gateway: chat completions, Messages, Responses and Gemini, recorded and fitted to the window.

A request is parsed, matched to a stored conversation, prepared, forwarded, relayed and recorded, in that order;
`exchange.py` shows the steps. `quire.wire.codecs` has one codec per wire format.
"""

from quire.server.gateway.gemini_routes import router as gemini_router
from quire.server.gateway.responses_routes import conversations_router
from quire.server.gateway.responses_routes import router as responses_router
from quire.server.gateway.routes import other_paths_router, router

__all__ = ["conversations_router", "gemini_router", "other_paths_router", "responses_router", "router"]
