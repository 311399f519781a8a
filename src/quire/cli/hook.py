"""`quire hook`: installs, removes and runs the hooks of Claude Code and Codex.

Both agents read JSON of one shape: `{"hooks": {EVENT: [{"hooks": [{"type": "command", "command": …}]}]}}`. What was in
the file before is saved in Quire's data folder, so that a removal restores it byte for byte; if the file was changed in
between, only Quire's hooks are removed.
"""

import json
import os
import shutil
import sys
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import typer

from quire.cli import paths
from quire.cli.common import Yes, confirm
from quire.cli.hook_client import AGENTS, RECALL_SECONDS, run_hook
from quire.cli.output import print_note
from quire.cli.platforms import join_command
from quire.errors import InvalidRequest

HOOK_EVENTS = ("SessionStart", "UserPromptSubmit", "PreCompact", "PostCompact", "Stop", "SessionEnd")
TIMEOUT_SECONDS = 10
"""Time after which the agent ends a hook; `quire hook` itself ends within `RECALL_SECONDS`."""
assert max(RECALL_SECONDS.values()) < TIMEOUT_SECONDS

_DEFAULT_INDENT = 2
Action = Literal["install", "uninstall", "claude-code", "codex"]
Agent = Literal["claude-code", "codex"]


def command(
    action: Annotated[
        Action, typer.Argument(help="Install or uninstall the hooks, or the agent that runs this command as a hook.")
    ],
    agent: Annotated[Agent | None, typer.Argument(help="The agent to install for.", show_default=False)] = None,
    *,
    yes: Yes = False,
) -> None:
    """Store sessions of Claude Code and Codex as they happen, and give back what a compaction removed.

    `install` prints what it would change in the agent's settings, asks, and writes it. `uninstall` removes it again.
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
    sys.stdout.write(change.format_diff())
    sys.stdout.flush()
    if not yes:
        confirm("Write this?")
    apply_change(change, backups, installs=installs)
    print_note(f"{'Installed' if installs else 'Removed'} the hooks of {agent} in {path}.")
    if installs and agent == "codex":
        print_note("Codex asks once whether to trust them: start it and run /hooks.")


class HookChange(NamedTuple):
    """The settings file of an agent as it is and as it would be; None where there is no file."""

    path: Path
    before: bytes | None
    after: bytes | None

    def format_diff(self) -> str:
        old, new = ((content or b"").decode().splitlines(keepends=True) for content in (self.before, self.after))
        old_name, new_name = (
            "/dev/null" if content is None else str(self.path) for content in (self.before, self.after)
        )
        lines = unified_diff(old, new, old_name, new_name)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def get_settings_path(agent: str, environ: Mapping[str, str]) -> Path:
    home = Path(environ.get("HOME") or Path.home())
    if agent == "codex":
        return Path(environ.get("CODEX_HOME") or home / ".codex") / "hooks.json"
    return Path(environ.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "settings.json"


def build_command(agent: str) -> str:
    """The command for the agent's settings: this program by its absolute path, because agents have their own PATH."""
    program = Path(sys.argv[0])
    found = shutil.which("quire") if program.stem != "quire" else str(program.absolute())
    words = [found] if found else [sys.executable, "-P", "-m", "quire"]
    return join_command([*words, "hook", agent])


def plan_install(agent: str, path: Path) -> HookChange:
    before = _read(path)
    settings = _parse(path, before)
    groups = _get_hooks(path, settings, create=True)
    command = build_command(agent)
    for event in HOOK_EVENTS:
        own = {"hooks": [{"type": "command", "command": command, "timeout": TIMEOUT_SECONDS}]}
        existing: Any = groups.setdefault(event, [])
        if not isinstance(existing, list):
            raise InvalidRequest(f"{path}: hooks.{event} is not a list. Nothing was changed; correct it first.")
        updated: list[Any] = [own if _is_own(group, agent) else group for group in cast("list[Any]", existing)]
        groups[event] = updated if own in updated else [*updated, own]
    return HookChange(
        path, before, before if before and settings == _parse(path, before) else _format(settings, before)
    )


def find_hook_commands(agent: str, path: Path) -> list[str]:
    """Commands of Quire's hooks for this agent in its settings, each once."""
    groups = _get_hooks(path, _parse(path, _read(path)), create=False)
    listed = [cast("list[Any]", each) for each in groups.values() if isinstance(each, list)]
    own = (group for groups_of_event in listed for group in groups_of_event if _is_own(group, agent))
    return list(dict.fromkeys(str(group["hooks"][0]["command"]) for group in own))


