"""Schema migrations with Alembic: SQLite migrates when opened, PostgreSQL by `quire db upgrade`.

A schema records its version and the oldest version whose code can use it (`oldest_reader`), so that servers of the
previous release serve while the schema is upgraded and nodes are replaced.

Alembic is imported only to migrate, because its import would slow down opening an up-to-date database.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from sqlalchemy import Connection, Table, create_engine, inspect, text

from quire.db.database import map_database_errors
from quire.db.database_url import create_private_files, parse_database_url
from quire.db.pgvector import enable_pgvector
from quire.db.schema import ALL_COLUMNS, FUNCTIONS, Rights, metadata
from quire.errors import InvalidConfiguration, SchemaOutdated, StoreBusy

SCHEMA_VERSION = "0017"
FIRST_VERSION = "0013"
"""The schema of the first migration. Earlier ones were never released."""
OLDEST_READER = "0017"
"""The oldest schema version whose code can use this schema. A migration that only expands does not change it."""
VERSION_TABLE = "quire_version"

_CONNECT_SECONDS = 10
"""Maximum time to connect to one host."""
_UPGRADE_LOCK_ID = 0x71756972
_UPGRADE_LOCK_SECONDS = 2
"""Maximum wait for the lock of a table. Less than the time that requests wait for one."""
_UPGRADE_ATTEMPTS = 60
_UPGRADE_PAUSE_SECONDS = 1.0
# Alembic stores its state in module globals, so a process can migrate only one database at a time.
_ALEMBIC_LOCK = Lock()


def get_version(connection: Connection) -> str | None:
    """The schema version, or None if the database was never migrated."""
    return _read_versions(connection)[0]


def _read_versions(connection: Connection) -> tuple[str | None, str | None]:
    """The schema version and its oldest reader."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None, None
    row = connection.execute(text(f"SELECT version_num, oldest_reader FROM {VERSION_TABLE}")).first()  # noqa: S608 (a constant)
    return (row[0], row[1]) if row is not None else (None, None)


def needs_upgrade(connection: Connection) -> bool:
    """Whether migrations are pending. Raises `SchemaOutdated` if this version of Quire cannot use or upgrade it."""
    version, oldest_reader = _read_versions(connection)
    if version is None or oldest_reader is None:
        return True
    if oldest_reader > SCHEMA_VERSION:
        raise SchemaOutdated(
            f"The database has schema version {version}, which needs a version of Quire for schema {oldest_reader} or "
            f"newer; this one is for {SCHEMA_VERSION}. Install the version that upgraded the database."
        )
    if version < FIRST_VERSION:
        raise SchemaOutdated(
            f"The database has schema version {version}, of a Quire from before the first release; this one upgrades "
            f"from {FIRST_VERSION} on. Run `quire export` with the Quire that wrote it, and `quire import` into a new "
            "database."
        )
    return version < SCHEMA_VERSION


def check_version(connection: Connection) -> None:
    """Raises `SchemaOutdated` unless this version of Quire can use the schema."""
    if needs_upgrade(connection):
        raise SchemaOutdated(
            f"The database has schema version {get_version(connection) or 'none'}, but this version of Quire needs "
            f"{SCHEMA_VERSION}; run `quire db upgrade`."
        )


def run_migrations(connection: Connection) -> None:
    """Runs pending migrations in the connection's transaction; the caller holds a lock against other upgrades."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    with _ALEMBIC_LOCK:
        command.upgrade(config, "head")
    connection.execute(text(f"UPDATE {VERSION_TABLE} SET oldest_reader = :version"), {"version": OLDEST_READER})  # noqa: S608 (a constant)


def upgrade(url: str) -> str | None:
    """Upgrades the database at `url`, after any concurrent upgrade. Returns the previous version.

    An upgrade that waits for the lock of a table makes every later transaction on that table wait too, so it gives up
    soon and starts again.
    """
    for _ in range(_UPGRADE_ATTEMPTS - 1):
        try:
            return _try_upgrade(url)
        except StoreBusy:
            time.sleep(_UPGRADE_PAUSE_SECONDS)
    return _try_upgrade(url)


def _try_upgrade(url: str) -> str | None:
    with connect(url) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _UPGRADE_LOCK_ID})
            connection.execute(text(f"SET LOCAL lock_timeout = '{_UPGRADE_LOCK_SECONDS}s'"))
        else:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        before = get_version(connection)
        if needs_upgrade(connection):
            run_migrations(connection)
        # Not a migration: the server may get the extension, or the owner the right to install it, at any time.
        enable_pgvector(connection)
        # Programs without a quota do not count what they store, so those with one count again. Row-level security hides
        # the rows from DELETE, also for the owner.
        is_postgres = connection.dialect.name == "postgresql"
        connection.exec_driver_sql(f"{'TRUNCATE' if is_postgres else 'DELETE FROM'} quire_stored_bytes")
        return before


def is_usable(url: str) -> bool:
    """Whether this version of Quire can use the schema of the database at `url`."""
    try:
        with connect(url) as connection:
            return not needs_upgrade(connection)
    except SchemaOutdated:
        return False


def get_version_at_url(url: str) -> str | None:
    """The schema version of the database at `url`."""
    with connect(url) as connection:
        return get_version(connection)


def grant_access(url: str, role: str) -> None:
    """Grants a PostgreSQL role the rights of the application, as the tables of the schema declare them.

    No rights on partitions: the role reaches them only through their table, where row-level security applies.
    """
    with connect(url) as connection:
        if connection.dialect.name == "sqlite":
            raise InvalidConfiguration(f"SQLite has no roles, so {role!r} cannot be granted access; leave it out.")
        if not connection.scalar(text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}):
            raise InvalidConfiguration(f"PostgreSQL has no role {role!r}; create it with `createuser {role}`.")
        name = connection.dialect.identifier_preparer.quote(role)
        statements = [
            f"GRANT SELECT ON {VERSION_TABLE} TO {name}",
            f"GRANT EXECUTE ON FUNCTION {', '.join(FUNCTIONS)} TO {name}",
            *(f"GRANT {', '.join(_list_rights(table))} ON {table.name} TO {name}" for table in metadata.sorted_tables),
        ]
        for statement in statements:
            connection.exec_driver_sql(statement)


def _list_rights(table: Table) -> list[str]:
    rights: Rights = table.info.get("rights") or Rights(inserts=True, updates=(), deletes=False)
    columns = "" if rights.updates == (ALL_COLUMNS,) else f" ({', '.join(rights.updates)})"
    return [
        "SELECT",
        *(["INSERT"] if rights.inserts else []),
        *([f"UPDATE{columns}"] if rights.updates else []),
        *(["DELETE"] if rights.deletes else []),
    ]


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
