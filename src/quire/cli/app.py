"""The commands, joined."""

from typing import Annotated

import typer

from quire import __version__
from quire.cli import db

app = typer.Typer(help="A context engine for LLM chat and agents.", no_args_is_help=True, add_completion=False)
app.add_typer(db.app, name="db")


def _print_version(value: bool) -> None:  # noqa: FBT001 (Typer calls it)
    if value:
        typer.echo(f"quire {__version__}")
        raise typer.Exit


@app.callback()
def _quire(
    *,
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    pass
