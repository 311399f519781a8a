"""The PostgreSQL extension pgvector (`vector`): detects and enables it."""

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from quire.db.column_types import is_encrypting

_VECTOR_COLUMN_TYPE = text("""
    SELECT format_type(atttypid, NULL) FROM pg_attribute
    WHERE attrelid = to_regclass('quire_passages') AND attname = 'vector'
""")


def uses_pgvector(connection: Connection) -> bool:
    """Whether the database stores vectors with pgvector. Not cached: an upgrade may enable it at any time. Vectors of
    encrypted tenants are encrypted, in the rows of the inverted index."""
    if connection.dialect.name != "postgresql" or is_encrypting():
        return False
    return connection.execute(_VECTOR_COLUMN_TYPE).scalar() == "vector"


# Deletes the vectors of all tenants, so row-level security, which is forced on the owner too, must be off.
_ENABLE_PGVECTOR = (
    """
    ALTER TABLE quire_passages
    ALTER COLUMN vector TYPE vector USING NULL, ALTER COLUMN embedder TYPE text COLLATE "C" USING NULL
    """,
    "ALTER TABLE quire_terms NO FORCE ROW LEVEL SECURITY",
    "DELETE FROM quire_terms WHERE term LIKE 'vector:%'",
    "ALTER TABLE quire_terms FORCE ROW LEVEL SECURITY",
)


def enable_pgvector(connection: Connection) -> bool:
    """Enables pgvector if possible. Deletes vectors stored as bytes. Their passages must be embedded again."""
    if connection.dialect.name != "postgresql" or uses_pgvector(connection) or not _try_create_extension(connection):
        return False
    for statement in _ENABLE_PGVECTOR:
        connection.execute(text(statement))
    return True


def _try_create_extension(connection: Connection) -> bool:
    available = text("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")
    if connection.execute(available).first() is None:
        return False
    try:
        with connection.begin_nested():
            connection.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))
    except DBAPIError:
        # The owner of the database may lack the right to install the extension; search then scans the vectors.
        return False
    return connection.execute(text("SELECT to_regtype('vector') IS NOT NULL")).scalar() is True
