"""The log: every message kept, in SQLite or PostgreSQL. Everything goes through a `Store`."""

from quire.log.found import (
    SHELF,
    Citation,
    Document,
    DocumentMark,
    Embedded,
    Hit,
    IndexedDocument,
    Memory,
    Passage,
    Shelf,
    ShelfMark,
    Unembedded,
    conversation_scope,
    memory_scope,
    message_key,
    message_place,
    vault_scope,
)
from quire.log.keys import SCOPES, Key, Scope
from quire.log.protocol import Archive, Keys, Store
from quire.log.records import MAIN, Blob, Branch, Conversation, Fault, Filed, Match, Recognised, Turn, Window
from quire.log.steps import DEFAULT_TENANT
from quire.log.store import SqlStore
from quire.log.vectors import packed

__all__ = [
    "DEFAULT_TENANT",
    "MAIN",
    "SCOPES",
    "SHELF",
    "Archive",
    "Blob",
    "Branch",
    "Citation",
    "Conversation",
    "Document",
    "DocumentMark",
    "Embedded",
    "Fault",
    "Filed",
    "Hit",
    "IndexedDocument",
    "Key",
    "Keys",
    "Match",
    "Memory",
    "Passage",
    "Recognised",
    "Scope",
    "Shelf",
    "ShelfMark",
    "SqlStore",
    "Store",
    "Turn",
    "Unembedded",
    "Window",
    "conversation_scope",
    "memory_scope",
    "message_key",
    "message_place",
    "packed",
    "vault_scope",
]
