"""The tables as statements see them. The migrations make them; a test holds the two together.

Every key of a tenant's rows begins with the tenant, and what belongs to a conversation goes on with the conversation.
Times are microseconds since 1970, digests are 32 bytes, bodies are canonical JSON kept as text to keep their bytes.
"""

from typing import Any

from sqlalchemy import BigInteger, Column, Double, Integer, MetaData, Table, Text
from sqlalchemy.types import UserDefinedType


class Bytes(UserDefinedType[bytes]):
    """Binary data as both drivers give and take it; SQLAlchemy's own type would copy every value."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "BLOB"


metadata = MetaData()

conversations = Table(
    "quire_conversations",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("title", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("used_at", BigInteger, nullable=False),
    Column("purged_at", BigInteger),
)

branches = Table(
    "quire_branches",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("lineage", Text, nullable=False),
    Column("head_seq", BigInteger, nullable=False),
    Column("head_digest", Bytes, nullable=False),
    Column("head_path", Bytes, nullable=False),
    Column("state", Text, nullable=False),
    Column("used_at", BigInteger, nullable=False),
)

entries = Table(
    "quire_entries",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("role", Text),
    Column("author", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("digest", Bytes, nullable=False),
    Column("path", Bytes, nullable=False),
    Column("tokens", Integer),
    Column("counter", Text),
    Column("body", Text, nullable=False),
    Column("notes", Text),
    Column("purged_at", BigInteger),
)

paths = Table(
    "quire_paths",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("path", Bytes, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
)
"""Which message, in which branch, ends which path. Apart from the entries, so that it can be split by path:
the look-up does not know the conversation, it is there to find it."""

blobs = Table(
    "quire_blobs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("digest", Bytes, primary_key=True),
    Column("media_type", Text, nullable=False),
    Column("data", Bytes, nullable=False),
)

blob_uses = Table(
    "quire_blob_uses",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", Bytes, primary_key=True),
)
"""Which entry quotes which blob, so that a purge knows when a blob is no longer needed."""

manifests = Table(
    "quire_manifests",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("manifest", Text, nullable=False),
    Column("request", Text),
)
"""For every request that was answered, under the number of its reply, what it was made of."""

calibrations = Table(
    "quire_calibrations",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("calibration", Text, nullable=False),
)
"""How a model's reported tokens compare with our counts."""

spending = Table(
    "quire_spending",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("dollars", Double, nullable=False),
)
"""What the model calls of a conversation have cost so far, summaries included."""

passages = Table(
    "quire_passages",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("scope", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("title", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("digest", Bytes, nullable=False),
    Column("at", BigInteger),
    Column("embedder", Text),
    Column("vector", Bytes),
)
"""What a search can find, piece by piece: of a conversation's messages, a vault's documents, an agent's memories.

Derived, all of it. `vector` is in use where PostgreSQL has the extension, and is of its type there."""

terms = Table(
    "quire_terms",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("scope", Text, primary_key=True),
    Column("term", Text, primary_key=True),
    Column("block", BigInteger, primary_key=True, autoincrement=False),
    Column("places", Bytes, nullable=False),
)
"""In which passages of a scope a word stands, or what the vectors of an embedder are, a block of numbers a row."""

scopes = Table(
    "quire_scopes",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("scope", Text, primary_key=True),
    Column("next", BigInteger, nullable=False),
    Column("passages", BigInteger, nullable=False),
)
"""The next number in a scope, and how many passages it has; who changes the scope holds this row."""

shelves = Table(
    "quire_shelves",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("shelf", Integer, primary_key=True, autoincrement=False),
    Column("upto", BigInteger, nullable=False),
    Column("version", Text, nullable=False),
    Column("data", Bytes, nullable=False),
)
"""The recall index of a branch's own entries, so many a row, as bytes that the store does not read. Derived."""

memories = Table(
    "quire_memories",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("memory", Text, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("conversation", Text),
    Column("branch", Integer),
    Column("seq", BigInteger),
    Column("source", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("retired_at", BigInteger),
    Column("replaced_by", Text),
)
"""What an agent remembers, each with the message or the source that it came from."""

documents = Table(
    "quire_documents",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("vault", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("digest", Bytes, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("modified", BigInteger, nullable=False),
    Column("title", Text, nullable=False),
    Column("summary", Text, nullable=False),
    Column("aliases", Text, nullable=False),
    Column("headings", Text, nullable=False),
)
"""What the index knows of each file of a vault; aliases and headings are JSON lists. Derived."""

keys = Table(
    "quire_keys",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", Bytes, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("requests_per_minute", Integer),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
)
"""Who may come in for a tenant: of each key its public id and the digest of its secret; scopes are words."""

sweeps = Table(
    "quire_sweeps",
    metadata,
    Column("name", Text, primary_key=True),
    Column("upto", BigInteger, nullable=False),
)
"""Up to which time somebody has looked for work left undone, of all tenants: it belongs to none, and names none."""
