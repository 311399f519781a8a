"""Joins the log, the view and the ledger into conversations that never outgrow their model's window."""

from quire.engine.conversation import Conversation
from quire.engine.engine import Engine, open_engine
from quire.engine.request import Document, Request

__all__ = ["Conversation", "Document", "Engine", "Request", "open_engine"]
