"""The engine: conversations whose requests always fit the model's context window, built on log, view and ledger."""

from quire.engine.config import EngineConfig
from quire.engine.conversation import Conversation
from quire.engine.engine import Engine, open_engine
from quire.engine.request import Document, Request
from quire.engine.runtime import EngineRuntime

__all__ = ["Conversation", "Document", "Engine", "EngineConfig", "EngineRuntime", "Request", "open_engine"]
