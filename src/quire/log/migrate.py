"""Brings a database to the schema of this version. SQLite does it on opening, PostgreSQL by `quire db upgrade`.

Alembic is imported only when there is something to migrate: opening an up-to-date database should not wait for it.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.engine import make_url

from quire.errors import SchemaOutdated
from quire.log.extension import adopt_extension
from quire.log.foreign import mapped_errors

HEAD = "0005"
VERSION_TABLE = "quire_version"

_TABLES = (
    "conversations", "branches", "entries", "paths", "blobs", "blob_uses", "manifests", "calibrations", "spending",
    "passages", "terms", "scopes", "shelves", "memories", "documents",
    "keys",
)  # fmt: skip
_INDEX = ("passages", "terms", "scopes", "shelves", "documents")
_UPGRADE_LOCK = 0x71756972
# Alembic keeps what it migrates in its modules' globals: in one process, one database at a time.
_ALEMBIC = Lock()


def version(connection: Connection) -> str | None:
    """The schema's version, or None where nothing was ever migrated."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 (a constant)


def check(connection: Connection) -> None:
    found = version(connection)
    _refuse_newer(found)
    if found != HEAD:
        raise SchemaOutdated(
            f"The database's schema is at {found or 'nothing'}, and this version of Quire needs {HEAD}: "
            "run `quire db upgrade`."
        )


def _refuse_newer(found: str | None) -> None:
    if found is not None and found > HEAD:
        raise SchemaOutdated(
            f"The database's schema is at {found}, which is newer than the {HEAD} of this version of Quire: "
            "install the newer version that wrote it."
        )


def migrate(connection: Connection) -> None:
    """Upgrades within the connection's transaction; the caller holds whatever lock keeps others out."""
    from alembic import command
    from alembic.config import Config

    _refuse_newer(version(connection))
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    with _ALEMBIC:
        command.upgrade(config, "head")


def upgrade(url: str) -> str | None:
    """Upgrades the database at `url`, waiting for anyone who does the same; returns the version before."""
    with connected(url) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _UPGRADE_LOCK})
        else:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        before = version(connection)
        if before != HEAD:
            migrate(connection)
        # Not a migration: the server may come to offer it, or the owner the right to it, at any time.
        adopt_extension(connection)
        return before


def status(url: str) -> str | None:
    """The version of the database at `url`."""
    with connected(url) as connection:
        return version(connection)


def grant(url: str, role: str) -> None:
    """Lets a role of PostgreSQL use the log as the application: it can add, and alter only what a purge must.

    It gets no right to any partition: those are reached through their table alone, where row-level security holds.
    """
    with connected(url) as connection:
        name = connection.dialect.identifier_preparer.quote(role)
        for statement in _grants(name):
            connection.exec_driver_sql(statement)


@contextmanager
def connected(url: str) -> Generator[Connection]:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        # Through a pooler, a prepared statement may meet another client's of the same name.
        engine = create_engine(parsed.set(drivername="postgresql+psycopg"), connect_args={"prepare_threshold": None})
    else:
        # SQLite's driver would otherwise begin transactions where it sees fit, and not for DDL.
        engine = create_engine(parsed, connect_args={"isolation_level": None, "timeout": 60})
    try:
        with mapped_errors(), engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def _grants(role: str) -> list[str]:
    tables = ", ".join(f"quire_{table}" for table in _TABLES)
    return [
        f"GRANT SELECT ON {VERSION_TABLE} TO {role}",
        f"GRANT SELECT, INSERT ON {tables} TO {role}",
        f"GRANT UPDATE ON quire_conversations, quire_branches, quire_calibrations, quire_spending TO {role}",
        f"GRANT UPDATE (body, notes, tokens, counter, purged_at) ON quire_entries TO {role}",
        f"GRANT DELETE ON quire_blobs, quire_blob_uses TO {role}",
        # The index is derived and may be rewritten; a memory can only be retired, or lose its text to a purge.
        f"GRANT UPDATE, DELETE ON {', '.join(f'quire_{table}' for table in _INDEX)} TO {role}",
        f"GRANT UPDATE (text, source, retired_at, replaced_by) ON quire_memories TO {role}",
        f"GRANT UPDATE (name, expires_at, revoked_at) ON quire_keys TO {role}",
        # Which conversation was used when, of all tenants, and how far somebody has looked through them.
        f"GRANT EXECUTE ON FUNCTION quire_used TO {role}",
        f"GRANT SELECT, INSERT, UPDATE ON quire_sweeps TO {role}",
    ]
