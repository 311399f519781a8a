"""Checks of the connections to coding agents: hooks, and the MCP server in their settings."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from quire.cli.doctor_checks.findings import Finding, report_note, report_ok, report_problem
from quire.cli.doctor_checks.setup import DoctorSetup
from quire.cli.hook_client import AGENTS
from quire.cli.hook_settings import find_hook_commands, get_settings_path
from quire.cli.platforms import split_command
from quire.errors import QuireError

SERVER_NAME = "quire"


def check_hooks(setup: DoctorSetup) -> list[Finding]:
    return [finding for agent in AGENTS for finding in _check_agent_hooks(agent, setup.environ)]


def _check_agent_hooks(agent: str, environ: Mapping[str, str]) -> list[Finding]:
    path = get_settings_path(agent, environ)
    install = f"quire hook install {agent}"
    if not path.parent.is_dir():
        return []
    try:
        commands = find_hook_commands(agent, path)
    except QuireError as error:
        return [report_problem("hooks", str(error), f"Correct {path}, then run `{install}`.")]
    if not commands:
        return [report_note("hooks", f"{agent}: not installed.", f"Run `{install}` to store its sessions.")]
    missing = [each for each in commands if not Path(split_command(each)[0]).exists()]
    if missing:
        detail = f"{agent}: {path} runs `{missing[0]}`, and that program does not exist any more."
        return [report_problem("hooks", detail, f"Run `{install}` to write its present path.")]
    return [report_ok("hooks", f"{agent}: installed in {path}")]


def check_mcp(setup: DoctorSetup) -> list[Finding]:
    """Whether the agents that are set up on this machine can search the log."""
    home = Path(setup.environ.get("HOME") or Path.home())
    claude = [home / ".claude.json", setup.folder / ".mcp.json"]
    codex = [Path(setup.environ.get("CODEX_HOME") or home / ".codex") / "config.toml"]
    cursor = [home / ".cursor" / "mcp.json", setup.folder / ".cursor" / "mcp.json"]
    found: list[Finding] = []
    for agent, files, table in (
        ("claude-code", claude, "mcpServers"),
        ("codex", codex, "mcp_servers"),
        ("cursor", cursor, "mcpServers"),
    ):
        existing = [file for file in files if file.is_file()]
        registered = next((file for file in existing if SERVER_NAME in _read_table(file, table)), None)
        if registered is not None:
            found.append(report_ok("MCP", f"{agent}: `quire mcp` is in {registered}"))
        elif existing:
            found.append(
                report_note("MCP", f"{agent}: not installed.", "See docs/mcp.md for the command that adds it.")
            )
    return found


def _read_table(path: Path, table: str) -> Mapping[str, Any]:
    """A table of an agent's settings; empty if the file cannot be read."""
    try:
        text = path.read_text("utf-8")
        document: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError):
        return {}
    value = cast("dict[str, Any]", document).get(table) if isinstance(document, dict) else None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
