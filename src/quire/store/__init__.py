"""The store: the log, keys, usage, leases and the search index, for one tenant, in SQLite or PostgreSQL."""

from quire.rows import DEFAULT_TENANT
from quire.store.sql_store import SqlStore

__all__ = ["DEFAULT_TENANT", "SqlStore"]
