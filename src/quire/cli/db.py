"""`quire db`: the database's schema."""

from typing import Annotated

import typer

from quire.log import migrate

app = typer.Typer(help="Look after the database that holds the log.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(envvar="QUIRE_DATABASE_URL", help="sqlite:///path or postgresql://…")]


@app.command()
def upgrade(
    url: Url, *, role: Annotated[str | None, typer.Option(help="Also let this role of PostgreSQL use the log.")] = None
) -> None:
    """Bring the schema to what this version of Quire needs."""
    before = migrate.upgrade(url)
    if before == migrate.HEAD:
        typer.echo(f"The schema is at {migrate.HEAD} already.")
    else:
        typer.echo(f"Upgraded the schema from {before or 'nothing'} to {migrate.HEAD}.")
    if role is not None:
        migrate.grant(url, role)
        typer.echo(f"The role {role} may use the log.")


@app.command()
def status(url: Url) -> None:
    """Say which version the schema has; the exit code is 1 if it is not the one that is needed."""
    found = migrate.status(url)
    typer.echo(f"The schema is at {found or 'nothing'}; this version of Quire needs {migrate.HEAD}.")
    if found != migrate.HEAD:
        raise typer.Exit(1)
