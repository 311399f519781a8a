"""Schema migrations with Alembic: SQLite migrates when opened, PostgreSQL by `quire db upgrade`.

Alembic is imported only to migrate, because its import would slow down opening an up-to-date database.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from sqlalchemy import Connection, create_engine, inspect, text

from quire.errors import SchemaOutdated
from quire.log.database_url import parse_database_url
from quire.log.error_mapping import map_database_errors
from quire.log.pgvector import enable_pgvector
from quire.log.sqlite_files import create_private_files

SCHEMA_VERSION = "0001"
VERSION_TABLE = "quire_version"

_TENANT_TABLES = (
    "conversations", "branches", "entries", "paths", "blobs", "blob_uses", "manifests", "imports", "transcripts",
    "transcript_lines", "calibrations", "costs", "spending", "spend_reservations", "turn_leases", "passages", "terms",
    "search_scopes", "message_segments", "unindexed_branches", "memories", "documents", "api_keys",
    "turn_events", "rate_limits", "uncounted_branches", "counted_branches", "usage_contributions", "usage_totals",
    "usage_turns", "document_pairs",
)  # fmt: skip
_DERIVED_TABLES = (
    "passages", "terms", "search_scopes", "message_segments", "unindexed_branches", "documents", "uncounted_branches",
    "counted_branches", "usage_contributions", "usage_totals", "usage_turns", "document_pairs",
)  # fmt: skip
_UPDATABLE_COLUMNS = {
    "conversations": (
        "title",
        "updated_at",
        "purged_at",
        "project",
        "agent",
        "parent_agent",
        "row_digest",
    ),
    "branches": ("name", "head_seq", "head_digest", "head_path", "state", "updated_at", "row_digest"),
    "entries": ("body", "notes", "tokens", "counter", "purged_at"),
    "manifests": ("manifest", "response_id", "row_digest"),
    "blobs": ("uploaded_at",),
    "calibrations": ("calibration", "row_digest"),
    "transcripts": ("conversation", "line_count", "modified_at", "summary", "row_digest"),
    "costs": ("cost_usd",),
    "spending": ("cost_usd",),
    "turn_leases": (
        "turn",
        "owner",
        "after_seq",
        "question_digest",
        "expires_at",
        "stop_requested",
        "pending_call",
        "approval",
        "is_approved",
        "outcome",
    ),
    # A memory can only be retired, or lose its text to a purge.
    "memories": ("text", "source", "retired_at", "replaced_by", "row_digest"),
    "api_keys": ("revoked_at", "row_digest"),
    "rate_limits": ("tokens", "granted", "updated_at"),
}
"""Columns that the application updates: the head of a branch, totals, times, and what a purge overwrites."""
_CONNECT_SECONDS = 10
"""Maximum time to connect to one host."""
_UPGRADE_LOCK_ID = 0x71756972
# Alembic stores its state in module globals, so a process can migrate only one database at a time.
_ALEMBIC_LOCK = Lock()


def get_version(connection: Connection) -> str | None:
    """The schema version, or None if the database was never migrated."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 (a constant)


def check_version(connection: Connection) -> None:
    version = get_version(connection)
    _check_not_newer(version)
    if version != SCHEMA_VERSION:
        raise SchemaOutdated(
            f"The database has schema version {version or 'none'}, but this version of Quire needs {SCHEMA_VERSION}; "
            "run `quire db upgrade`."
        )


def _check_not_newer(version: str | None) -> None:
    if version is not None and version > SCHEMA_VERSION:
        raise SchemaOutdated(
            f"The database has schema version {version}, newer than the {SCHEMA_VERSION} of this version of Quire; "
            "install the newer version that wrote it."
        )


def run_migrations(connection: Connection) -> None:
    """Runs pending migrations in the connection's transaction; the caller holds a lock against other upgrades."""
    from alembic import command
    from alembic.config import Config

    _check_not_newer(get_version(connection))
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    with _ALEMBIC_LOCK:
        command.upgrade(config, "head")


def upgrade(url: str) -> str | None:
    """Upgrades the database at `url`, after any concurrent upgrade; returns the previous version."""
    with connect(url) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _UPGRADE_LOCK_ID})
        else:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        before = get_version(connection)
        if before != SCHEMA_VERSION:
            run_migrations(connection)
        # Not a migration: the server may get the extension, or the owner the right to install it, at any time.
        enable_pgvector(connection)
        return before


def get_version_at_url(url: str) -> str | None:
    """The schema version of the database at `url`."""
    with connect(url) as connection:
        return get_version(connection)


def grant_access(url: str, role: str) -> None:
    """Grants a PostgreSQL role the rights of the application: insert, and update only what a purge must overwrite.

    No rights on partitions: the role reaches them only through their table, where row-level security applies.
    """
    with connect(url) as connection:
        name = connection.dialect.identifier_preparer.quote(role)
        for statement in _grant_statements(name):
            connection.exec_driver_sql(statement)


@contextmanager
def connect(url: str) -> Generator[Connection]:
    parsed = parse_database_url(url)
    if parsed.get_backend_name() == "postgresql":
        # Behind a pooler, a prepared statement may collide with another client's of the same name.
        arguments = {"prepare_threshold": None, "connect_timeout": _CONNECT_SECONDS}
        engine = create_engine(parsed.set(drivername="postgresql+psycopg"), connect_args=arguments)
    else:
        create_private_files(parsed)
        # Otherwise the driver of SQLite begins transactions implicitly, and not before DDL.
        engine = create_engine(parsed, connect_args={"isolation_level": None, "timeout": 60})
    try:
        with map_database_errors(), engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def _grant_statements(role: str) -> list[str]:
    tables = ", ".join(f"quire_{table}" for table in _TENANT_TABLES)
    return [
        f"GRANT SELECT ON {VERSION_TABLE} TO {role}",
        f"GRANT SELECT, INSERT ON {tables} TO {role}",
        *(
            f"GRANT UPDATE ({', '.join(columns)}) ON quire_{table} TO {role}"
            for table, columns in _UPDATABLE_COLUMNS.items()
        ),
        f"GRANT DELETE ON quire_blobs, quire_blob_uses, quire_spend_reservations, quire_turn_leases, "
        f"quire_transcripts, quire_transcript_lines, quire_turn_events TO {role}",
        # The search index and the usage roll-up are derived and may be rewritten.
        f"GRANT UPDATE, DELETE ON {', '.join(f'quire_{table}' for table in _DERIVED_TABLES)} TO {role}",
        # For the sweep over the conversations of all tenants, and for event streams.
        f"GRANT EXECUTE ON FUNCTION quire_list_updated_conversations, quire_list_branch_heads TO {role}",
        f"GRANT SELECT, INSERT, UPDATE ON quire_sweeps TO {role}",
    ]
