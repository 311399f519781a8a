"""`quire db`: database schema migrations."""

import os
from typing import Annotated

import typer

from quire.cli.common import EXIT_FAILED, command, create_group
from quire.cli.config import mask_password
from quire.cli.engine_setup import load_cli_settings, resolve_database_url
from quire.cli.output import Result

app = create_group("Manage the database that holds the log.")


@app.callback()
def _keep_group() -> None:
    """Manage the database that holds the log."""  # A group without a callback would be its only command.


DatabaseUrl = Annotated[
    str | None,
    typer.Argument(help="sqlite:///path or postgresql://… Default: the database in the settings.", show_default=False),
]


@command(app, "quire db upgrade")
def upgrade(
    url: DatabaseUrl = None,
    *,
    role: Annotated[str | None, typer.Option(help="Also grant this PostgreSQL role access to the log.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only print the version. The exit code is 1 if this Quire cannot use it.")
    ] = False,
) -> Result:
    """Upgrade the schema to what this version of Quire needs."""
    if check:
        return _check(url)
    from quire.db import migrate
    from quire.db.database_url import is_postgres
    from quire.jobs import queue_schema

    database_url = url or resolve_database_url(load_cli_settings().settings)
    previous, queue = migrate.upgrade(database_url), None
    lines = [
        f"The schema is at {previous} already."
        if previous is not None and previous >= migrate.SCHEMA_VERSION
        else f"Upgraded the schema from {previous or 'nothing'} to {migrate.SCHEMA_VERSION}."
    ]
    if is_postgres(database_url) and queue_schema.is_installed():
        queue = queue_schema.upgrade(database_url)
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
    return Result(document, "\n".join(lines))


def _check(url: str | None) -> Result:
    from quire.db import migrate

    database_url = url or resolve_database_url(load_cli_settings().settings)
    # Connecting to a missing SQLite file would create it.
    is_file = database_url.startswith("sqlite:///")
    exists = not is_file or os.path.exists(database_url.removeprefix("sqlite:///"))  # noqa: PTH110 (a URL's)
    version = migrate.get_version_at_url(database_url) if exists else None
    current = exists and migrate.is_usable(database_url)
    document = {
        "database": mask_password(database_url),
        "version": version,
        "required": migrate.SCHEMA_VERSION,
        "current": current,
    }
    line = f"The schema is at {version or 'nothing'}; this version of Quire needs {migrate.SCHEMA_VERSION}."
    return Result(document, line, exit_code=0 if current else EXIT_FAILED)
