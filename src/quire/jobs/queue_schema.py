"""Schema of the job queue: Procrastinate's tables, created and migrated by `quire db upgrade`.

The table `quire_queue_migrations` records which of Procrastinate's migrations were applied, so that a newer package
applies the missing ones. Tables that another application created are not migrated.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import Connection, text

from quire.db.database_url import is_postgres
from quire.db.migrate import connect
from quire.errors import MissingExtra, SchemaOutdated

_ADVISORY_LOCK_ID = 0x71756571
"""Held during an upgrade, so that concurrent upgrades run one after the other."""
_MIGRATIONS_TABLE = "quire_queue_migrations"
_TABLES = ("procrastinate_jobs", "procrastinate_events", "procrastinate_periodic_defers", "procrastinate_workers")


def is_installed() -> bool:
    return find_spec("procrastinate") is not None


def require_procrastinate() -> None:
    if not is_installed():
        raise MissingExtra(extra="worker", feature="The job queue")


def upgrade(url: str) -> str:
    """Migrates the queue of the database at `url` for the installed Procrastinate. Returns the last migration.

    Runs in one transaction, after any concurrent upgrade.
    """
    require_procrastinate()
    from procrastinate.schema import SchemaManager

    migrations = list_migrations()
    with connect(url) as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK_ID})
        applied = _applied_migrations(connection)
        if applied is None and not _has_jobs(connection):
            connection.exec_driver_sql(f"CREATE TABLE {_MIGRATIONS_TABLE} (migration text PRIMARY KEY)")
            _run_script(connection, SchemaManager.get_schema())
            _record_migrations(connection, [path.name for path in migrations])
        elif applied is not None:
            missing = [path for path in migrations if path.name not in applied]
            for path in missing:
                _run_script(connection, path.read_text("utf-8"))
            _record_migrations(connection, [path.name for path in missing])
    return migrations[-1].stem


def grant(url: str, role: str) -> None:
    """Grants a PostgreSQL role access to the queue. Through it the role can read the ids of all tenants."""
    with connect(url) as connection:
        name = connection.dialect.identifier_preparer.quote(role)
        connection.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(_TABLES)} TO {name}")
        for (sequence,) in connection.execute(_SEQUENCES).all():
            connection.exec_driver_sql(f"GRANT USAGE ON SEQUENCE {sequence} TO {name}")
        if _applied_migrations(connection) is not None:
            connection.exec_driver_sql(f"GRANT SELECT ON {_MIGRATIONS_TABLE} TO {name}")


def has_queue(url: str) -> bool:
    """Whether the database at `url` has a queue that the installed Procrastinate can use."""
    if not is_postgres(url) or not is_installed():
        return False
    with connect(url) as connection:
        applied = _applied_migrations(connection)
        return _has_jobs(connection) and (applied is None or all(path.name in applied for path in list_migrations()))


def check_queue(url: str) -> None:
    """Raises `SchemaOutdated` if the database has no usable queue."""
    require_procrastinate()
    if not has_queue(url):
        raise SchemaOutdated(
            "The database has no job queue that the installed Procrastinate can use: run `quire db upgrade`."
        )


def _has_jobs(connection: Connection) -> bool:
    return connection.execute(text("SELECT to_regclass('procrastinate_jobs') IS NOT NULL")).scalar() is True


def _applied_migrations(connection: Connection) -> set[str] | None:
    """The migrations that Quire applied, or None if the tables are missing or belong to another application."""
    if connection.execute(text(f"SELECT to_regclass('{_MIGRATIONS_TABLE}') IS NULL")).scalar():
        return None
    return set(connection.execute(text(f"SELECT migration FROM {_MIGRATIONS_TABLE}")).scalars())  # noqa: S608 (a constant)


def _record_migrations(connection: Connection, names: Sequence[str]) -> None:
    for name in names:
        connection.execute(text(f"INSERT INTO {_MIGRATIONS_TABLE} VALUES (:name)"), {"name": name})  # noqa: S608 (a constant)


def _run_script(connection: Connection, script: str) -> None:
    """Runs several statements at once, without parameters: only a raw cursor accepts them and reads `%` literally."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(script)
    finally:
        cursor.close()


def list_migrations() -> list[Path]:
    """Procrastinate's migrations, in order. A database created from the full schema has them all."""
    from procrastinate.schema import SchemaManager

    return sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))


_SEQUENCES = text(r"""
    SELECT quote_ident(relname) FROM pg_class
    WHERE relkind = 'S' AND relname LIKE 'procrastinate\_%' AND pg_table_is_visible(oid)
""")
