"""`quire db`: database schema migrations."""

import os
from typing import Annotated

import typer

from quire.cli.common import EXIT_FAILED, AsJson, command, create_group
from quire.cli.config import mask_password
from quire.cli.output import make_text, print_result

app = create_group("Manage the database that holds the log.")

DatabaseUrl = Annotated[
    str | None,
    typer.Argument(help="sqlite:///path or postgresql://…; default: the settings.", show_default=False),
]


def _resolve_url(url: str | None) -> str:
    from quire.cli.engine_setup import SettingOverrides, load_cli_settings, resolve_database_url

    return url if url is not None else resolve_database_url(load_cli_settings(SettingOverrides()).settings)


@command(app, "quire db upgrade")
def upgrade(
    url: DatabaseUrl = None,
    *,
    role: Annotated[str | None, typer.Option(help="Also grant this PostgreSQL role access to the log.")] = None,
    as_json: AsJson = False,
) -> None:
    """Upgrade the schema to what this version of Quire needs."""
    from quire.jobs import queue_schema
    from quire.log import migrate

    database_url = _resolve_url(url)
    previous = migrate.upgrade(database_url)
    lines = [
        f"The schema is at {previous} already."
        if previous is not None and previous >= migrate.SCHEMA_VERSION
        else f"Upgraded the schema from {previous or 'nothing'} to {migrate.SCHEMA_VERSION}."
    ]
    queue = _upgrade_queue(database_url)
    if queue is not None:
        lines.append(f"The job queue is at {queue}.")
    if role is not None:
        migrate.grant_access(database_url, role)
        lines.append(f"Granted the role {role} access to the log.")
    if role is not None and queue is not None:
        queue_schema.grant(database_url, role)
    document = {
        "database": mask_password(database_url),
        "previous": previous,
        "version": max(previous or "", migrate.SCHEMA_VERSION),
        "queue": queue,
        "role": role,
    }
    print_result(document, lambda _: map(make_text, lines), as_json=as_json)


def _upgrade_queue(url: str) -> str | None:
    """Upgrades the job queue and returns its version; None without PostgreSQL or Procrastinate."""
    from quire.jobs import queue_schema
    from quire.log.database_url import is_postgres

    return queue_schema.upgrade(url) if is_postgres(url) and queue_schema.is_installed() else None


@command(app, "quire db status")
def status(url: DatabaseUrl = None, *, as_json: AsJson = False) -> None:
    """Print the schema version; the exit code is 1 if this version of Quire cannot use it."""
    from quire.log import migrate

    database_url = _resolve_url(url)
    exists = _database_exists(database_url)
    version = migrate.get_version_at_url(database_url) if exists else None
    line = f"The schema is at {version or 'nothing'}; this version of Quire needs {migrate.SCHEMA_VERSION}."
    current = exists and migrate.is_usable(database_url)
    document = {
        "database": mask_password(database_url),
        "version": version,
        "required": migrate.SCHEMA_VERSION,
        "current": current,
    }
    print_result(document, lambda _: [make_text(line)], as_json=as_json)
    if not current:
        raise typer.Exit(EXIT_FAILED)


def _database_exists(url: str) -> bool:
    """Checks a SQLite file without creating it."""
    return not url.startswith("sqlite:///") or os.path.exists(url.removeprefix("sqlite:///"))  # noqa: PTH110 (a URL's)
