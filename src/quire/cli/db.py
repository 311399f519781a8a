"""`quire db`: the database's schema."""

import os
from typing import Annotated

import typer

from quire.cli.config import without_password
from quire.cli.output import give, text
from quire.cli.running import FAILED, AsJson, command, group

app = group("Look after the database that holds the log.")

Url = Annotated[
    str | None,
    typer.Argument(help="sqlite:///path or postgresql://…; else the one in the settings.", show_default=False),
]


def _url(url: str | None) -> str:
    from quire.cli.opening import Options, database_url, settings_from

    return url if url is not None else database_url(settings_from(Options()).settings)


@command(app, "quire db upgrade")
def upgrade(
    url: Url = None,
    *,
    role: Annotated[str | None, typer.Option(help="Also let this role of PostgreSQL use the log.")] = None,
    as_json: AsJson = False,
) -> None:
    """Bring the schema to what this version of Quire needs."""
    from quire.jobs import schema
    from quire.log import migrate

    where = _url(url)
    _make_folder(where)
    before = migrate.upgrade(where)
    said = [
        f"The schema is at {migrate.HEAD} already."
        if before == migrate.HEAD
        else f"Upgraded the schema from {before or 'nothing'} to {migrate.HEAD}."
    ]
    queue = _upgrade_queue(where)
    if queue is not None:
        said.append(f"The queue of jobs is at {queue}.")
    if role is not None:
        migrate.grant(where, role)
        said.append(f"The role {role} may use the log.")
    if role is not None and queue is not None:
        schema.grant(where, role)
    document = {
        "database": without_password(where),
        "before": before,
        "now": migrate.HEAD,
        "queue": queue,
        "role": role,
    }
    give(document, lambda _: map(text, said), as_json=as_json)


def _upgrade_queue(url: str) -> str | None:
    """Where jobs are kept for workers: in PostgreSQL, if Procrastinate is installed."""
    from quire.jobs import schema

    return schema.upgrade(url) if url.startswith("postgresql") and schema.is_installed() else None


def _make_folder(url: str) -> None:
    from pathlib import Path

    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)


@command(app, "quire db status")
def status(url: Url = None, *, as_json: AsJson = False) -> None:
    """Say which version the schema has; the exit code is 1 if it is not the one that is needed."""
    from quire.log import migrate

    where = _url(url)
    found = migrate.status(where) if _is_there(where) else None
    said = f"The schema is at {found or 'nothing'}; this version of Quire needs {migrate.HEAD}."
    current = found == migrate.HEAD
    document = {"database": without_password(where), "found": found, "needed": migrate.HEAD, "current": current}
    give(document, lambda _: [text(said)], as_json=as_json)
    if not current:
        raise typer.Exit(FAILED)


def _is_there(url: str) -> bool:
    """Asking makes no file."""
    return not url.startswith("sqlite:///") or os.path.exists(url.removeprefix("sqlite:///"))  # noqa: PTH110 (a URL's)
