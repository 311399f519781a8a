"""The tables as statements see them. The migrations make them; a test holds the two together.

Every key begins with the tenant, and what belongs to a conversation goes on with the conversation.
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
