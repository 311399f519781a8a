"""`quire run`: runs an agent program with the gateway between it and its model."""

import os
import shutil
from typing import Annotated

import typer

from quire.cli import run_client
from quire.cli.common import EXIT_FAILED, SetOptions
from quire.cli.output import print_note

EXIT_PROGRAM_NOT_FOUND = 127
"""Exit code of shells for a program that does not exist."""


def command(
    program: Annotated[
        str,
        typer.Argument(
            metavar="PROGRAM", help="The program: claude, codex, opencode, gemini, or any other.", show_default=False
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS...", help="The program's own options and arguments.", show_default=False),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The model that answers, whichever one the program names.", show_default=False
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Print where each model name goes, with which credential, without starting the program."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing from Quire except errors.")] = False,
    overrides: SetOptions = None,
) -> None:
    """Run an agent with Quire between it and its model: every conversation is recorded.

    Uses your running server (`quire service`, `quire serve`), whatever its settings. If none runs, one is started for
    the duration of the run. The program gets the address and an API key by environment variables and options. Its own
    files stay untouched. The exit code is the program's.
    """
    # `quire.cli.main` has tried `run_client` already. Here the user sees what it cannot say.
    from quire.cli.agent_programs import AGENT_PROGRAMS, OTHER_PROGRAM, choose_upstreams, format_routes, list_routes
    from quire.cli.engine_setup import load_cli_settings

    known = AGENT_PROGRAMS.get(program)
    if shutil.which(program) is None and not explain:
        remedy = f"install it with `{known.installation}`" if known is not None else "install it, or correct its name"
        print_note(f"quire: There is no program {program!r} in PATH; {remedy}.")
        raise typer.Exit(EXIT_PROGRAM_NOT_FOUND)
    # Asks about the settings file of the folder, if it needs trust.
    settings = load_cli_settings(overrides).settings
    if explain:
        agent_program = known or OTHER_PROGRAM
        settings = choose_upstreams(settings, agent_program, os.environ, model=model)
        typer.echo(format_routes(list_routes(settings, agent_program), settings))
        return
    words = run_client.RunWords(program, arguments or (), model, overrides or (), quiet)
    exit_code = run_client.run(words, is_confirmed=True)
    raise typer.Exit(EXIT_FAILED if exit_code is None else exit_code)
