"""The log: every message kept, in SQLite or PostgreSQL. Everything goes through a `Store`."""

from quire.log.protocol import Store
from quire.log.records import MAIN, Blob, Branch, Conversation, Fault, Match, Turn, Window
from quire.log.store import DEFAULT_TENANT, SqlStore

__all__ = [
    "DEFAULT_TENANT",
    "MAIN",
    "Blob",
    "Branch",
    "Conversation",
    "Fault",
    "Match",
    "SqlStore",
    "Store",
    "Turn",
    "Window",
]