def plan_uninstall(agent: str, path: Path, backups: Path) -> HookChange:
    before = _read(path)
    backup = _read_backup(_get_backup_path(path, backups))
    if before is not None and backup is not None and backup["installed"] == sha256(before).hexdigest():
        original: str | None = backup["original"]
        return HookChange(path, before, None if original is None else b64decode(original))
    settings = _parse(path, before)
    groups = _get_hooks(path, settings, create=False)
    removed = False
    for event in list(groups):
        others = [group for group in groups[event] if not _is_own(group, agent)]
        removed = removed or len(others) < len(groups[event])
        if others:
            groups[event] = others
        elif len(others) < len(groups[event]):
            del groups[event]
    if not removed:
        return HookChange(path, before, before)
    if not groups:
        del settings["hooks"]
    created = backup is not None and backup["original"] is None
    return HookChange(path, before, None if created and not settings else _format(settings, before))


def apply_change(change: HookChange, backups: Path, *, installs: bool) -> None:
    """Writes the file atomically with its permissions; an installation saves what was there before."""
    backup_path = _get_backup_path(change.path, backups)
    if installs and change.after is not None:
        previous = _read_backup(backup_path)
        encoded = None if change.before is None else b64encode(change.before).decode()
        is_ours = previous is not None and change.before and previous["installed"] == sha256(change.before).hexdigest()
        original = previous["original"] if previous is not None and is_ours else encoded
        creates_folder = previous["creates_folder"] if previous is not None else not change.path.parent.exists()
        backup = {
            "installed": sha256(change.after).hexdigest(),
            "original": original,
            "creates_folder": creates_folder,
        }
        backups.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(backup_path, json.dumps(backup).encode())
    if change.after is None:
        change.path.unlink(missing_ok=True)
    elif change.after != change.before:
        change.path.parent.mkdir(parents=True, exist_ok=True)
        _write(change.path, change.after)
    if not installs:
        backup = _read_backup(backup_path)
        backup_path.unlink(missing_ok=True)
        _remove_empty_folder(backups)
        if backup is not None and backup["creates_folder"]:
            _remove_empty_folder(change.path.parent)


def _remove_empty_folder(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _is_own(group: Any, agent: str) -> bool:
    """Whether a group holds only Quire's hook for this agent, by any path of the program."""
    if not isinstance(group, dict):
        return False
    handlers = cast("dict[str, Any]", group).get("hooks")
    if not isinstance(handlers, list) or len(cast("list[Any]", handlers)) != 1:
        return False
    handler = cast("list[Any]", handlers)[0]
    command = str(cast("dict[str, Any]", handler).get("command", "")) if isinstance(handler, dict) else ""
    return command.endswith(f" hook {agent}") and "quire" in command


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}.") from error


def _parse(path: Path, content: bytes | None) -> dict[str, Any]:
    try:
        settings: Any = json.loads(content or b"{}")
    except ValueError as error:
        raise InvalidRequest(f"{path} is not valid JSON: {error}. Nothing was changed; correct it first.") from error
    if not isinstance(settings, dict):
        raise InvalidRequest(f"{path} is not a JSON object. Nothing was changed; correct it first.")
    return cast("dict[str, Any]", settings)


def _get_hooks(path: Path, settings: dict[str, Any], *, create: bool) -> dict[str, Any]:
    hooks: Any = settings.setdefault("hooks", {}) if create else settings.get("hooks", {})
    if not isinstance(hooks, dict):
        raise InvalidRequest(f"{path}: `hooks` is not an object. Nothing was changed; correct it first.")
    return cast("dict[str, Any]", hooks)


def _format(settings: dict[str, Any], before: bytes | None) -> bytes:
    """JSON with the indentation and the last line break of the file as it is."""
    text = (before or b"{\n}\n").decode()
    lines = text.splitlines()
    second = lines[1] if len(lines) > 1 else ""
    margin = second[: len(second) - len(second.lstrip())]
    indent = "\t" if margin.startswith("\t") else len(margin) or _DEFAULT_INDENT
    return (json.dumps(settings, indent=indent, ensure_ascii=False) + ("\n" if text.endswith("\n") else "")).encode()


def _write(path: Path, content: bytes) -> None:
    """Replaces the file in one step; a link stays a link, and permissions stay."""
    target = path.resolve()
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(mode)
        Path(name).replace(target)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}.") from error


def _get_backup_path(path: Path, backups: Path) -> Path:
    return backups / f"{sha256(str(path.absolute()).encode()).hexdigest()[:16]}.json"


def _read_backup(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
