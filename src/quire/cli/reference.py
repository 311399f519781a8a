"""The command reference, printed by the program: `python -m quire.cli.reference > docs/commands.md`.

Everything in it comes from the commands themselves, so that the page cannot say what they do not do.
"""

import inspect
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

_HEAD = """\
# Commands

<!-- Printed by `python -m quire.cli.reference`; change the commands, not this page. -->

Every command takes `--help`. Those that look at or change what is stored take `--json`: they then print one JSON
document on standard output and nothing else there. Errors, notes and progress bars go to standard error; a bar appears
only on a terminal, and only for what takes longer than a second. Colours are left out in pipes and where `NO_COLOR` is
set. `[CONVERSATION]` is an id, as `quire conversation list` shows it; without one, the conversation used last is meant.

| exit code | meaning |
|---|---|
| 0 | done, or yes |
| 1 | failed, or no: the schema is outdated, a request does not come out again, an entry is not as it was written |
| 2 | the command line cannot be understood |
| 3 | there is no such conversation, entry, item, agent, setting or file |

`quire --install-completion` lets the shell complete commands, options, ids of conversations, names of agents and names
of settings. `quire --version` prints the version.
"""


class Found(NamedTuple):
    """A command under its full name."""

    name: str
    command: Any
    group: bool


def commands() -> Iterator[Found]:
    """All commands, each group before its own."""
    import typer

    from quire.cli.app import app

    root: Any = typer.main.get_command(app)
    context = typer.Context(root, info_name="quire")
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        inner: dict[str, Any] | None = getattr(command, "commands", None)
        yield Found(f"quire {name}", command, inner is not None)
        for part, each in (inner or {}).items():
            yield Found(f"quire {name} {part}", each, group=False)


def page() -> str:
    return "\n".join([_HEAD, *(line for found in commands() for line in _section(found))])


def _section(found: Found) -> Iterator[str]:
    if found.group:
        yield f"## {found.name}\n\n{found.command.help}\n"
        return
    yield f"{'##' if found.name.count(' ') == 1 else '###'} {found.name}\n"
    yield f"{inspect.cleandoc(found.command.help or '')}\n"
    yield f"```console\n$ {example(found.command)}\n```\n"
    rows = [_row(each) for each in found.command.params if each.name != "help"]
    if rows:
        yield "| | |\n|---|---|"
        yield from rows
        yield ""


def example(command: Any) -> str:
    """The call that a command's help shows."""
    return str(command.epilog or "").removeprefix("Example: ")


def _row(parameter: Any) -> str:
    said = parameter.help or ""
    if parameter.default not in (None, False, ()) and parameter.show_default is not False and not parameter.required:
        said = f"{said} (default: {parameter.default})".strip()
    return f"| {_shown(parameter)} | {_escaped(said)} |"


def _shown(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        bare = (parameter.metavar or parameter.name.upper()).strip("[]")
        return f"`{bare}`" if parameter.required else f"`[{bare}]`"
    named = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
    return named if parameter.is_flag else f"{named} {_escaped(parameter.metavar or parameter.name.upper())}"


def _escaped(said: str) -> str:
    return " ".join(said.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
