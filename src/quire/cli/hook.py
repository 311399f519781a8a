"""`quire hook`: installs, removes and runs the hooks of Claude Code and Codex."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from quire.cli import paths
from quire.cli.hook_client import AGENTS, run_hook
from quire.cli.hook_settings import HookChange, apply_change, get_settings_path, plan_install, plan_uninstall
from quire.cli.output import print_note

Action = Literal["install", "uninstall", "claude-code", "codex"]
Agent = Literal["claude-code", "codex"]


def command(
    action: Annotated[
        Action, typer.Argument(help="Install or uninstall the hooks, or the agent that runs this command as a hook.")
    ],
    agent: Annotated[Agent | None, typer.Argument(help="The agent to install for.", show_default=False)] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Write the settings without asking.")] = False,
) -> None:
    """Store sessions of Claude Code and Codex as they happen, and give back what a compaction removed.

    `install` prints what it would change in the agent's settings, asks, and writes it; `uninstall` removes it again.
    The agent then runs `quire hook claude-code` or `quire hook codex` with an event on standard input.
    """
    if action in AGENTS:
        if agent is not None:
            raise typer.BadParameter(f"`quire hook {action}` takes no other argument.")
        run_hook(action)
        return
    if agent is None:
        raise typer.BadParameter(f"name the agent: `quire hook {action} claude-code` or `quire hook {action} codex`.")
    path, backups = get_settings_path(agent, os.environ), paths.get_hook_backups_folder()
    installs = action == "install"
    change = plan_install(agent, path) if installs else plan_uninstall(agent, path, backups)
    if change.before == change.after:
        print_note(f"{path}: the hooks are {'installed already' if installs else 'not installed'}.")
        return
    _apply(change, backups, installs=installs, yes=yes)
    print_note(f"{'Installed' if installs else 'Removed'} the hooks of {agent} in {path}.")
    if installs and agent == "codex":
        print_note("Codex asks once whether to trust them: start it and run /hooks.")


def _apply(change: HookChange, backups: Path, *, installs: bool, yes: bool) -> None:
    sys.stdout.write(change.format_diff())
    sys.stdout.flush()
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("cannot ask for confirmation without a terminal; pass --yes.")
        typer.confirm("Write this?", abort=True, err=True)
    apply_change(change, backups, installs=installs)
