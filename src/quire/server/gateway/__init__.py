"""The gateway: OpenAI's chat completions for any client, with every conversation kept and every request within budget.

One request is read, recognised, prepared, forwarded, relayed and recorded, in that order; `exchange.py` is the map.
"""

from quire.server.gateway.routes import router

__all__ = ["router"]
