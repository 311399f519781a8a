"""The queue's tables, which Procrastinate brings: made and kept up to date by `quire db upgrade`.

They stand beside Quire's own. Which of Procrastinate's migrations a database has is recorded in `quire_queue`, so that
a newer package finds what is missing; tables that somebody else made are left to them.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url

from quire.errors import MissingExtra, SchemaOutdated
from quire.log.migrate import connected

_LOCK = 0x71756571
_RECORD = "quire_queue"
_TABLES = ("procrastinate_jobs", "procrastinate_events", "procrastinate_periodic_defers", "procrastinate_workers")


def is_installed() -> bool:
    return find_spec("procrastinate") is not None


def require() -> None:
    if not is_installed():
        raise MissingExtra(extra="worker", needed_for="The queue of jobs")


def upgrade(url: str) -> str:
    """Brings the queue of the database at `url` to what the installed Procrastinate needs; returns its last migration.

    Everything in one transaction, waiting for anyone who does the same.
    """
    require()
    wanted = migrations()
    with connected(url) as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        applied = _applied(connection)
        if applied is None and not _has_jobs(connection):
            connection.exec_driver_sql(f"CREATE TABLE {_RECORD} (migration text PRIMARY KEY)")
            _run(connection, _schema())
            _note(connection, [path.name for path in wanted])
        elif applied is not None:
            missing = [path for path in wanted if path.name not in applied]
            for path in missing:
                _run(connection, path.read_text("utf-8"))
            _note(connection, [path.name for path in missing])
    return wanted[-1].stem


def grant(url: str, role: str) -> None:
    """Lets a role of PostgreSQL put jobs into the queue and take them out; it sees the ids of all tenants there."""
    with connected(url) as connection:
        name = connection.dialect.identifier_preparer.quote(role)
        connection.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(_TABLES)} TO {name}")
        for (sequence,) in connection.execute(_SEQUENCES).all():
            connection.exec_driver_sql(f"GRANT USAGE ON SEQUENCE {sequence} TO {name}")
        if _applied(connection) is not None:
            connection.exec_driver_sql(f"GRANT SELECT ON {_RECORD} TO {name}")


def is_there(url: str) -> bool:
    """Whether the database at `url` has a queue that the installed Procrastinate can use."""
    if make_url(url).get_backend_name() != "postgresql" or not is_installed():
        return False
    with connected(url) as connection:
        applied = _applied(connection)
        return _has_jobs(connection) and (applied is None or all(path.name in applied for path in migrations()))


def check(url: str) -> None:
    require()
    if not is_there(url):
        raise SchemaOutdated(
            "The database has no queue of jobs that the installed Procrastinate can use: run `quire db upgrade`."
        )


def _has_jobs(connection: Connection) -> bool:
    return connection.execute(text("SELECT to_regclass('procrastinate_jobs') IS NOT NULL")).scalar() is True


def _applied(connection: Connection) -> set[str] | None:
    """The migrations that we applied; None where the tables are not ours, or not there."""
    if connection.execute(text(f"SELECT to_regclass('{_RECORD}') IS NULL")).scalar():
        return None
    return set(connection.execute(text(f"SELECT migration FROM {_RECORD}")).scalars())  # noqa: S608 (a constant)


def _note(connection: Connection, names: Sequence[str]) -> None:
    for name in names:
        connection.execute(text(f"INSERT INTO {_RECORD} VALUES (:name)"), {"name": name})  # noqa: S608 (a constant)


def _run(connection: Connection, script: str) -> None:
    """Several statements at once, which only a bare cursor takes; a percent sign is one."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(script)
    finally:
        cursor.close()


def _schema() -> str:
    from procrastinate.schema import SchemaManager

    return SchemaManager.get_schema()


def migrations() -> list[Path]:
    """Procrastinate's, in their order; a database made by its whole schema has them all."""
    from procrastinate.schema import SchemaManager

    return sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))


_SEQUENCES = text(r"""
    SELECT quote_ident(relname) FROM pg_class
    WHERE relkind = 'S' AND relname LIKE 'procrastinate\_%' AND pg_table_is_visible(oid)
""")
