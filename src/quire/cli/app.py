"""The root command: imports a command's module lazily, when the command is called.

Errors of the library end here, as one line on standard error and an exit code (see `quire.cli.common`).
"""

from importlib.metadata import EntryPoint
from typing import Annotated, Any, cast

import typer

from quire import __version__
from quire.cli.common import PlainGroup, command, enable_garbage_collection, to_exit_code
from quire.cli.output import print_note
from quire.errors import QuireError
from quire.plugins import find_plugins, load_plugin

SINGLE_COMMANDS = {
    "scan": "quire scan",
    "run": "quire run claude",
    "resume": "quire resume --in codex",
    "hook": "quire hook install claude-code",
    "mcp": "quire mcp",
    "statusline": "quire statusline",
    "service": "quire service status",
    "backtest": "quire backtest --sample 50 --window 8000",
    "search": "quire search 'spring tide' --limit 2",
    "import": "quire import claude-code",
    "export": "quire export --output gannet.jsonl",
    "init": "quire init",
    "chat": "quire chat",
    "ask": 'quire ask "Where do we stand?"',
    "models": "quire models gpt-4o",
    "serve": "quire serve --open",
    "login": "quire login https://quire.example.org",
    "worker": "quire worker",
    "doctor": "quire doctor",
    "trust": "quire trust list",
}
"""Modules with one function, `command`, and an example of it."""
HELP_PANELS = {
    "Your agents": "scan run resume context",
    "History": "search conversation import export",
    "Web interface and chat": "serve chat ask",
    "Set up": "init config doctor hook mcp service",
}
"""What a person uses in a day: commands in the order of `quire --help`."""
MORE_COMMANDS = "agent backtest db key login memory models statusline tenant trust worker"
"""Commands that `quire --help` only names."""
OTHER_PANEL = "Other packages"
_PANELS_BY_COMMAND = {name: panel for panel, names in HELP_PANELS.items() for name in names.split()}
_ORDER = {name: number for number, name in enumerate([*_PANELS_BY_COMMAND, *MORE_COMMANDS.split()])}


class LazyCommandGroup(PlainGroup):
    """Command group of the entry points `quire.commands`, each loaded on first use."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plugins = find_plugins("quire.commands")
        names = sorted(self._plugins, key=lambda name: _ORDER.get(name, len(_ORDER)))
        self.commands = cast(Any, {**dict.fromkeys(names), **self.commands})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`quire @agent "question"` is short for `quire ask @agent "question"`, with or without options before it."""
        first = next((each for each in args if not each.startswith("-")), "")
        return super().parse_args(ctx, ["ask", *args] if first.startswith("@") else args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self._plugins and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _load_command(cmd_name, self._plugins[cmd_name])
        return self.commands.get(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except QuireError as error:
            print_note(f"quire: {error}")
            raise typer.Exit(to_exit_code(error)) from error


def _load_command(name: str, point: EntryPoint) -> Any:
    """The command of an entry point: a function that becomes a command, or a Typer app of several."""
    plugin = load_plugin(point)
    if plugin is None:
        return None
    if not isinstance(plugin, typer.Typer):
        enable_garbage_collection()
        single = typer.Typer(add_completion=False)
        # Options after the name of a program are the program's own.
        settings = {"allow_interspersed_args": False} if name == "run" else None
        command(single, SINGLE_COMMANDS.get(name, f"quire {name}"), name=name, context_settings=settings)(plugin)
        plugin = single
    loaded: Any = typer.main.get_command(plugin)
    loaded.name, loaded.rich_help_panel = name, _PANELS_BY_COMMAND.get(name, OTHER_PANEL)
    loaded.hidden = name in MORE_COMMANDS.split()
    return loaded


app = typer.Typer(
    help="The flight recorder for the agent you use, with an undo that reaches it.",
    epilog=f"More: {MORE_COMMANDS.replace(' ', ', ')}. Each takes --help.",
    cls=LazyCommandGroup,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


def _print_version(value: bool) -> None:  # noqa: FBT001 (Typer calls it)
    if value:
        typer.echo(f"quire {__version__}")
        raise typer.Exit


@app.callback()
def _quire(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        from quire.cli.welcome import print_welcome

        if not print_welcome():
            typer.echo(context.get_help())
