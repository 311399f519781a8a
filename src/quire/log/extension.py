"""PostgreSQL's extension `vector`: whether a database uses it, and how one that can begins to."""

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError


def has_extension(connection: Connection) -> bool:
    """Whether this database keeps vectors as such, asked anew each time: an upgrade may change it under us."""
    if connection.dialect.name != "postgresql":
        return False
    return connection.execute(_TYPE).scalar() == "vector"


_TYPE = text("""
    SELECT format_type(atttypid, NULL) FROM pg_attribute
    WHERE attrelid = to_regclass('quire_passages') AND attname = 'vector'
""")


def adopt_extension(connection: Connection) -> bool:
    """Lets PostgreSQL order the vectors from now on, if it can. Those that were kept as bytes are made anew."""
    if connection.dialect.name != "postgresql" or has_extension(connection) or not _can_create(connection):
        return False
    for statement in _ADOPT:
        connection.execute(text(statement))
    return True


# The vectors in the index belong to every tenant, and the policy is forced on the owner too.
_ADOPT = (
    """
    ALTER TABLE quire_passages
    ALTER COLUMN vector TYPE vector USING NULL, ALTER COLUMN embedder TYPE text COLLATE "C" USING NULL
    """,
    "ALTER TABLE quire_terms NO FORCE ROW LEVEL SECURITY",
    "DELETE FROM quire_terms WHERE term LIKE 'vector:%'",
    "ALTER TABLE quire_terms FORCE ROW LEVEL SECURITY",
)


def _can_create(connection: Connection) -> bool:
    offered = text("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")
    if connection.execute(offered).first() is None:
        return False
    try:
        with connection.begin_nested():
            connection.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))
    except DBAPIError:
        # Not every owner of a database may install what the server offers; the scan does without.
        return False
    return connection.execute(text("SELECT to_regtype('vector') IS NOT NULL")).scalar() is True
