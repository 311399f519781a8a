"""The commands, joined by name: a group's module is imported when one of its commands is called.

Errors of the library end here, as one line on standard error and an exit code (see `quire.cli.running`).
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from quire import __version__
from quire.cli.output import note
from quire.cli.running import collect_garbage, example_of, exit_code
from quire.errors import QuireError

GROUPS = ("context", "memory", "config", "agent", "conversation", "key", "db")
"""Modules with a Typer `app` of several commands."""

SINGLE = {
    "chat": "quire chat",
    "ask": 'quire ask "Where do we stand?"',
    "init": "quire init",
    "serve": "quire serve --open",
    "worker": "quire worker",
}
"""Modules with one function, `command`, and an example of it."""


class Commands(TyperGroup):
    """The commands by name; those whose module is not installed are not there."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        single = [name for name in SINGLE if find_spec(f"quire.cli.{name}") is not None]
        self._modules = (*single, *GROUPS)
        self.commands = cast(Any, {**dict.fromkeys(self._modules), **self.commands})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self._modules and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _loaded(cmd_name)
        return self.commands.get(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except QuireError as error:
            note(f"quire: {error}")
            raise typer.Exit(exit_code(error)) from error


def _loaded(name: str) -> Any:
    module = import_module(f"quire.cli.{name}")
    if name in GROUPS:
        made: Any = typer.main.get_command(module.app)
    else:
        collect_garbage()
        alone = typer.Typer(add_completion=False)
        alone.command(name, epilog=example_of(SINGLE[name]))(module.command)
        made = typer.main.get_command(alone)
    made.name = name
    return made


app = typer.Typer(
    help="A context engine for LLM chat and agents.",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(value: bool) -> None:  # noqa: FBT001 (Typer calls it)
    if value:
        typer.echo(f"quire {__version__}")
        raise typer.Exit


@app.callback()
def _quire(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
