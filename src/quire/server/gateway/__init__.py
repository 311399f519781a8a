"""Gateway: OpenAI-compatible chat completions that record every conversation and fit every request to the window.

A request is parsed, matched to a stored conversation, prepared, forwarded, relayed and recorded, in that order;
`exchange.py` shows the steps.
"""

from quire.server.gateway.routes import router

__all__ = ["router"]
