"""`quire` without a command, before it was ever used: findings in what agents have stored on this machine.

Where they have stored nothing, it says what Quire does, and the ways to a first conversation, in one screen.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from quire.cli.platforms import IS_WINDOWS

AGENT_PROGRAM_NAMES = ("claude", "codex", "gemini", "opencode")
"""Agents that `quire run` connects."""
COMMAND_COLUMNS = 32
"""Width of the column of commands."""


class FirstRun(NamedTuple):
    """What a first run can build on."""

    key_variable: str | None
    """Variable with an API key, by which `quire init` chooses a model."""
    agents: tuple[str, ...]
    """Installed agents."""


def find_first_run(environ: Mapping[str, str]) -> FirstRun | None:
    """Looks for API keys and agents; None if there are settings or a database already."""
    from quire.cli import paths
    from quire.cli.init import find_provider_keys
    from quire.cli.paths import find_project_settings_path

    used = (
        paths.get_user_settings_path(environ).exists()
        or find_project_settings_path(Path.cwd()) is not None
        or any(name.startswith("QUIRE_") for name in environ)
        or Path(paths.get_default_database_url().removeprefix("sqlite:///")).exists()
    )
    if used:
        return None
    key = next(iter(find_provider_keys(environ)), None)
    agents = tuple(name for name in AGENT_PROGRAM_NAMES if shutil.which(name, path=environ.get("PATH")))
    return FirstRun(key.variable if key is not None else None, agents)


def format_welcome(first_run: FirstRun, *, is_windows: bool = False) -> str:
    agent = first_run.agents[0] if first_run.agents else AGENT_PROGRAM_NAMES[0]
    found = f"{', '.join(first_run.agents)} found" if first_run.agents else "Claude Code, Codex, Gemini CLI"
    first_steps = [("quire init", f"use the key in {first_run.key_variable}")]
    if first_run.key_variable is None:
        first_steps = [
            (f"{'set' if is_windows else 'export'} OPENAI_API_KEY=…", "or ANTHROPIC_API_KEY, or start Ollama"),
            ("quire init", "choose a model, write the settings"),
        ]
    lines: list[str | tuple[str, str]] = [
        "Quire is the flight recorder for the agent you use, with an undo that reaches",
        "it: it records every request, and you decide what the model sees in the next.",
        "",
        f"Record an agent ({found}):",
        (f"quire run {agent}", "your login or key, nothing to set up"),
        ("quire context undo", "bring back what its compaction removed"),
        ("quire import claude-code", "past sessions, to search and continue"),
        "",
        "Or chat with a model yourself:",
        *first_steps,
        ('quire ask "What can you do?"', "one answer"),
        ("quire chat", "a conversation in the terminal"),
        "",
        "Then look at what happened:",
        ("quire serve --open", "the web interface"),
        ("quire context show", "what the model sees of a conversation"),
        ("quire doctor", "check the set-up"),
        ("quire --help", "all commands"),
    ]
    return "\n".join(line if isinstance(line, str) else f"  {line[0]:{COMMAND_COLUMNS}}{line[1]}" for line in lines)


def format_next_steps(first_run: FirstRun) -> str:
    agent = first_run.agents[0] if first_run.agents else AGENT_PROGRAM_NAMES[0]
    steps = (
        ("quire service install", "import new sessions as they are written"),
        (f"quire run {agent}", "see every request, undo a compaction"),
        ("quire search 'some words'", "search all of these sessions"),
        ("quire serve --open", "the web interface"),
    )
    return "\n".join(["What to do next:", *(f"  {step:{COMMAND_COLUMNS}}{purpose}" for step, purpose in steps)])


def print_welcome() -> bool:
    """On a first run, prints findings, or the welcome if no agent has stored anything; returns False on any other."""
    first_run = find_first_run(os.environ)
    if first_run is None:
        return False
    from quire.engine.source_scan import find_sources

    if find_sources(os.environ):
        from quire.cli.common import run_async
        from quire.cli.output import print_drawing
        from quire.cli.scan import draw_findings, scan

        report = run_async(scan())
        print_drawing(lambda console: draw_findings(report, console))
        sys.stdout.write(f"\n{format_next_steps(first_run)}\n")
        return True
    sys.stdout.write(f"{format_welcome(first_run, is_windows=IS_WINDOWS)}\n")
    return True
